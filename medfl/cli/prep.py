"""``medfl prep``: a data set as downloaded in, a pooled data set out. One command for each data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def prep() -> None:
    """Turn a data set as downloaded into one array of images and a data list."""


@app.command()
def medmnist(
    source: Annotated[Path, typer.Option(help="The .npz file, or the folder that holds <flag>.npz.")],
    flag: Annotated[str, typer.Option(help="Name of the data set, for example bloodmnist or organmnist3d.")],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    force: Annotated[bool, typer.Option("--force", help="Replace a data set that is there.")] = False,
) -> None:
    """MedMNIST: <flag>.npz, in 2-D and 3-D. Nothing is downloaded."""
    from medfl.data.medmnist import prepare

    datalist = prepare(source, flag, out, force=force, say=lambda line: typer.echo(line, err=True))
    sizes = ", ".join(f"{len(records)} {split}" for split, records in datalist.splits.items())
    typer.echo(f"{out}: {sizes} images of {datalist.num_classes} classes")
