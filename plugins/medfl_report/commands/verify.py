"""The command ``medfl verify``: check bundles against their model cards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="RUN|BUNDLE", help="Folder of a run, or of a bundle with a model card.", show_default=False
        ),
    ],
) -> None:
    """Check the files and scores of bundles against their model cards; the exit status is 1 if anything differs.

    The command compares every file with evidence.json, and computes every score of the card again from predictions.csv.

    Example: medfl verify runs/fedavg
    """
    import torch

    from medfl.utils.formats import count
    from medfl.utils.text import visible
    from medfl_report.cards.verify import verify

    torch.set_num_threads(1)  # the tensors are small
    results = verify(path)
    for result in results:
        checked = f"{count(result.files, 'file')} and {count(result.numbers, 'number')} checked"
        typer.echo(
            f"{visible(result.name)}: {'DIFFERS from its card' if result.problems else 'matches its card'} ({checked})"
        )
        for text in result.problems:
            typer.echo(f"  {visible(text)}")
        for text in result.notes:
            typer.echo(f"  not checked: {visible(text)}")
        if result.sha256:
            typer.echo(f"  SHA-256 of evidence.json: {result.sha256}")
    if any(result.problems for result in results):
        raise typer.Exit(1)
