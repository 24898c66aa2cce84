"""The command ``medfl look``: show a prepared data set to its owner before training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA", help="Folder of a prepared data set, of its sites, or of one site.", show_default=False
        ),
    ],
    scanner_column: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="Column of the data list with the scanner.", show_default="scanner, device, ..."
        ),
    ] = None,
    pictures: Annotated[int, typer.Option(min=1, max=100, help="Number of pictures of each site.")] = 8,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Page to write.", show_default="DATA/look.html")
    ] = None,
) -> None:
    """Show a prepared data set before training: pictures, faulty images, near-duplicates, and sites that differ.

    The page contains images of patients. It is for the owner of the data: only their account can read the file, and
    no report contains it. The command prints the findings without pictures.

    Example: medfl look data/own --scanner-column device
    """
    import torch

    from medfl.utils.text import visible
    from medfl_report.data_overview.cases import read_images
    from medfl_report.data_overview.overview import look_at
    from medfl_report.data_overview.overview_page import PAGE_NAME, write_overview

    torch.set_num_threads(1)  # the tensors are small
    overview = look_at(read_images(data, scanner_column))
    path = out or data / PAGE_NAME
    write_overview(overview, path, pictures)
    for line in overview.findings() or ["nothing stands out: no blank image, no near-duplicate, no site that differs"]:
        typer.echo(visible(line))
    typer.echo(f"page with images of patients, for the owner only: {path}")
