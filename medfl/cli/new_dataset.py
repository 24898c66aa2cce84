"""``medfl new-dataset``: the first file of a new data set, or its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medfl.cli.new_method import check_name, render, write

PIECES = ("dataset_class", "dataset_read", "dataset_release")
"""Templates that are common to both shapes of a data set."""


def command(
    name: Annotated[str, typer.Argument(help="What users will type, for example my_scans.")],
    folder: Annotated[
        bool, typer.Option("--folder", help="A folder for a package of data sets, such as data_prep.")
    ] = False,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to write.", show_default="here")] = Path(),
) -> None:
    """Write a plugin file for a new data set, and its test.

    What is written works as it stands: a folder of PNG images for each class, to be replaced by your release.

    Example: medfl new-dataset my_scans
    """
    check_name(name, "dataset")
    written = write(folder_files(name) if folder else plugin_files(name), out)
    for path in written:
        typer.echo(f"wrote {path}")
    typer.echo("Next: medfl list datasets" + ("" if folder else f" --plugin {written[0]}"))
    typer.echo(f"Test: pytest {written[-1]}")


def plugin_files(name: str) -> dict[str, str]:
    """Relative path to text of a plugin of one file, and its test."""
    words = {"terms": '"say who may use it, and for what"'}
    return {
        f"{name}.py": render("dataset_file", name, PIECES, **words),
        f"test_{name}.py": render("test_dataset_file", name),
    }


def folder_files(name: str) -> dict[str, str]:
    """Relative path to text of a folder in a package whose hook lists the ``RECORDS`` of all its folders."""
    words = {"terms": "RECORDS[0].licence"}
    texts = {
        file: render(f"dataset_{file.strip('_')}", name, PIECES, **words)
        for file in ("__init__", "spec", "files", "phantom")
    }
    return {f"{name}/{file}.py": text for file, text in texts.items()} | {
        f"{name}/test_{name}.py": render("test_dataset_folder", name)
    }
