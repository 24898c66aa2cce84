"""Demo federations on synthetic images: prepare, partition, train, compare, and report."""

from __future__ import annotations

import os
from pathlib import Path

from rich.console import Console

from medfl_studies.demo.brains import run_brain_demo
from medfl_studies.demo.cells import run_cell_demo


def demo(out: Path, rounds: int = 14, images: int = 200, seed: int = 0) -> list[Path]:
    """Run both demos: blood cells of six hospitals, and brain maps at three or four sites with different networks.

    `medfl_studies.demo.cells` and `medfl_studies.demo.brains` describe the synthetic data. All runs compute on the
    CPU, and GPUs are hidden from this process by ``CUDA_VISIBLE_DEVICES``: the tests in the first report compute
    gradients, and with a GPU in sight torch does not support forked workers after that.

    Args:
        out: Output folder; existing results in it are continued.
        rounds: Rounds of the runs on blood cells; the runs on brain maps have half as many.
        images: Mean number of images per hospital. The brain maps have a quarter of this number for each of eight
            scanning centres.
        seed: Seed of all data and runs.

    Returns:
        Paths of the reports.

    Raises:
        MedflError: If a run fails.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    console = Console(highlight=False, soft_wrap=True)
    parts = {
        "Blood cells of six hospitals": run_cell_demo(out, rounds, images, seed, console),
        "Brain maps, different networks that learn from each other": run_brain_demo(
            out / "brains", max(rounds // 2, 1), max(images // 4, 10), seed, console
        ),
    }
    for title, part in parts.items():
        lines = "".join(f"\n  {line}" for line in part.gains)
        console.print(f"\n{title}: open {part.page}{lines}", markup=False)
    return [part.page for part in parts.values()]
