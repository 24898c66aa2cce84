"""A table between machines: the offer names objective, features and scale, and a site with other features refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from loopback import BUNDLE, Loopback, write_site_file

from medfl.bundle.bundle_folders import shipped_bundles
from medfl.data.features.dataset_scale import dataset_scale
from medfl.data.ingest.columns.table_synthetic import write_release
from medfl.data.sites import dataset_value
from medfl_flare.offer import make_offer
from medfl_flare.records.offer import Offer
from medfl_flare.sites.site_file import SiteFile, read_site_file

Medfl = Callable[..., tuple[int, str, str]]

SITES = ("north", "south")


def divide(medfl: Medfl, top: Path, name: str, category: str) -> Path:
    """Prepare the synthetic table with one category, and divide it into two sites."""
    words = ("prep", "table", write_release(top / name) / "clinical.csv", "--target", "survival:months,death")
    words += ("--number", "age [years],psa", "--category", category)
    words += ("--group-column", "patient", "--site-column", "hospital", "--out", top / name / "pool")
    status, _, err = medfl(*words)
    assert status == 0, err
    scheme = ("--scheme", "by_site", "--column", "site", "--test-fraction", 0.3, "--server-test", "none")
    status, _, err = medfl("partition", top / name / "pool", "--out", top / name / "data", *scheme)
    assert status == 0, err
    return top / name / "data"


def offer_of(bundle: Path, data: Path) -> Offer:
    scale = dataset_scale(data)
    names = {"goal": "objective", "in_features": "in_channels", "features": "features", "columns": "columns"}
    values = {name: dataset_value(data, key, None) for name, key in names.items()}
    values |= {"mean": scale.mean, "std": scale.std, "rounds": 1, "batch_size": 16, "seed": 0}
    return make_offer(bundle, values, "one", SITES, 5)


def files_of(top: Path, bundle: Path, data: dict[str, Path]) -> dict[str, SiteFile]:
    own = {"server": None} | {site: folder / site for site, folder in data.items()}
    return {site: read_site_file(write_site_file(top / site, site, bundle, place)) for site, place in own.items()}


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return Path(shutil.copytree(shipped_bundles()["tabular"], tmp_path / BUNDLE))


def test_sites_train_on_the_features_and_the_scale_of_the_offer(medfl: Medfl, bundle: Path, tmp_path: Path) -> None:
    data = divide(medfl, tmp_path, "a", "stage")
    offer = offer_of(bundle, data)
    files = files_of(tmp_path, bundle, dict.fromkeys(SITES, data))
    _, progress = Loopback(files).serve(offer)
    assert (progress.state, progress.missing) == ("finished", {})
    (path,) = (tmp_path / "north" / "state").rglob("configs/inference.json")
    config, scale = json.loads(path.read_text()), dataset_scale(data)
    assert config["goal"] == {"name": "survival"}
    assert config["columns"] == dataset_value(data, "columns", None)
    assert (config["mean"], config["std"]) == (scale.mean, scale.std)


def test_a_site_with_other_features_takes_no_part(medfl: Medfl, bundle: Path, tmp_path: Path) -> None:
    data, other = divide(medfl, tmp_path, "a", "sex"), divide(medfl, tmp_path, "b", "outcome")
    assert dataset_value(data, "in_channels", 0) == dataset_value(other, "in_channels", 0)
    files = files_of(tmp_path, bundle, {"north": data, "south": other})
    _, progress = Loopback(files).serve(offer_of(bundle, data))
    assert list(progress.missing) == ["south"]
