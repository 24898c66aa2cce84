"""Pooled data sets to partition, and reading what came of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from medfl.data.datalists import Datalist, make_records, read_datalist, write_datalist
from medfl.data.sites import site_names
from medfl.records.datalist import Exclusion
from medfl.records.partition import Partition
from medfl.records.site_card import SiteCard


def write_pool(folder: Path, change=None, images=None, exclusions: tuple[Exclusion, ...] = ()) -> Path:
    """100 training, 10 validation and 20 test images of three classes; `change` edits the splits."""
    folder.mkdir()
    if images is None:
        images = np.random.default_rng(0).integers(0, 256, (130, 4, 4), dtype=np.uint8)
    np.save(folder / "images.npy", images)
    splits = {
        "training": make_records(range(100), [row % 3 for row in range(100)], "train"),
        "validation": make_records(range(100, 110), [0] * 10, "val"),
        "test": make_records(range(110, 130), [row % 3 for row in range(20)], "test"),
    }
    if change is not None:
        change(splits)
    datalist = Datalist("toy", "images.npy", 3, licence="CC0 1.0", splits=splits, exclusions=exclusions)
    write_datalist(folder, datalist)
    return folder


def partition_of(folder: Path) -> Partition:
    return Partition.read(folder / Partition.NAME)


def card_of(folder: Path, site: str) -> SiteCard:
    return SiteCard.read(folder / site / SiteCard.NAME)


def rows_of(folder: Path) -> dict[str, list[int]]:
    """Name of each site to the rows of all its splits."""
    return {
        name: sorted(record["image"] for part in read_datalist(folder / name).splits.values() for record in part)
        for name in site_names(folder)
    }
