"""``medfl prep``: your own image files."""

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
    SkipUnreadable,
    Voi,
    edges,
    summarise,
    to_stderr,
)


def folder(
    images: Annotated[Path, typer.Argument(help="The folder of the image files: PNG, JPEG, TIFF, DICOM, NIfTI, ...")],
    table: Annotated[Path, typer.Option(help="CSV or TSV with a row for each image.")],
    image_column: Annotated[str, typer.Option(help="Column with the path of the file below IMAGES.")],
    label_column: Annotated[str, typer.Option(help="Column with the class.")],
    size: Annotated[str, typer.Option(help="Of the images in the array: 224, 224x160 (HxW) or 64x64x32 (DxHxW).")],
    out: Out,
    group_column: Annotated[str | None, typer.Option(help="Column with the patient; it is not kept.")] = None,
    site_column: Annotated[str | None, typer.Option(help="Column with the site; kept as 'site'.")] = None,
    split_column: Annotated[str | None, typer.Option(help="Column with train, val or test.")] = None,
    keep_column: Annotated[list[str] | None, typer.Option(help="Another column to keep; may be repeated.")] = None,
    name: Annotated[str | None, typer.Option(help="Of the data set; by default that of --out.")] = None,
    licence: Annotated[str, typer.Option(help="Terms of use, as the data list shall state them.")] = "not stated",
    channels: Annotated[int | None, typer.Option(help="1 or 3; by default 3 if an image has colour.")] = None,
    crop_breast: CropBreast = False,
    align: Align = False,
    voi: Voi = False,
    deidentify_check: DeidentifyCheck = "strip",
    skip_unreadable: SkipUnreadable = False,
    force: Force = False,
) -> None:
    """Your own image files with a table of labels. No file name and no patient's identifier is kept.

    8-bit images stay as they are but for their size; DICOM, NIfTI and deeper ones are scaled to [0, 1], each by its own
    range, without what pads it. The aspect ratio is not kept. With --crop-breast, --align or --voi mammograms are read
    as by medfl prep cbis_ddsm, and predicted so.
    """
    from medfl.ingest.labels import Columns
    from medfl.ingest.own_images import prepare

    columns = Columns(image_column, label_column, group_column, site_column, split_column, tuple(keep_column or ()))
    reading = {"crop_breast": crop_breast, "align": align, "voi": voi}
    datalist = prepare(
        images,
        table,
        columns,
        edges(size),
        out,
        name=name,
        licence=licence,
        channels=channels,
        skip_unreadable=skip_unreadable,
        deidentify_check=deidentify_check,
        reading=reading if any(reading.values()) else None,
        force=force,
        say=to_stderr,
    )
    summarise(out, datalist)


COMMANDS = (folder,)
"""In the order of the help."""
