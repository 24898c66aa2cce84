"""Short runs on two of the three sites of a cohort, for tests that evaluate their models at all three."""

from __future__ import annotations

from pathlib import Path

from medfl.bundle.bundle_folders import find_bundle
from medfl.data.datalists import Datalist, read_datalist, write_datalist
from medfl.testing.synthetic import make_cohort
from medfl.workflow import run_bundle

TRAINED = ("site-01", "site-02")
"""Sites that take part in the runs; the cohort also has ``site-03``."""


def make_data(folder: Path, classes: int = 3, size: int = 12) -> Path:
    """Write a cohort of three sites."""
    make_cohort(folder, sites=3, images_per_site=40, classes=classes, size=size, seed=2)
    return folder


def run_on_two_sites(data: Path, out: Path, method: str = "fedavg", **options: object) -> Path:
    """Run a method for one round at two of the sites, and return the run folder."""
    places = {"dataset_dir": str(data), "output_dir": str(out), "method": method, "sites": list(TRAINED)}
    short = {"rounds": 1, "epochs": 1, "device": "cpu"}
    run_bundle(find_bundle("medmnist_classification"), places | short | options, None, False)
    return out


def change_list(folder: Path, **changes: object) -> Datalist:
    """Replace fields of a data list in its folder, and return the new list."""
    from dataclasses import replace

    datalist = replace(read_datalist(folder), **changes)  # type: ignore[arg-type]
    write_datalist(folder, datalist)
    return datalist
