"""A federation from nothing: made-up blood cells, two methods through MONAI's own command, a table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from medfl.contract import Meta
from medfl.data.phantoms import make_cohort
from medfl.errors import MedflError, SettingsError

METHODS = ("local", "fedavg")
BUNDLE = Path(__file__).parents[1] / "bundles" / "medmnist_classification"


def demo(out: Path, rounds: int = 8, images: int = 120) -> dict[str, dict[str, float | None]]:
    """Make a phantom cohort in `out`, run the methods on it, print a table.

    Args:
        out: Where cohort and runs go; runs that are there already are continued.
        rounds: Rounds of each run.
        images: Images per site.

    Returns:
        Site (and ``mean``) to the accuracy of each method.

    Raises:
        MedflError: If the bundle is not there, or a run fails.
    """
    if not BUNDLE.is_dir():
        raise SettingsError(f"The demo needs the bundle '{BUNDLE}'; run it from a clone of the repository.")
    console = Console()
    cohort = out / "cohort"
    if not cohort.exists():
        console.print(f"Making a phantom cohort in {cohort}: 4 sites with unlike stains and class balance.")
        make_cohort(cohort, images_per_site=images)
    accuracy: dict[str, dict[str, float | None]] = {}
    for method in METHODS:
        summary = _run(method, cohort, out / "runs" / method, rounds, console)
        for model in summary["scores"].values():
            found = model["test"]["accuracy"]
            for site, value in found["sites"].items() | {"mean": found["mean"]}.items():
                accuracy.setdefault(site, {})[method] = value
    console.print(_table(accuracy, rounds))
    console.print(f"Scores of every round: {out}/runs/*/metrics.csv. A model per site: {out}/runs/*/sites/.")
    return accuracy


def _run(method: str, cohort: Path, run: Path, rounds: int, console: Console) -> Meta:
    configs = [str(BUNDLE / "configs" / name) for name in ("train.json", "federate.json")]
    command = [
        *(sys.executable, "-m", "monai.bundle", "run", "--config_file", str(configs)),
        *("--bundle_root", str(BUNDLE), "--dataset_dir", str(cohort.resolve()), "--output_dir", str(run.resolve())),
        *("--method", method, "--rounds", str(rounds), "--epochs", "3", "--batch_size", "16"),
        *("--num_classes", "4", "--workers", str(min(2, os.cpu_count() or 1))),
    ]
    console.print(f"\n{method}: python {' '.join(command[1:])}", soft_wrap=True)
    quiet = {"PYTHONWARNINGS": "ignore::UserWarning:monai.bundle.scripts"}  # MONAI warns of any bundle, also of ours
    if subprocess.run(command, check=False, env=os.environ | quiet).returncode != 0:
        raise MedflError(f"The run of '{method}' failed; its messages are above.")
    summary: Meta = json.loads((run / "summary.json").read_text())
    return summary


def _table(accuracy: dict[str, dict[str, float | None]], rounds: int) -> Table:
    table = Table(title=f"Test accuracy of the model that each site takes home, after {rounds} rounds")
    table.add_column("site")
    for method in METHODS:
        table.add_column({"local": "alone (local)"}.get(method, f"together ({method})"), justify="right")
    for site in sorted(accuracy, key=lambda name: (name == "mean", name)):
        values = [accuracy[site].get(method) for method in METHODS]
        table.add_row(site, *("-" if value is None else f"{value:.3f}" for value in values))
    return table
