"""``medfl demo``: a small federation on made-up images."""

from __future__ import annotations

from pathlib import Path

import typer


def command(
    out: Path = typer.Option(Path("demo"), help="Folder for the cohort and the runs."),
    rounds: int = typer.Option(10, min=1, help="Rounds of each run."),
    images: int = typer.Option(120, min=20, help="Images per site."),
) -> None:
    """Make a phantom cohort, train it alone and together, and print who gains."""
    from medfl.demo import demo

    demo(out, rounds, images)
