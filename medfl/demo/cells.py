"""A federation from nothing: made-up blood cells, prepared, partitioned, trained, compared, and on one page."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from medfl.bundle_folders import find_bundle
from medfl.data.medmnist import prepare
from medfl.data.phantom_release import FLAG, write_release
from medfl.errors import MedflError
from medfl.partition.dirichlet_class_balanced import dirichlet_class_balanced
from medfl.partition.plan import Plan, partition
from medfl.report.compare import compare, to_markdown
from medfl.report.page import write_report
from medfl.report.runs import read_run

METHODS = ("local", "fedavg")
SITES, ALPHA = 4, 1.0


def demo(out: Path, rounds: int = 16, images: int = 120) -> Path:
    """Make a release of made-up images in `out`, and go the whole way to a report; what is there is continued.

    Args:
        out: Where everything goes.
        rounds: Rounds of each run.
        images: Images per site, on average.

    Returns:
        The report.

    Raises:
        MedflError: If a run fails.
    """
    console = Console(highlight=False, soft_wrap=True)
    bundle = find_bundle("medmnist_classification")
    data = _prepare(out, images, console)
    runs = [_run(method, bundle, data, out / "runs" / method, rounds, console) for method in METHODS]
    console.print(
        "\n" + to_markdown(compare([read_run(run) for run in runs], ["accuracy", "balanced_accuracy"], "local"))
    )
    page = write_report(runs, out / "report.html")
    console.print(f"\nWho gains, site by site: open {page}")
    return page


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


def _run(method: str, bundle: Path, data: Path, run: Path, rounds: int, console: Console) -> Path:
    configs = [str(bundle / "configs" / name) for name in ("train.json", "federate.json")]
    command = [
        *(sys.executable, "-m", "monai.bundle", "run", "--config_file", str(configs)),
        *("--bundle_root", str(bundle), "--dataset_dir", str(data.resolve()), "--output_dir", str(run.resolve())),
        *("--method", method, "--rounds", str(rounds), "--epochs", "2", "--batch_size", "8"),
        *("--workers", str(min(2, os.cpu_count() or 1))),
    ]
    console.print(f"\n{shlex.join(['python', *command[1:]])}")
    quiet = {"PYTHONWARNINGS": "ignore::UserWarning:monai.bundle.scripts"}  # MONAI warns of any bundle, also of ours
    if subprocess.run(command, check=False, env=os.environ | quiet).returncode != 0:
        raise MedflError(f"The run of '{method}' failed; its messages are above.")
    return run
