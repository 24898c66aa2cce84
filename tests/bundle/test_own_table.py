"""Own tables: features and their missing values, the scale from suppressed sums, and a run as a user starts it."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from inference_file import numbers
from monai.bundle import run as monai_run
from refusals import refused

from medfl.data.cohort import load_cohort
from medfl.data.datalists import read_datalist
from medfl.data.features.dataset_scale import dataset_scale
from medfl.data.features.feature_encoding import encode_rows
from medfl.data.features.feature_scale import MIN_KNOWN_VALUES, scale_features, sum_features
from medfl.data.ingest.columns.feature_types import choose_columns
from medfl.data.ingest.columns.table_synthetic import write_release
from medfl.data.sites import load_sites
from medfl.data.table import read_table
from medfl.errors import DataError, SettingsError
from medfl.records.feature_columns import FeatureColumn, FeatureColumns

Medfl = Callable[..., tuple[int, str, str]]

TARGETS = {
    "class:outcome": "multiclass",
    "multilabel:effusion,nodule": "multilabel",
    "number:months": "regression",
    "survival:months,death": "survival",
}
"""Maps each target of the synthetic table to its objective."""

FEATURES = ("--number", "age [years],psa", "--category", "sex,stage")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_release(tmp_path_factory.mktemp("clinical")) / "clinical.csv"


def prepare(medfl: Medfl, table: Path, out: Path, *options: object) -> str:
    words = ("prep", "table", table, "--group-column", "patient", "--site-column", "hospital", *options, "--out", out)
    status, _, err = medfl(*words)
    assert status == 0, err
    return err


def divide(medfl: Medfl, pool: Path, out: Path) -> None:
    scheme = ("--scheme", "by_site", "--column", "site", "--test-fraction", 0.3, "--server-test", "none")
    status, _, err = medfl("partition", pool, "--out", out, *scheme)
    assert status == 0, err


@pytest.mark.parametrize("target", TARGETS)
def test_a_table_is_trained_and_predicted_with_one_scale(
    target: str, table: Path, medfl: Medfl, tmp_path: Path
) -> None:
    prepare(medfl, table, tmp_path / "P", "--target", target, *FEATURES)
    divide(medfl, tmp_path / "P", tmp_path / "D")
    status, _, err = medfl(
        "run", "tabular", "--dataset-dir", tmp_path / "D", "--output-dir", tmp_path / "R", "--rounds", 1
    )
    assert status == 0, err
    home = tmp_path / "R" / "sites" / "north"
    config = json.loads((home / "configs" / "inference.json").read_text())
    assert config["goal"]["name"] == TARGETS[target]
    datalist = read_datalist(tmp_path / "D" / "north")
    assert (config["mean"], config["std"]) == (datalist.extra["feature_mean"], datalist.extra["feature_std"])
    monai_run(
        config_file=str(home / "configs" / "inference.json"), bundle_root=str(home), dataset_dir=str(table),
        output_dir=str(tmp_path / "eval"),
    )  # fmt: skip
    from_table = numbers(tmp_path / "eval" / "predictions.csv")
    rows = [record["image"] for record in datalist.splits["test"]]
    with (home / "predictions.csv").open() as file:
        stored = list(csv.DictReader(file))
    columns = datalist.goal.columns(())
    expected = np.array([[float(row[name]) for name in columns] for row in stored])
    np.testing.assert_allclose(from_table[rows][:, -len(columns) :], expected, rtol=1e-5, atol=1e-6)


def test_test_rows_decide_neither_scale_nor_imputed_values(table: Path, medfl: Medfl, tmp_path: Path) -> None:
    prepare(medfl, table, tmp_path / "P", "--target", "class:outcome", *FEATURES)
    divide(medfl, tmp_path / "P", tmp_path / "D")
    array = np.load(tmp_path / "P" / "images.npy")
    scale = dataset_scale(tmp_path / "D")
    training = [
        record["image"]
        for site in ("north", "south")
        for record in read_datalist(tmp_path / "D" / site).splits["training"]
    ]
    names = read_datalist(tmp_path / "P").extra["features"]
    for place, name in enumerate(names):
        known = array[training, place].astype(np.float64)
        known = known[~np.isnan(known)]
        is_number = name in ("age [years]", "psa")
        assert scale.mean[place] == pytest.approx(known.mean() if is_number else 0.0)
        assert scale.std[place] == pytest.approx(known.std() if is_number else 1.0)
    sites = load_sites(tmp_path / "D", read_datalist(tmp_path / "P").goal, scale.mean, scale.std)
    for name, site in sites.items():
        rows = [record["image"] for record in read_datalist(tmp_path / "D" / name).splits["test"]]
        batch = site.test.batch(torch.arange(len(site.test)))[0].numpy()
        expected = (array[rows] - np.array(scale.mean)) / np.array(scale.std)
        np.testing.assert_allclose(batch, np.nan_to_num(expected, nan=0.0), rtol=1e-4, atol=1e-5)
        assert (batch[np.isnan(array[rows])] == 0).all(), "the mean of the training rows"


def test_sites_that_prepare_apart_share_columns_and_scale(table: Path, medfl: Medfl, tmp_path: Path) -> None:
    with table.open() as file:
        head, *rows = list(csv.reader(file))
    for site in ("north", "south"):
        with (tmp_path / f"{site}.csv").open("w", newline="") as file:
            own = [row for row in rows if row[1] == site]
            if site == "south":
                own[0][head.index("stage")] = "unstaged"
            csv.writer(file).writerows([head, *own])
    first = ("--target", "class:outcome", *FEATURES)
    prepare(medfl, tmp_path / "north.csv", tmp_path / "P-north", *first)
    columns = tmp_path / "P-north" / "columns.json"
    prepare(medfl, tmp_path / "south.csv", tmp_path / "P-south", "--target", "class:outcome", "--columns", columns)
    for site in ("north", "south"):
        divide(medfl, tmp_path / f"P-{site}", tmp_path / f"D-{site}")
        (tmp_path / "D").mkdir(exist_ok=True)
        (tmp_path / "D" / site).symlink_to(tmp_path / f"D-{site}" / site)
    south = read_datalist(tmp_path / "P-south")
    features = south.extra["features"]
    assert np.load(tmp_path / "P-south" / "images.npy")[0, features.index("stage=(other)")] == 1
    known = []
    for site in ("north", "south"):
        array, lists = np.load(tmp_path / f"P-{site}" / "images.npy"), read_datalist(tmp_path / "D" / site)
        known.append(array[[record["image"] for record in lists.splits["training"]], features.index("psa")])
    psa = np.concatenate(known).astype(np.float64)
    assert dataset_scale(tmp_path / "D").mean[features.index("psa")] == pytest.approx(np.nanmean(psa))
    assert dataset_scale(tmp_path / "D").std[features.index("psa")] == pytest.approx(np.nanstd(psa))
    status, _, err = medfl(
        "run", "tabular", "--dataset-dir", tmp_path / "D", "--output-dir", tmp_path / "R", "--rounds", 1
    )
    assert status == 0, err


def test_sites_with_other_features_are_refused(table: Path, medfl: Medfl, tmp_path: Path) -> None:
    for site, category in (("north", "sex,stage"), ("south", "sex")):
        words = ("--target", "class:outcome", "--number", "age [years]", "--category", category)
        prepare(medfl, table, tmp_path / f"P-{site}", *words)
        divide(medfl, tmp_path / f"P-{site}", tmp_path / f"D-{site}")
        (tmp_path / "D").mkdir(exist_ok=True)
        (tmp_path / "D" / site).symlink_to(tmp_path / f"D-{site}" / site)
    with refused(DataError, "different_features", site="south"):
        dataset_scale(tmp_path / "D")
    goal = read_datalist(tmp_path / "D" / "north").goal
    with refused(DataError, "different_features", site="south"):
        load_cohort(tmp_path / "D", goal, [0.0], [1.0])


def made_of(folder: Path, text: str) -> Any:
    (folder / "t.csv").write_text(text)
    return read_table(folder / "t.csv")


def test_features_of_a_number_and_a_category(tmp_path: Path) -> None:
    cells = ["1.5;a", ";b", "2;", "3;c"]
    columns = FeatureColumns(
        columns=(
            FeatureColumn(name="x", kind="number", unit="mm"),
            FeatureColumn(name="k", kind="category", categories=("a", "b")),
        )
    )
    assert columns.features == ["x [mm]", "x missing", "k=a", "k=b", "k=(other)", "k missing"]
    assert columns.is_scaled == [True, False, False, False, False, False]
    encoded = encode_rows(made_of(tmp_path, "x;k\n" + "\n".join(cells) + "\n"), columns)
    nan = np.nan
    expected = [[1.5, 0, 1, 0, 0, 0], [nan, 1, 0, 1, 0, 0], [2, 0, 0, 0, 0, 1], [3, 0, 0, 0, 1, 0]]
    np.testing.assert_array_equal(encoded, np.array(expected, dtype=np.float32))


def test_types_follow_from_the_cells_and_rare_categories_are_other(tmp_path: Path) -> None:
    lines = [f"{20 + row},{'abc'[min(row // 5, 2)]},{row % 2},same,{row % 3}" for row in range(12)]
    table = made_of(tmp_path, "age,kind,flag,constant,y\n" + "\n".join(lines) + "\n")
    columns = choose_columns(table, [], [], {"y"}).columns
    assert [(column.name, column.kind, column.categories) for column in columns] == [
        ("age", "number", ()),
        ("kind", "category", ("a", "b")),
        ("flag", "category", ("0", "1")),
    ]
    for number, category, excluded, code, kind in (
        (["flag"], [], set(), "too_few_values", DataError),
        (["y"], [], {"y"}, "duplicate_column", SettingsError),
        ([], [], {"y", "age", "kind", "flag"}, "no_features", DataError),
    ):
        with refused(kind, code):
            choose_columns(table, number, category, excluded)


@pytest.mark.parametrize("name", ["$x", "@x", "%x", "  $x"])
def test_names_that_a_bundle_would_evaluate_are_refused(name: str, tmp_path: Path) -> None:
    table = made_of(tmp_path, "k,y\n" + f"{name},1\nb,0\n" * 6)
    with refused(DataError, "unsafe_name", column="k"):
        choose_columns(table, [], ["k"], {"y"})


def test_sums_of_sites_equal_those_of_their_pooled_rows() -> None:
    rows = np.random.default_rng(0).normal(1000.0, 2.0, (60, 2))
    rows[5:20, 1] = np.nan
    columns = FeatureColumns(columns=(FeatureColumn(name="x", kind="number"),))
    scale = scale_features([sum_features(rows[:25]), sum_features(rows[25:])], columns)
    assert scale.mean == pytest.approx([rows[:, 0].mean(), 0.0], abs=1e-9)
    assert scale.std == pytest.approx([rows[:, 0].std(), 1.0], abs=1e-9)


def test_sums_of_few_rows_are_suppressed() -> None:
    rows = np.random.default_rng(1).normal(size=(30, 2))
    rows[MIN_KNOWN_VALUES - 1 :, 0] = np.nan
    sums = sum_features(rows)
    assert sums.count.tolist() == [0, 30]
    assert (sums.mean[0], sums.squares[0]) == (0.0, 0.0)
    columns = FeatureColumns(columns=(FeatureColumn(name="x", kind="number"),))
    with refused(DataError, "too_few_values", features=["x"]):
        scale_features([sums], columns)
    full = np.zeros((MIN_KNOWN_VALUES, 2))
    full[:, 0] = np.arange(MIN_KNOWN_VALUES)
    assert scale_features([sums, sum_features(full)], columns).mean[0] == full[:, 0].mean(), "the first adds nothing"
