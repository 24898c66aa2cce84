"""``medfl prep``: images of the skin."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medfl.cli.prep_options import Force, Out, SkipUnreadable, Workers, height_and_width, summarise, to_stderr


def derm7pt(
    source: Annotated[Path, typer.Option(help="The folder release_v0, as unpacked, or the one that holds it.")],
    out: Out,
    size: Annotated[int, typer.Option(min=1, help="Height and width of the images in the array.")] = 224,
    view: Annotated[str, typer.Option(help="derm (dermoscopy) or clinic (photograph).")] = "derm",
    split: Annotated[
        str, typer.Option(help="official, or none: all cases in training, for folds at each site as FedSKD has them.")
    ] = "official",
    skip_unreadable: SkipUnreadable = False,
    force: Force = False,
) -> None:
    """Derm7pt: skin lesions in five groups. Nothing is downloaded.

    Sex and location are kept, the aspect ratio is not. Nine cases without a clinical image are not in the view clinic.
    """
    from medfl_datasets.derm7pt.spec import prepare

    datalist = prepare(
        source, out, size=size, view=view, split=split, skip_unreadable=skip_unreadable, force=force, say=to_stderr
    )
    summarise(out, datalist)


def ham10000(
    source: Annotated[Path, typer.Option(help="The folder of images and table, as unpacked.")],
    out: Out,
    metadata: Annotated[Path | None, typer.Option(help="The table, if it is not in --source.")] = None,
    size: Annotated[str, typer.Option(help="Of the images in the array: 224, or 225x300 (HxW).")] = "224",
    groups: Annotated[
        str | None,
        typer.Option(help="What stays together: lesion; or image: then a lesion may be in training and test."),
    ] = None,
    preset: Annotated[
        str, typer.Option(help="medfl: --groups lesion; paper: --groups image, as FedSDC's paper has it.")
    ] = "medfl",
    crop_lesion: Annotated[
        bool, typer.Option("--crop-lesion", help="Cut the lesion out, by the masks of the release.")
    ] = False,
    require_complete: Annotated[
        bool, typer.Option("--require-complete", help="Stop if any image is missing or can't be read.")
    ] = False,
    workers: Workers = None,
    force: Force = False,
) -> None:
    """HAM10000: dermoscopic images of skin lesions in seven classes, from Kaggle or Dataverse. Nothing is downloaded.

    Images of a lesion stay together. Age, sex, localization and dataset are kept, the aspect ratio is not. What is
    missing or can't be read is left out and listed in quarantine.csv.
    """
    from medfl_datasets.ham10000.spec import prepare

    datalist = prepare(
        source,
        out,
        metadata=metadata,
        size=height_and_width(size),
        groups=groups,
        preset=preset,
        crop_lesion=crop_lesion,
        require_complete=require_complete,
        workers=workers,
        force=force,
        say=to_stderr,
    )
    summarise(out, datalist)


COMMANDS = (derm7pt, ham10000)
"""In the order of the help."""
