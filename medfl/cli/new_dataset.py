"""``medfl new-dataset``: the first file of a new data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medfl.cli.new_method import check_name, render, write


def command(
    name: Annotated[str, typer.Argument(help="What users will type, for example my_scans.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to write.", show_default="here")] = Path(),
) -> None:
    """Write a plugin file for a new data set, and its test.

    What is written works as it stands: a folder of PNG images for each class, to be replaced by your release.
    """
    check_name(name, "dataset")
    texts = {f"{name}.py": render("dataset_file", name), f"test_{name}.py": render("test_dataset_file", name)}
    written = write(texts, out)
    for path in written:
        typer.echo(f"wrote {path}")
    typer.echo(f"Next: medfl list datasets --plugin {written[0]}")
    typer.echo(f"Test: pytest {written[-1]}")
