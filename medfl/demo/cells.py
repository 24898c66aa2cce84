"""Made-up blood cells: every site alone, and all together.

The images are drawn by `medfl.testing.phantoms`: eight kinds of white blood cells in twelve stains; nothing of them is
real. Four sites of about the same size have a few dozen training images each, up to a hundred, and which classes these
are of differs from site to site, down to a few images of a class or none. A site's test images are of its own classes,
in numbers that are as alike as its images allow, and about twice as many as its training images, so that a difference
is told from chance. Alone, a site hardly learns its rare classes; together they are learned from whoever has them. How
many images, sites and rounds there are was chosen on the seed 0 so that this shows, and then looked at with the seeds 1
and 2, where it shows too. It says nothing about data of yours.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from medfl.demo.runs import report, run
from medfl.ingest.prepare import prepare
from medfl.partition.dirichlet_class import dirichlet_class_balanced
from medfl.partition.partition import partition
from medfl.partition.plan import PartitionPlan
from medfl.plugins import load_plugins
from medfl.report.sections.holdings import draw_partition

METHODS = ("local", "fedavg")
SITES, CLASSES, ALPHA, TEST_SHARE = 4, 8, 2.0, 0.85


def cells(out: Path, rounds: int, images: int, seed: int, console: Console) -> Path:
    """From a release of made-up images to a report.

    Args:
        out: Where everything goes.
        rounds: Rounds of each run.
        images: Images per site, on average.
        seed: Of data and runs.
        console: Shows what is done.

    Returns:
        The report.
    """
    data = _prepare(out, images, seed, console)
    options = [
        *("--rounds", str(rounds), "--settings#epochs", "2", "--batch_size", "8", "--settings#evaluate_every", "2"),
        *("--seed", str(seed)),
    ]
    runs = [run("medmnist_classification", method, data, out / "runs" / method, options, console) for method in METHODS]
    return report(runs, out / "report.html", ("accuracy", "balanced_accuracy"), console)


def _prepare(out: Path, images: int, seed: int, console: Console) -> Path:
    """Release, pooled data set and partition, each made unless it is there."""
    downloads, pooled, data = out / "downloads", out / "pooled", out / "data"
    if not data.exists():
        registry = load_plugins()
        release = registry.phantom("medmnist")(downloads, SITES * images, classes=CLASSES, seed=seed)
        console.print(f"Made-up blood cells, as a MedMNIST file: {release}")
        console.print(f"\nmedfl prep medmnist --source {downloads} --flag {release.stem} --out {pooled}")
        prepare(registry.dataset("medmnist")(source=downloads, flag=release.stem), pooled, force=True)
        least = images // 3
        console.print(
            f"medfl partition {pooled} --out {data} --scheme dirichlet_class_balanced --alpha {ALPHA} --sites {SITES} "
            f"--min-size {least} --test class_balanced --test-fraction {TEST_SHARE} --seed {seed}"
        )
        options = {"alpha": ALPHA, "min_size": least}
        plan = PartitionPlan(
            "dirichlet_class_balanced", SITES, seed, options, test="class_balanced", test_fraction=TEST_SHARE
        )
        draw_partition(data, partition(pooled, data, plan, dirichlet_class_balanced))
    return data
