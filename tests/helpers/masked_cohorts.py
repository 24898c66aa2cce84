"""Made-up volumes and ultrasound with masks, or ultrasound with classes, as three sites, and their federations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from medfl.bundle.bundle_folders import shipped_bundles
from medfl.bundle.federation import read_federation
from medfl.data.ingest.prepare import prepare
from medfl.data.partition.by_column import by_site
from medfl.data.partition.partition import partition
from medfl.data.partition.plan import PartitionPlan
from medfl.engine.runs.simulation import SimulationResult
from medfl_datasets.breast_ultrasound import synthetic as ultrasound
from medfl_datasets.breast_ultrasound.spec import BreastUltrasound
from medfl_datasets.decathlon import synthetic as volumes
from medfl_datasets.decathlon.spec import Decathlon

SMALL = {"width": 4, "levels": 2, "batch_size": 2, "epochs": 1, "seed": 3}
"""Options of runs that take seconds."""

WIDTHS = {"A": "unet_narrow", "B": "unet_wide", "busbra_toshiba": "unet_wide"}
"""Sites, of either data set, to networks of unlike widths."""


def make_volumes(place: Path) -> Path:
    """Three scanners of a made-up Decathlon, three volumes each, in ``data``; returns that."""
    release = volumes.write_release(place / "release", cases=9, edge=10)
    spec = Decathlon(
        source=release, size=(12, 12, 12), table=release / volumes.TABLE, site_column="scanner", name="made up"
    )
    prepare(spec, place / "pool", workers=1)
    plan = PartitionPlan("by_site", column="site", test_fraction=0.34, server_test="none")
    partition(place / "pool", place / "data", plan, by_site)
    return place / "data"


def make_lesions(place: Path, target: str = "mask") -> Path:
    """Three sources of made-up ultrasound with the split of its table, in ``data``; returns that."""
    release = ultrasound.write_release(place / "release")
    prepare(BreastUltrasound(source=release, size=(16, 16), target=target), place / "pool", workers=1)
    plan = PartitionPlan("by_site", column="site", test="official", server_test="none")
    partition(place / "pool", place / "data", plan, by_site)
    return place / "data"


MAKERS = {"volume_segmentation": make_volumes, "lesion_segmentation": make_lesions}
"""Bundle to what makes data for it."""


def federate(bundle: str, data: Path, out: Path, method: str, **options: Any) -> SimulationResult:
    """A small run of a bundle."""
    values = {"dataset_dir": str(data), "output_dir": str(out), "method": method, "rounds": 1, "device": "cpu"}
    root = shipped_bundles()[bundle]
    return read_federation(root, {"bundle_root": str(root)} | values | SMALL | options).simulate()
