"""A bundle whose methods use the regions of an atlas, which lies beside the data and so only at the sites."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from medfl.bundle.bundle_folders import shipped_bundles
from medfl.data.ingest.prepare import prepare
from medfl.data.partition.by_column import by_site
from medfl.data.partition.partition import partition
from medfl.data.partition.plan import PartitionPlan
from medfl.testing.synthetic import make_cohort
from medfl_datasets.abide.regions import load_regions
from medfl_datasets.abide.spec import Abide
from medfl_datasets.abide.synthetic import ATLAS_FILE, write_release
from medfl_flare.offer import make_offer
from medfl_flare.offered_bundle import open_offer
from medfl_flare.records.offer import Offer
from medfl_flare.sites.site_file import SiteFile, read_site_file

BUNDLE = "fmri_asd_classification"
FACTS = {"num_classes": 2, "in_channels": 4, "width": 8, "size": 16, "spatial_dims": 3, "rounds": 1}


@pytest.fixture(scope="module")
def brains(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write synthetic maps of two scanning centres into one folder."""
    root = tmp_path_factory.mktemp("brains")
    release = write_release(root / "release", per_centre=6, centres=("NYU", "USM"), size=12)
    prepare(Abide(source=release, size=16, atlas=release / ATLAS_FILE), root / "pool", workers=1)
    plan = PartitionPlan("by_site", column="site", test_fraction=0.4, server_test="none")
    partition(root / "pool", root / "data", plan, by_site)
    return root


def offer_for(site: str) -> Offer:
    return make_offer(shipped_bundles()[BUNDLE], FACTS, "one", [site], 5)


def site_file(folder: Path, site: str, data: Path | None) -> SiteFile:
    folder.mkdir()
    values = {"site": site, "state": str(folder / "state"), "methods": ["fedavg"], "min_count": 1}
    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    lines += [f"[bundles.{BUNDLE}]", *([] if data is None else [f'data = "{data}"'])]
    (folder / "medfl-site.toml").write_text("\n".join(lines) + "\n")
    return read_site_file(folder / "medfl-site.toml")


def first_of(data: Path) -> Path:
    return next(path for path in sorted(data.iterdir()) if (path / "datalist.json").is_file())


def test_a_server_without_data_opens_the_bundle_without_regions(tmp_path: Path) -> None:
    assert open_offer(offer_for("USA"), site_file(tmp_path / "server", "server", None)).task.regions is None


@pytest.mark.parametrize("beside", [None, "AAA"])
def test_a_site_has_the_regions_of_its_own_data(brains: Path, tmp_path: Path, beside: Any) -> None:
    site = first_of(brains / "data")
    own = shutil.copytree(brains / "data", tmp_path / "data") / site.name
    shutil.copytree(brains / "pool", tmp_path / "pool")
    if beside:  # another data set in the hospital's folder
        make_cohort(tmp_path / "other", sites=1, images_per_site=12, classes=2, size=12, seed=1)
        shutil.copytree(tmp_path / "other" / "site-01", tmp_path / "data" / beside)
    opened = open_offer(offer_for(site.name), site_file(tmp_path / "site", site.name, own))
    expected = load_regions(brains / "data")
    assert expected is not None
    assert opened.task.regions is not None
    assert torch.equal(opened.task.regions, expected)
