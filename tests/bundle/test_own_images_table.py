"""Own images with columns of their table as further inputs: preparation, scale, runs, inference and refusals."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from images_with_table import write_images, write_table
from inference_file import numbers
from monai.bundle import run as monai_run
from refusals import refused

from medfl.bundle.data_fit import check_fit
from medfl.data.arrays import ArrayDataset
from medfl.data.cohort import load_cohort
from medfl.data.datalists import Datalist, read_datalist, write_datalist
from medfl.data.features.dataset_scale import dataset_scale
from medfl.data.inference import load_images
from medfl.data.sites import dataset_value, load_site
from medfl.errors import DataError
from medfl.objectives import Multiclass

Medfl = Callable[..., tuple[int, str, str]]

BUNDLES = Path(__file__).parents[2] / "bundles"
FEATURES = ["age [years]", "age missing", "sex=f", "sex=m", "sex=(other)", "sex missing"]


def read_rows(table: Path) -> list[dict[str, str]]:
    with table.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def prepare(medfl: Medfl, table: Path, out: Path, *options: object) -> tuple[int, str]:
    columns = ("--image-column", "file", "--group-column", "patient", "--site-column", "hospital", "--size", 16)
    target = () if "--target" in options else ("--target", "class:diagnosis")
    words = ("prep", "folder", table.parent / "images", "--table", table, *columns, *target, *options, "--out", out)
    status, _, err = medfl(*words)
    return status, err


NAMED = ("--number", "age[years]", "--category", "sex")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("own"))


@pytest.fixture
def data(table: Path, medfl: Medfl, tmp_path: Path) -> Path:
    status, err = prepare(medfl, table, tmp_path / "P", *NAMED)
    assert status == 0, err
    assert "missing values: age in 9 of 60 rows" in err
    scheme = ("--scheme", "by_site", "--column", "site", "--test-fraction", 0.3, "--server-test", "none")
    status, _, err = medfl("partition", tmp_path / "P", "--out", tmp_path / "D", *scheme)
    assert status == 0, err
    return tmp_path / "D"


def known_ages(records: list[dict[str, object]]) -> np.ndarray:
    ages = [record["features"][0] for record in records]
    return np.array([age for age in ages if age is not None])


def test_each_record_has_the_features_of_its_row(data: Path, table: Path) -> None:
    pool = read_datalist(data.parent / "P")
    assert pool.extra["features"] == FEATURES
    for record, row in zip(pool.splits["training"], read_rows(table), strict=True):
        age = [float(row["age"]), 0.0] if row["age"] else [None, 1.0]
        assert record["features"] == pytest.approx([*age, float(row["sex"] == "f"), float(row["sex"] == "m"), 0.0, 0.0])
    assert json.loads((data.parent / "P" / "columns.json").read_text())["columns"][0]["name"] == "age"


def test_a_case_is_an_image_with_a_channel_for_each_standardised_feature(data: Path) -> None:
    scale = dataset_scale(data)
    lists = {name: read_datalist(data / name) for name in ("north", "south")}
    training = known_ages([record for datalist in lists.values() for record in datalist.splits["training"]])
    assert scale.mean == pytest.approx([0.0, training.mean(), 0, 0, 0, 0, 0])
    assert scale.std == pytest.approx([1.0, training.std(), 1, 1, 1, 1, 1])
    site = load_site(data / "north", Multiclass(2), scale.mean, scale.std)
    assert (site.shape, site.image_features) == ((7, 16, 16), 6)
    images = np.load(data / "north" / lists["north"].image_array)
    for place, record in enumerate(lists["north"].splits["test"]):
        case = site.test[place]["image"]
        np.testing.assert_allclose(case[0], images[record["image"]] / 255, rtol=1e-6)
        age = record["features"][0]
        expected = 0.0 if age is None else (age - training.mean()) / training.std()
        assert case[1].unique().tolist() == pytest.approx([expected], abs=1e-5)
        assert case[2:, 0, 0].tolist() == record["features"][1:]
    assert (dataset_value(data, "in_channels", 0), dataset_value(data, "image_features", 0)) == (1, 6)


def test_a_run_and_its_exported_bundle_read_images_and_table_alike(
    data: Path, table: Path, medfl: Medfl, tmp_path: Path
) -> None:
    pytest.importorskip("medfl_encoders")
    status, _, err = medfl(
        "run", "own_images", "--dataset-dir", data, "--output-dir", tmp_path / "R", "--network-name", "convnet",
        "--rounds", 1,
    )  # fmt: skip
    assert status == 0, err
    home = tmp_path / "R" / "sites" / "north"
    metadata = json.loads((home / "configs" / "metadata.json").read_text())
    inputs = metadata["network_data_format"]["inputs"]["image"]
    assert list(inputs["channel_def"].values()) == ["channel 0", *FEATURES]
    assert "and of a table: age and sex" in metadata["image_classes"]
    monai_run(
        config_file=str(home / "configs" / "inference.json"), bundle_root=str(home), table=str(table),
        dataset_dir=str(table.parent / "images"), output_dir=str(tmp_path / "eval"), image_column="file",
    )  # fmt: skip
    rows = [record["image"] for record in read_datalist(data / "north").splits["test"]]
    with (home / "predictions.csv").open() as file:
        stored = [float(row["p1"]) for row in csv.DictReader(file)]
    from_files = numbers(tmp_path / "eval" / "predictions.csv")[rows][:, -1]
    np.testing.assert_allclose(from_files, stored, rtol=1e-5, atol=1e-6)
    pytest.importorskip("medfl_report")
    status, out, err = medfl(
        "evaluate", home, "--dataset-dir", table.parent / "images", "--table", table, "--image-column", "file",
        "--target", "class:diagnosis", "--out", tmp_path / "E",
    )  # fmt: skip
    assert status == 0, err
    assert "60 images" in out + err


def test_a_methods_generator_is_refused(data: Path, medfl: Medfl, tmp_path: Path) -> None:
    pytest.importorskip("medfl_encoders")
    options = ("--dataset-dir", data, "--output-dir", tmp_path / "R", "--network-name", "convnet", "--rounds", 1)
    status, _, err = medfl("run", "own_images", "--method", "fedtpf", *options)
    assert status == 2
    assert "the cases are images with table features" in err


def test_features_of_the_table_are_not_harmonised(data: Path, medfl: Medfl, tmp_path: Path) -> None:
    pytest.importorskip("medfl_encoders")
    status, _, err = medfl(
        "run", "own_images", "--dataset-dir", data, "--output-dir", tmp_path / "R", "--network-name", "convnet",
        "--train-part", "head", "--harmonise-features", "combat", "--rounds", 1,
    )  # fmt: skip
    assert status == 2
    assert "would also change the features of the table" in err


def test_sites_that_prepare_apart_share_columns_and_scale(
    table: Path, data: Path, medfl: Medfl, tmp_path: Path
) -> None:
    (tmp_path / "apart").mkdir()
    for site in ("north", "south"):
        own = [tuple(row.values()) for row in read_rows(table) if row["hospital"] == site]
        folder = tmp_path / site
        folder.mkdir()
        (folder / "images").symlink_to(table.parent / "images")
        columns = ("--columns", data.parent / "P" / "columns.json")
        status, err = prepare(medfl, write_table(folder / "labels.csv", own), tmp_path / f"{site}-pool", *columns)
        assert status == 0, err
        status, _, err = medfl("partition", tmp_path / f"{site}-pool", "--out", folder / "D", "--sites", 1)
        assert status == 0, err
        (folder / "D" / "site-01").rename(folder / "D" / site)
        (tmp_path / "apart" / site).symlink_to(folder / "D" / site)
    records = [
        record for site in ("north", "south") for record in read_datalist(tmp_path / "apart" / site).splits["training"]
    ]
    scale = dataset_scale(tmp_path / "apart")
    assert scale.mean[:2] == pytest.approx([0.0, known_ages(records).mean()])
    assert scale.std[:2] == pytest.approx([1.0, known_ages(records).std()])
    cohort = load_cohort(tmp_path / "apart", Multiclass(2), scale.mean, scale.std)
    assert cohort.first.features == tuple(FEATURES)


# ---- refusals


def test_columns_beside_masks_are_refused(table: Path, medfl: Medfl, tmp_path: Path) -> None:
    status, err = prepare(medfl, table, tmp_path / "P", *NAMED, "--target", "mask:mask")
    assert status == 2
    assert "networks for masks take images only" in err


def test_a_column_that_names_patients_is_refused(table: Path, medfl: Medfl, tmp_path: Path) -> None:
    status, err = prepare(medfl, table, tmp_path / "P", "--category", "file")
    assert status == 2
    assert "'file' more than once" in err


def test_other_bundles_are_refused_by_name(data: Path) -> None:
    shipped = {name: BUNDLES / name for name in ("own_images", "medmnist_classification")}
    check_fit(BUNDLES / "own_images", data, shipped)
    with refused(DataError, "data_not_supported", found="images with table features with classes") as caught:
        check_fit(BUNDLES / "medmnist_classification", data, shipped)
    assert "Bundles for these: own_images." in str(caught.value)


def test_a_scale_without_the_features_is_refused(data: Path) -> None:
    with refused(DataError, "wrong_normalization_length", name="mean", expected=6, found=0):
        load_site(data / "north", Multiclass(2), [0.5], [0.5])


@pytest.mark.parametrize("wrong", [None, [1.0], [1.0, 0, 0, 0, 0, "f"], [float("inf"), 0, 0, 0, 0, 0], "abcdef"])
def test_a_record_with_other_features_is_refused(data: Path, wrong: object) -> None:
    datalist: Datalist = read_datalist(data / "north")
    datalist.splits["training"][3]["features"] = wrong  # type: ignore[typeddict-item]
    write_datalist(data / "north", datalist)
    with refused(DataError, "wrong_features", record=3, expected=6):
        load_site(data / "north", Multiclass(2), [0.0] * 7, [1.0] * 7)


def test_inference_needs_one_row_for_each_image(data: Path, table: Path, tmp_path: Path) -> None:
    columns = read_datalist(data / "north").extra["columns"]

    def load(path: Path | None) -> object:
        scale = {"mean": [0.0] * 7, "std": [1.0] * 7}
        return load_images(table.parent / "images", 16, 2, 1, Multiclass(2), **scale, columns=columns, table=path)

    with refused(DataError, "missing_table", columns=["age", "sex"]):
        load(None)
    rows = [tuple(row.values()) for row in read_rows(table)]
    with refused(DataError, "missing_table_row", count=2, total=60):
        load(write_table(tmp_path / "short.csv", rows[2:]))
    with refused(DataError, "missing_table_row", count=1, total=60):
        load(write_table(tmp_path / "twice.csv", [*rows, rows[5]]))
    assert len(load(write_table(tmp_path / "reversed.csv", rows[::-1]))) == 60


# ---- data sets


def test_features_of_volumes_and_of_images_in_colour() -> None:
    features = np.array([[1.0, np.nan], [3.0, 4.0]])
    for shape, channels in (((2, 4, 5, 6), 1), ((2, 4, 5, 3), 3)):
        mean, std = [0.0] * channels + [1.0, 2.0], [1.0] * channels + [2.0, 4.0]
        data = ArrayDataset(np.zeros(shape, np.uint8), [0, 1], [0, 1], mean, std, features=features)
        images, _ = data.batch(torch.tensor([1, 0]))
        assert images.shape[:2] == (2, channels + 2)
        expected = torch.tensor([[1.0, 0.5], [0.0, 0.0]])
        assert torch.equal(images[:, channels:].amax(dim=tuple(range(2, images.dim()))), expected)
        assert torch.equal(images[:, channels:].amin(dim=tuple(range(2, images.dim()))), expected)
