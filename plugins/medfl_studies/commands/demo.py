"""``medfl demo``: small federations on made-up images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medfl.utils.imports import quick_imports


def command(
    out: Annotated[Path, typer.Option(help="Folder for the data, the runs and the report.")] = Path("demo"),
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each run.")] = 14,
    images: Annotated[int, typer.Option(min=20, help="Images per hospital, on average; over half for testing.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Of data and runs: another one makes other images.")] = 0,
) -> None:
    """Make blood-cell-like images of six hospitals, prepare and partition them, train alone and together, and report.

    Then the same for 3-D brain maps of four regions with unlike networks, in fewer rounds.

    Example: medfl demo --out demo
    """
    with quick_imports():
        from medfl_studies.demo import demo

    demo(out, rounds, images, seed)
