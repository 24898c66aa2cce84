"""Command ``medfl demo``: small federations on synthetic images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medfl.utils.imports import quick_imports


def command(
    out: Annotated[Path, typer.Option(help="Folder for the data, the runs and the report.")] = Path("demo"),
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each run.")] = 14,
    images: Annotated[
        int, typer.Option(min=20, help="Mean number of images per hospital; more than half are test images.")
    ] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Seed of data and runs; another seed makes other images.")] = 0,
) -> None:
    """Train on synthetic images of six hospitals, locally and federated, and write a report.

    The images look like blood cells; the demo prepares and partitions them first. It then repeats the steps in fewer
    rounds with synthetic 3-D brain maps at sites whose networks differ.

    Example: medfl demo --out demo
    """
    with quick_imports():
        from medfl_studies.demo import demo

    demo(out, rounds, images, seed)
