"""``medfl prep``: films of the breast."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medfl.cli.prep_options import (
    Align,
    CropBreast,
    DeidentifyCheck,
    Force,
    Out,
    Voi,
    Workers,
    height_and_width,
    summarise,
    to_stderr,
)


def cbis_ddsm(
    source: Annotated[Path, typer.Option(help="The folder of the images, in any layout of the release.")],
    out: Out,
    tables: Annotated[
        Path | None, typer.Option(help="The folder of the four case descriptions (CSV), if they are not in --source.")
    ] = None,
    size: Annotated[str, typer.Option(help="Of the images in the array: 224, or 448x224 (HxW).")] = "224",
    view: Annotated[str, typer.Option(help="full: whole mammograms; crop: lesions cut out of them.")] = "full",
    abnormality: Annotated[str, typer.Option(help="both, mass or calc.")] = "both",
    three_classes: Annotated[
        bool, typer.Option("--three-classes", help="Keep benign without callback as a class; it is benign otherwise.")
    ] = False,
    crop_breast: CropBreast = False,
    align: Align = False,
    voi: Voi = False,
    deidentify_check: DeidentifyCheck = "strip",
    workers: Workers = None,
    force: Force = False,
) -> None:
    """CBIS-DDSM: mammograms with benign or malignant lesions. Nothing is downloaded.

    Official split, without the training images of 31 patients who are tested on, too. What is missing or can't be read
    is left out and listed in quarantine.csv. If interrupted, the same command goes on where it stopped.
    """
    from medfl_datasets.cbis_ddsm.pixels import Options
    from medfl_datasets.cbis_ddsm.spec import prepare

    datalist = prepare(
        source,
        out,
        tables=tables,
        view=view,
        abnormality=abnormality,
        three_classes=three_classes,
        options=Options(height_and_width(size), crop_breast, align, voi, deidentify_check),
        workers=workers,
        force=force,
        say=to_stderr,
    )
    summarise(out, datalist)


def mias(
    source: Annotated[Path, typer.Option(help="The folder all-mias, as unpacked, or the one that holds it.")],
    out: Out,
    size: Annotated[str, typer.Option(help="Of the images in the array: 224, or 448x224 (HxW).")] = "224",
    view: Annotated[str, typer.Option(help="full: whole films; crop: abnormalities cut out of them.")] = "full",
    labels: Annotated[
        str | None,
        typer.Option(
            help="three-class, benign-malignant or malignant-rest; by default the first, the second for crop."
        ),
    ] = None,
    test_share: Annotated[
        float, typer.Option(help="Share of the patients in the test set; 0 leaves it to medfl partition.")
    ] = 0.15,
    seed: Annotated[int, typer.Option(help="Decides which patients these are.")] = 0,
    crop_breast: CropBreast = False,
    align: Align = False,
    require_complete: Annotated[
        bool, typer.Option("--require-complete", help="Stop if any film is missing or can't be read.")
    ] = False,
    workers: Workers = None,
    force: Force = False,
) -> None:
    """mini-MIAS: films of the breast, normal, benign or malignant. Nothing is downloaded.

    The two films of a patient stay together. A film that is missing or can't be read is left out and listed in
    quarantine.csv.
    """
    from medfl_datasets.mias.spec import prepare

    datalist = prepare(
        source,
        out,
        size=height_and_width(size),
        view=view,
        labels=labels,
        test_share=test_share,
        seed=seed,
        crop_breast=crop_breast,
        align=align,
        require_complete=require_complete,
        workers=workers,
        force=force,
        say=to_stderr,
    )
    summarise(out, datalist)


COMMANDS = (
    cbis_ddsm,
    mias,
)
"""In the order of the help."""
