"""``medfl demo``: a small federation on made-up images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    out: Annotated[Path, typer.Option(help="Folder for the cohort and the runs.")] = Path("demo"),
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each run.")] = 8,
    images: Annotated[int, typer.Option(min=20, help="Images per site.")] = 120,
) -> None:
    """Make a phantom cohort, train it alone and together, and print who gains."""
    from medfl.demo import demo

    demo(out, rounds, images)
