"""``medfl new-dataset``: write the first file, or the folder, of a new data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medfl.cli.new_method import check_name, render, write

SHARED_TEMPLATES = ("dataset_class", "dataset_read", "dataset_release")
"""Names of the templates that the file of a single-file plugin and the files of a folder both include."""


def command(
    name: Annotated[str, typer.Argument(help="Name of the data set on the command line, for example my_scans.")],
    folder: Annotated[
        bool, typer.Option("--folder", help="Write a folder for a package of data sets, such as data_prep.")
    ] = False,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write in.", show_default="here")] = Path(),
) -> None:
    """Write a plugin file for a new data set, and its test.

    The file works without changes: it reads a folder of PNG images for each class. Replace that by your data.

    Example: medfl new-dataset my_scans
    """
    check_name(name, "dataset")
    written = write(folder_files(name) if folder else plugin_files(name), out)
    for path in written:
        typer.echo(f"wrote {path}")
    typer.echo("Next: medfl list datasets" + ("" if folder else f" --plugin {written[0]}"))
    typer.echo(f"Test: pytest {written[-1]}")


def plugin_files(name: str) -> dict[str, str]:
    """Return the text of a plugin of one file and of its test, by relative path."""
    words = {"terms": '"name the licence"'}
    return {
        f"{name}.py": render("dataset_file", name, SHARED_TEMPLATES, **words),
        f"test_{name}.py": render("test_dataset_file", name),
    }


def folder_files(name: str) -> dict[str, str]:
    """Return the texts of a data set's folder by relative path. The package's hook has to list its ``RECORDS``."""
    words = {"terms": "RECORDS[0].licence"}
    texts = {
        file: render(f"dataset_{file.strip('_')}", name, SHARED_TEMPLATES, **words)
        for file in ("__init__", "spec", "files", "synthetic")
    }
    return {f"{name}/{file}.py": text for file, text in texts.items()} | {
        f"{name}/test_{name}.py": render("test_dataset_folder", name)
    }
