"""Test public data with classes that differ from the sites': matched by name, by a map, or refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refused

from medfl.cli.main import main
from medfl.data.cohort import Cohort, load_cohort
from medfl.data.datalists import Datalist, make_records, write_datalist
from medfl.data.partition.iid import iid
from medfl.data.partition.partition import partition
from medfl.data.partition.plan import PartitionPlan
from medfl.errors import DataError, MedflError, SettingsError
from medfl.objectives import Multiclass

BUNDLE = Path(__file__).parents[2] / "bundles" / "mammography_classification"
CLASSES = ("normal", "benign", "malignant")
SCALE = ((0.5,), (0.5,))


def pool(folder: Path, classes: tuple[str, ...], labels: list[int], named: bool = True, seed: int = 0) -> Path:
    """Write a pooled data set of 10 x 10 pixels with the given labels."""
    folder.mkdir()
    images = np.random.default_rng(seed).integers(0, 256, (len(labels), 10, 10), dtype=np.uint8)
    np.save(folder / "images.npy", images)
    names = {str(number): name for number, name in enumerate(classes)} if named else {}
    splits = {"training": make_records(range(len(labels)), labels, "p")}
    write_datalist(folder, Datalist(folder.name, "images.npy", len(classes), names, splits=splits))
    return folder


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    """Two sites with normal, benign and malignant images."""
    partition(pool(tmp_path / "films", CLASSES, [0, 1, 2] * 8), tmp_path / "D", PartitionPlan("iid", 2), iid)
    return tmp_path / "D"


def load(sites: Path, classes: tuple[str, ...], label_map: Any = None, named: bool = True) -> Cohort:
    pool(sites.parent / "lesions", classes, [0, 1, 1, 0, 1], named, seed=1)
    return load_cohort(sites, Multiclass(3), *SCALE, public="../lesions", label_map=label_map)


@pytest.mark.parametrize(
    ("classes", "label_map", "labels"),
    [
        (("benign", "malignant"), None, [1, 2, 2, 1, 2]),
        (("malignant", "normal"), None, [2, 0, 0, 2, 0]),
        (("malignant", "benign", "normal"), None, [2, 1, 1, 2, 1]),
        (CLASSES, None, [0, 1, 1, 0, 1]),
        (("B", "M"), {"B": "benign", "M": "malignant"}, [1, 2, 2, 1, 2]),
        (("B", "M"), {"B": None, "M": "malignant"}, [2, 2, 2]),
        (("benign", "malignant"), {"benign": "normal", "malignant": "malignant"}, [0, 2, 2, 0, 2]),
        (("cyst", "mass", "other", "text"), {"cyst": "benign", "mass": "benign", "other": None, "text": None}, [1] * 5),
    ],
)
def test_a_class_becomes_the_sites_class(
    sites: Path, classes: tuple[str, ...], label_map: Mapping[str, str | None] | None, labels: list[int]
) -> None:
    cohort = load(sites, classes, label_map)
    assert cohort.public is not None
    assert cohort.public.train.class_labels.tolist() == labels
    assert cohort.public.classes == CLASSES
    assert cohort.label_map == (label_map or {name: name for name in classes})
    images, _ = cohort.public.train.batch(torch.arange(len(labels)))
    kept = [row for row, label in enumerate([0, 1, 1, 0, 1]) if (label_map or {}).get(classes[label], "") is not None]
    expected = np.load(sites.parent / "lesions" / "images.npy")[kept] / 255 * 2 - 1
    np.testing.assert_allclose(images[:, 0].numpy(), expected, atol=1e-6)


def test_another_map_is_other_data(sites: Path) -> None:
    """A run that is resumed with another map would not be the same run."""
    plain = load(sites, ("benign", "malignant"))
    label_map = {"benign": "benign", "malignant": "malignant"}
    again = load_cohort(sites, Multiclass(3), *SCALE, public="../lesions", label_map=label_map)
    other = load_cohort(sites, Multiclass(3), *SCALE, public="../lesions", label_map=label_map | {"benign": "normal"})
    assert again.digest() == plain.digest() != other.digest()


@pytest.mark.parametrize(
    ("classes", "label_map", "kind", "code", "fields"),
    [
        (("B", "M"), None, DataError, "missing_label_map", {"found": ["B", "M"], "expected": list(CLASSES)}),
        (("B", "M"), {"B": "benign"}, SettingsError, "unmapped_classes", {"classes": ["M"]}),
        (("B", "M"), {"B": "benign", "N": None}, SettingsError, "unknown_class", {"data": "public", "name": "N"}),
        (
            ("B", "M"),
            {"B": "bening", "M": None},
            SettingsError,
            "unknown_class",
            {"data": "sites", "name": "B", "target": "bening"},
        ),
        (
            ("B", "M"),
            {"B": 1, "M": None},
            SettingsError,
            "unknown_class",
            {"data": "sites", "name": "B", "target": "1"},
        ),
        (("B", "M"), {0: "benign"}, SettingsError, "unknown_class", {"data": "public", "name": "0"}),
        (("B", "M"), "B", SettingsError, "wrong_setting_type", {"setting": "label_map", "found": "str"}),
    ],
)
def test_what_is_not_said_is_refused(
    sites: Path, classes: tuple[str, ...], label_map: Any, kind: type[MedflError], code: str, fields: dict[str, Any]
) -> None:
    with refused(kind, code, **fields):
        load(sites, classes, label_map)


def test_the_message_shows_a_map(sites: Path) -> None:
    with refused(DataError, "missing_label_map") as error:
        load(sites, ("benign", "mass"))
    assert "\"{'benign': 'benign', 'mass': 'normal'}\"; None leaves" in str(error.value)


def test_the_message_suggests_the_nearest_class(sites: Path) -> None:
    with refused(SettingsError, "unknown_class") as error:
        load(sites, ("B", "M"), {"B": "bening", "M": None})
    assert "Did you mean 'benign'" in str(error.value)


def test_numbers_are_no_names(tmp_path: Path) -> None:
    """Class 1 of two unnamed classes need not be class 1 of three."""
    partition(
        pool(tmp_path / "films", CLASSES, [0, 1, 2] * 8, named=False), tmp_path / "D", PartitionPlan("iid", 2), iid
    )
    with refused(DataError, "missing_label_map", found=["0", "1"], expected=["0", "1", "2"]):
        load(tmp_path / "D", ("a", "b"), named=False)


def test_a_map_needs_public_data(sites: Path) -> None:
    with refused(SettingsError, "incompatible_settings", settings=["label_map", "public"]):
        load_cohort(sites, Multiclass(3), *SCALE, label_map={"B": "benign"})


def test_a_run_learns_from_public_data_with_fewer_classes(sites: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pool(sites.parent / "lesions", ("B", "M"), [0, 1] * 6, seed=1)
    words = ["run", BUNDLE, "--dataset-dir", sites, "--output-dir", sites.parent / "run", "--rounds", 1, "--epochs", 1]
    words += ["--method", "pfedcdp", "--public", "../lesions", "--label-map", "{'B': 'benign', 'M': 'malignant'}"]
    with pytest.raises(SystemExit) as ended:
        main([*map(str, words), "--method-args.refine", "{'epochs': 1, 'probe_epochs': 1}"])
    error = capsys.readouterr().err
    assert ended.value.code == 0, error
    assert "Classes of the public data: 'B' is 'benign', 'M' is 'malignant'." in error
    record = json.loads((sites.parent / "run" / "run.json").read_text())
    assert record["provenance"]["data"]["label_map"] == {"B": "benign", "M": "malignant"}
