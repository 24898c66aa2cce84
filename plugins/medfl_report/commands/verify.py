"""``medfl verify``: check bundles against their model cards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    place: Annotated[
        Path, typer.Argument(metavar="RUN|BUNDLE", help="A run folder, or a bundle with a card.", show_default=False)
    ],
) -> None:
    """Check files and numbers of bundles against their model cards; the exit status is 1 if anything differs.

    The command compares every file with evidence.json, and computes every score of the card again from predictions.csv.

    Example: medfl verify runs/fedavg
    """
    import torch

    from medfl.utils.formats import count
    from medfl.utils.text import visible
    from medfl_report.cards.verify import verify

    torch.set_num_threads(1)  # the tensors are small
    results = verify(place)
    for checked in results:
        seen = f"{count(checked.files, 'file')}, {count(checked.numbers, 'number')}"
        typer.echo(f"{visible(checked.name)}: {'DIFFERS' if checked.problems else 'matches its card'} ({seen})")
        for text in checked.problems:
            typer.echo(f"  {visible(text)}")
        for text in checked.notes:
            typer.echo(f"  not checked: {visible(text)}")
        if checked.sha256:
            typer.echo(f"  SHA-256 of evidence.json: {checked.sha256}")
    if any(checked.problems for checked in results):
        raise typer.Exit(1)
