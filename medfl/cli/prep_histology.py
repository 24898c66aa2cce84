"""``medfl prep``: tissue under the microscope."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medfl.cli.prep_options import Force, Out, Workers, summarise, to_stderr


def lc25000(
    source: Annotated[Path, typer.Option(help="The folder lung_colon_image_set, or the one that holds it.")],
    out: Out,
    size: Annotated[int, typer.Option(min=1, help="Height and width of the images in the array.")] = 224,
    organ: Annotated[str, typer.Option(help="both (five classes), lung (three) or colon (two).")] = "both",
    groups: Annotated[
        str,
        typer.Option(
            help="What stays together: hash, copies of a tile that a hash finds; none: copies get torn apart."
        ),
    ] = "hash",
    workers: Workers = None,
    force: Force = False,
) -> None:
    """LC25000: lung and colon tissue, benign or cancer. Nothing is downloaded.

    The images are turned and flipped copies of 1250 tiles, and no name says of which. Copies that the hash finds stay
    together; how many groups there are is told. If interrupted, the same command goes on where it stopped.
    """
    from medfl_datasets.lc25000.spec import prepare

    datalist = prepare(source, out, size=size, organ=organ, groups=groups, workers=workers, force=force, say=to_stderr)
    summarise(out, datalist)


COMMANDS = (lc25000,)
"""In the order of the help."""
