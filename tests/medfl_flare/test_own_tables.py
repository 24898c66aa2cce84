"""Tables between machines: the offer names objective, features and scale, and a site with other features refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from images_with_table import write_images
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


# ---- images with a table


def divide_images(medfl: Medfl, top: Path, *columns: str) -> Path:
    """Prepare the synthetic images with columns of their table, and divide them into two sites."""
    table = write_images(top / "own")
    words = ("prep", "folder", table.parent / "images", "--table", table, "--image-column", "file", "--size", 16)
    words += ("--target", "class:diagnosis", "--group-column", "patient", "--site-column", "hospital")
    status, _, err = medfl(*words, *columns, "--out", top / "pool")
    assert status == 0, err
    scheme = ("--scheme", "by_site", "--column", "site", "--test-fraction", 0.3, "--server-test", "none")
    status, _, err = medfl("partition", top / "pool", "--out", top / "data", *scheme)
    assert status == 0, err
    return top / "data"


def test_images_with_a_table_are_trained_between_machines(medfl: Medfl, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(shipped_bundles()["own_images"], tmp_path / BUNDLE))
    data = divide_images(medfl, tmp_path / "a", "--number", "age[years]", "--category", "sex")
    other = divide_images(medfl, tmp_path / "b", "--category", "sex")
    scale = dataset_scale(data)
    names = (
        "num_classes",
        "in_channels",
        "size",
        "spatial_dims",
        "image_reading",
        "image_features",
        "features",
        "columns",
    )
    values = {name: dataset_value(data, name, None) for name in names} | {"network_name": "convnet"}
    values |= {"goal": dataset_value(data, "objective", None), "rounds": 1, "batch_size": 16, "seed": 0}
    offer = make_offer(bundle, values | {"mean": scale.mean, "std": scale.std}, "one", SITES, 5)
    _, progress = Loopback(files_of(tmp_path / "one", bundle, dict.fromkeys(SITES, data))).serve(offer)
    assert (progress.state, progress.missing) == ("finished", {})
    (path,) = (tmp_path / "one" / "north" / "state").rglob("configs/inference.json")
    config = json.loads(path.read_text())
    assert (config["image_features"], config["mean"], config["std"]) == (6, scale.mean, scale.std)
    _, progress = Loopback(files_of(tmp_path / "two", bundle, {"north": data, "south": other})).serve(offer)
    assert list(progress.missing) == ["south"]
