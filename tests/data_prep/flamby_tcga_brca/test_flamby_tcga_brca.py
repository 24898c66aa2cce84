"""Fed-TCGA-BRCA: FLamby's patients, folds and columns, and input that is refused."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from refusals import refused

from medfl.data.datalists import read_datalist
from medfl.data.ingest.prepare import prepare
from medfl.data.partition.by_column import by_site
from medfl.data.partition.partition import partition
from medfl.data.partition.plan import PartitionPlan
from medfl.data.sites import load_sites
from medfl.errors import DataError
from medfl.objectives import Survival
from medfl.records.datalist import Exclusion
from medfl_datasets.flamby_tcga_brca.files import REGIONS, find_files, read_patients
from medfl_datasets.flamby_tcga_brca.spec import OFFICIAL_COUNTS, FlambyTcgaBrca
from medfl_datasets.flamby_tcga_brca.synthetic import ROWS, UNUSED, write_release

REAL = Path(os.environ.get("MEDFL_DATA", "nowhere"), "flamby", "fed_tcga_brca")

USED = -7
"""Placeholder for the row of a patient who is in a fold."""


@pytest.fixture
def real() -> Path:
    if not REAL.is_dir():
        pytest.skip("needs flamby/fed_tcga_brca in the folder that MEDFL_DATA names")
    return REAL


def test_the_real_files_give_flambys_patients(real):
    """Check that the patients are the table's rows whose patient is in a fold, as in FLamby's code."""
    patients = read_patients(real)
    table, folds = pd.read_csv(real / "brca.csv"), pd.read_csv(real / "train_test_split.csv")
    regions, splits = np.array(patients.regions), np.array(patients.splits)
    for number, region in enumerate(REGIONS):
        for word, split in (("train", "training"), ("test", "test")):
            mine = (regions == region) & (splits == split)
            theirs = table[table.pid.isin(folds.pid[folds.fold2 == f"{word}_{number}"])]
            assert np.array_equal(patients.features[mine], theirs.iloc[:, 1:40].to_numpy(np.float32))
            assert np.array_equal(patients.events[mine], theirs.iloc[:, 40])
            assert np.array_equal(patients.times[mine], theirs.iloc[:, 41])
    counts = [
        [int(((regions == name) & (splits == split)).sum()) for split in ("training", "test")] for name in REGIONS
    ]
    assert counts == [[248, 63], [156, 40], [164, 42], [129, 33], [129, 33], [40, 11]]
    assert patients.unused == 8
    centres = pd.read_csv(real / "centers.csv", keep_default_na=False)
    region_of = dict(zip(centres["TSS Code"], centres["Region"].str.lower()))
    assert [region_of[name.split("-")[1]] for name in patients.names] == patients.regions


def test_a_made_up_release(tmp_path):
    patients = read_patients(write_release(tmp_path))
    assert [patients.regions.count(region) for region in REGIONS] == list(ROWS)
    assert patients.features.shape == (sum(ROWS), 39)
    assert patients.splits.count("test") == sum(ROWS) // 4
    assert patients.unused == UNUSED
    assert patients.times.min() == 0


def test_times_and_events_are_the_last_columns(tmp_path):
    patients = read_patients(write_release(tmp_path))
    table = pd.read_csv(tmp_path / "brca.csv").set_index("pid").loc[patients.names]
    assert patients.events.tolist() == table["E"].tolist()
    assert patients.times.tolist() == table["T"].tolist()
    assert np.array_equal(patients.features, table.to_numpy(np.float32)[:, :-2])


def test_the_split_may_lie_where_flamby_has_it(tmp_path):
    release = write_release(tmp_path)
    (release / "dataset_creation_scripts").mkdir()
    (release / "train_test_split.csv").rename(release / "dataset_creation_scripts" / "train_test_split.csv")
    assert find_files(release)[1].parent.name == "dataset_creation_scripts"


@pytest.mark.parametrize(
    ("file", "row", "column", "text", "code", "fields"),
    [
        ("brca.csv", 0, -1, "days", "wrong_columns", {"path": "brca.csv", "features": 39}),
        ("brca.csv", USED, 5, "many", "not_finite", {"path": "brca.csv", "row": USED}),
        ("brca.csv", USED, 5, "nan", "not_finite", {"path": "brca.csv", "row": USED}),
        ("brca.csv", USED, -2, "2", "invalid_value", {"path": "brca.csv", "columns": ["E", "T"], "rows": [USED]}),
        ("brca.csv", USED, -1, "-3", "invalid_value", {"path": "brca.csv", "columns": ["E", "T"], "rows": [USED]}),
        ("brca.csv", USED, 0, "TCGA-SECRET-0001", "unmatched_patients", {"path": "brca.csv"}),
        (
            "train_test_split.csv",
            4,
            2,
            "train_6",
            "invalid_value",
            {"path": "train_test_split.csv", "column": "fold2", "rows": [5]},
        ),
        ("train_test_split.csv", 4, 0, "TCGA-SECRET-0000", "duplicate_row", {"path": "train_test_split.csv"}),
        ("train_test_split.csv", 4, 0, "TCGA-SECRET-9999", "unmatched_patients", {"path": "brca.csv"}),
    ],
)
def test_wrong_files_are_refused_without_naming_a_patient(tmp_path, file, row, column, text, code, fields):
    path = write_release(tmp_path) / file
    if row == USED:
        row = path.read_text().split("TCGA-SECRET-0007")[0].count("\n")
    lines = path.read_text().splitlines()
    cells = lines[row].split(",")
    cells[column] = text
    path.write_text("\n".join([*lines[:row], ",".join(cells), *lines[row + 1 :]]))
    expected = {"path": str(tmp_path / fields["path"])}
    if fields.get("row") == USED:
        expected["row"] = row + 1
    if fields.get("rows") == [USED]:
        expected["rows"] = [row + 1]
    with refused(DataError, code, **{**fields, **expected}) as error:
        read_patients(tmp_path)
    assert "SECRET" not in f"{error.value} {error.value.fields}"


def test_missing_files_are_named(tmp_path):
    with refused(DataError, "missing_file", folder=str(tmp_path), files=["brca.csv", "train_test_split.csv"]):
        find_files(tmp_path)


def test_the_pooled_data_set(tmp_path):
    lines: list[str] = []
    release = write_release(tmp_path / "in")
    patients = read_patients(release)
    datalist = prepare(FlambyTcgaBrca(source=release), tmp_path / "out", say=lines.append)
    records = sorted((r for part in datalist.splits.values() for r in part), key=lambda record: record["image"])
    assert np.array_equal(np.load(tmp_path / "out" / "images.npy"), patients.features)
    assert [record["centre"] for record in records] == patients.regions
    assert [record["target"][1] for record in records] == patients.events.tolist()
    assert read_datalist(tmp_path / "out").goal == Survival()
    times = np.array([record["target"][0] for record in records])
    assert times.min() == 0.5
    assert np.array_equal(np.argsort(times, kind="stable"), np.argsort(patients.times, kind="stable"))
    assert datalist.exclusions == (Exclusion(reason="the patient is in no fold", count=UNUSED),)
    assert "SECRET" not in "".join(lines) + (tmp_path / "out" / "datalist.json").read_text()


def test_the_real_release_is_complete(real, tmp_path):
    datalist = prepare(FlambyTcgaBrca(source=real), tmp_path / "out")
    assert datalist.extra["deviations"] == []
    zero = [r for part in datalist.splits.values() for r in part if r["target"][0] < 1]
    assert [record["target"] for record in zero] == [[0.5, 0.0]] * 12, "nobody of these died, and all others are later"
    assert "TCGA-" not in (tmp_path / "out" / "datalist.json").read_text().replace("TCGA-BRCA", "")


def test_the_real_regions_are_sites(real, tmp_path):
    """Check that the option allows patients with equal features at several sites and in training and test."""
    prepare(FlambyTcgaBrca(source=real), tmp_path / "pool")
    plan = PartitionPlan("by_site", column="centre", test="official", server_test="none", allow_leaks=("pixels",))
    partition(tmp_path / "pool", tmp_path / "sites", plan, by_site)
    sites, patients = load_sites(tmp_path / "sites", Survival(), mean=(0.0,), std=(1.0,)), read_patients(real)
    assert {name: (len(site.train), len(site.test)) for name, site in sites.items()} == OFFICIAL_COUNTS
    for name, site in sites.items():
        mine = [r == name and split == "training" for r, split in zip(patients.regions, patients.splits)]
        vectors, targets = site.train.batch(torch.arange(len(site.train)))
        assert np.array_equal(vectors, patients.features[mine])
        assert np.array_equal(targets[:, 1], patients.events[mine])
