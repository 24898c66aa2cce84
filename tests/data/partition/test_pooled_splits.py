"""Join the splits of a release before a partition, and draw public data from its training split."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pools import partition_of, rows_of
from refusals import refused

from medfl.cli.main import main
from medfl.data.datalists import read_datalist
from medfl.data.partition.iid import iid
from medfl.data.partition.partition import partition
from medfl.data.partition.plan import PartitionPlan
from medfl.errors import SettingsError
from medfl.types import GLOBAL, PUBLIC


def _labels(folder: Path, split: str) -> list[int]:
    return [record["label"] for record in read_datalist(folder).splits[split]]


def test_joined_splits_give_the_sites_all_images(pool, tmp_path) -> None:
    source = read_datalist(pool)
    everything = {record["image"] for records in source.splits.values() for record in records}
    separate = PartitionPlan("iid", 3, server_test="none")
    partition(pool, tmp_path / "separate", separate, iid)
    assert len(sum(rows_of(tmp_path / "separate").values(), [])) == len(source.splits["training"]) < len(everything)
    partition(pool, tmp_path / "joined", PartitionPlan("iid", 3, server_test="none", join_splits=True), iid)
    assert sorted(sum(rows_of(tmp_path / "joined").values(), [])) == sorted(everything)
    made = partition_of(tmp_path / "joined")
    assert (made.settings.join_splits, made.not_distributed) == (True, {})
    assert not any("at no site" in warning for warning in made.warnings)
    assert not (tmp_path / "joined" / GLOBAL).exists()


def test_public_images_of_the_training_split_are_stratified_and_nobodys(pool, tmp_path) -> None:
    plan = PartitionPlan("iid", 3, public="training", public_images=30, public_test_fraction=0.2)
    partition(pool, tmp_path / "D", plan, iid)
    public = read_datalist(tmp_path / "D" / PUBLIC)
    images = {record["image"] for records in public.splits.values() for record in records}
    assert [len(public.splits[name]) for name in ("training", "validation", "test")] == [24, 0, 6]
    private = sum(rows_of(tmp_path / "D").values(), [])
    assert (images & set(private), len(private)) == (set(), 70)
    counts = np.bincount(_labels(pool, "training"))
    drawn = np.bincount(_labels(tmp_path / "D" / PUBLIC, "training") + _labels(tmp_path / "D" / PUBLIC, "test"))
    assert np.abs(drawn - 0.3 * counts).max() < 1
    made = partition_of(tmp_path / "D").settings
    assert (made.public, made.public_images, made.public_test_fraction) == ("training", 30, 0.2)
    partition(pool, tmp_path / "other", PartitionPlan("iid", 3, 1, public="training", public_images=30), iid)
    assert images != {record["image"] for record in read_datalist(tmp_path / "other" / PUBLIC).splits["training"]}


@pytest.mark.parametrize(
    "options",
    [
        {"public": "training"},
        {"public": "training", "public_images": 0},
        {"public": "validation", "public_images": 5},
        {"join_splits": True},
        {"join_splits": True, "server_test": "none", "test": "official", "column": "site"},
    ],
)
def test_contradictions_are_refused(options) -> None:
    with refused(SettingsError, "incompatible_settings"):
        PartitionPlan("iid", 3, **options)


def test_more_public_images_than_training_images_are_refused(pool, tmp_path) -> None:
    with refused(SettingsError, "too_few_images", expected=100, found=100):
        partition(pool, tmp_path / "D", PartitionPlan("iid", 3, public="training", public_images=100), iid)
    assert not (tmp_path / "D").exists()


def test_the_command_has_both(pool, tmp_path) -> None:
    words = ["partition", str(pool), "--sites", "3", "--server-test", "none", "--join-splits"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--public", "training", "--public-images", "20", "--out", str(tmp_path / "D")])
    assert not ended.value.code
    made = partition_of(tmp_path / "D").settings
    assert (made.join_splits, made.public_images) == (True, 20)
