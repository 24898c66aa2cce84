"""Made-up blood cells: every site alone, and all together."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from medfl.data.medmnist import prepare
from medfl.data.phantom_release import FLAG, write_release
from medfl.demo.runs import report, run
from medfl.partition.dirichlet_class_balanced import dirichlet_class_balanced
from medfl.partition.plan import Plan, partition

METHODS = ("local", "fedavg")
SITES, ALPHA = 4, 1.0


def cells(out: Path, rounds: int, images: int, console: Console) -> Path:
    """From a release of made-up images to a report.

    Args:
        out: Where everything goes.
        rounds: Rounds of each run.
        images: Images per site, on average.
        console: Shows what is done.

    Returns:
        The report.
    """
    data = _prepare(out, images, console)
    options = ("--rounds", str(rounds), "--epochs", "2", "--batch_size", "8")
    runs = [run("medmnist_classification", method, data, out / "runs" / method, options, console) for method in METHODS]
    return report(runs, out / "report.html", ("accuracy", "balanced_accuracy"), console)


def _prepare(out: Path, images: int, console: Console) -> Path:
    """Release, pooled data set and partition, each made unless it is there."""
    downloads, pooled, data = out / "downloads", out / "pooled", out / "data"
    if not data.exists():
        console.print(f"Made-up blood cells, as a MedMNIST file: {write_release(downloads, SITES * images)}")
        console.print(f"\nmedfl prep medmnist --source {downloads} --flag {FLAG} --out {pooled}")
        prepare(downloads, FLAG, pooled, force=True)
        console.print(
            f"medfl partition {pooled} --out {data} --scheme dirichlet_class_balanced --alpha {ALPHA} --sites {SITES} "
            f"--min-size {images // 6} --test-fraction 0.5"
        )
        options = {"alpha": ALPHA, "min_size": images // 6}
        plan = Plan("dirichlet_class_balanced", SITES, options=options, test_fraction=0.5)
        partition(pooled, data, plan, dirichlet_class_balanced)
    return data
