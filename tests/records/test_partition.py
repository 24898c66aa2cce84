"""Test ``partition.json``, site cards and partitions of case lists: round trip, damaged files, folds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from refusals import refused

from medfl.errors import DataError
from medfl.records.datalist import Exclusion
from medfl.records.partition import CasePartition, LocatedExclusion, Partition, PartitionSettings, TestFold
from medfl.records.record import FileRecord
from medfl.records.site_card import SiteCard

SETTINGS = PartitionSettings(
    scheme="dirichlet_class",
    options={"alpha": 0.1 + 0.2, "classes": [0, 2], "strict": True},
    column="ward",
    sites=3,
    seed=7,
    test="k_fold",
    folds=5,
    fold=2,
    val_fraction=0.1,
    stratify=("ward",),
    server_test="official",
    duplicates="drop",
    allow_leaks=("pixels",),
)
PARTITION = Partition(
    dataset="toy",
    public_dataset="other",
    settings=SETTINGS,
    unassigned={"2": 33},
    allowed_leaks=("pixels: 1",),
    warnings=("ä",),
    exclusions=(LocatedExclusion(reason="unreadable", count=4, where="pooled data set"),),
    not_distributed={"validation": 10},
    sha256_by_file={"site-01/datalist.json": "0" * 64, "../P/images.npy": "1" * 64},
)
CARD = SiteCard(
    site="site-01",
    dataset="toy",
    licence="CC0 1.0",
    labels={"0": "benign", "1": "malignant"},
    counts={"training": {"0": 2, "1": 1}, "validation": {"0": 0, "1": 0}},
    class_balance={"0": 0.6667, "1": 0.3333},
    presentation_intents={"FOR PROCESSING": 3},
    array_sha256="2" * 64,
    exclusions=PARTITION.exclusions,
    settings=SETTINGS,
    versions={"medfl": "0", "python": "3.11"},
)
CASES = CasePartition(case_list="dataset.json", scheme="iid", seed=0, cases={"site-01": {"training": 4}})


@pytest.mark.parametrize("record", [PARTITION, CARD, CASES], ids=lambda record: record.NAME)
def test_each_file_returns_the_record_that_was_written(tmp_path: Path, record: FileRecord) -> None:
    record.write(tmp_path / record.NAME)
    assert type(record).read(tmp_path / record.NAME) == record


def test_a_folder_without_the_file_has_no_partition(tmp_path: Path) -> None:
    assert Partition.find(tmp_path) is None
    PARTITION.write(tmp_path / Partition.NAME)
    assert Partition.find(tmp_path) == PARTITION


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"sha256_by_file": []}, "sha256_by_file"),
        ({"patients": ["Doe"]}, "patients"),
        ({"unassigned": {"2": -1}}, "unassigned.2"),
        ({"exclusions": [{"reason": "Doe", "count": 1}]}, "exclusions.0.where"),
        ({"settings": SETTINGS.to_json() | {"test": "Doe"}}, "settings.test"),
        ({"settings": SETTINGS.to_json() | {"fold": None}}, "settings"),
        ({"settings": SETTINGS.to_json() | {"fold": 5}}, "settings"),
        ({"settings": SETTINGS.to_json() | {"test": "fraction"}}, "settings"),
        ({"settings": SETTINGS.to_json() | {"allow_leaks": ["Doe"]}}, "settings.allow_leaks.0"),
    ],
)
def test_the_place_of_the_damage_is_named_and_no_value(tmp_path: Path, change: dict[str, Any], key: str) -> None:
    path = tmp_path / Partition.NAME
    path.write_text(json.dumps(json.loads(PARTITION.to_bytes()) | change))
    with refused(DataError, "damaged_file", path=str(path), key=key) as caught:
        Partition.find(tmp_path)
    assert "Partition again." in str(caught.value)
    assert "Doe" not in str(caught.value)


def test_the_fold_is_part_of_the_settings() -> None:
    assert SETTINGS.test_fold() == TestFold(fold=2, folds=5)
    assert TestFold(fold=2, folds=5).to_json() == {"fold": 2, "folds": 5}
    plain = PartitionSettings(scheme="iid", sites=2, seed=0, test="none", val_fraction=0.0, server_test="none")
    assert plain.test_fold() is None
    with pytest.raises(ValidationError):
        TestFold(fold=5, folds=5)


def test_an_exclusion_counts_no_less_than_nothing() -> None:
    with pytest.raises(ValidationError):
        Exclusion(reason="unreadable", count=-1)
