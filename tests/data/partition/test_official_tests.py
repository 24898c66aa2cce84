"""Test official test sets: each site gets its part of the pooled test split, by a column."""

from __future__ import annotations

import numpy as np
import pytest
from pools import partition_of, rows_of, write_pool
from refusals import refused

from medfl.data.datalists import read_datalist
from medfl.data.partition.by_column import by_site
from medfl.data.partition.partition import partition
from medfl.data.partition.plan import PartitionPlan
from medfl.errors import DataError, SettingsError

CENTRES = ("north", "south / east", "west")


def with_centres(splits):
    for records in splits.values():
        for record in records:
            record["centre"] = CENTRES[record["image"] % 3]


def plan(**changes):
    return PartitionPlan("by_site", column="centre", **{"test": "official", "server_test": "none"} | changes)


def test_each_site_gets_its_part(tmp_path):
    pool = write_pool(tmp_path / "P", with_centres)
    written = partition(pool, tmp_path / "out", plan(), by_site)
    assert set(written) == {"north", "south-east", "west"}
    for number, name in enumerate(("north", "south-east", "west")):
        datalist = read_datalist(tmp_path / "out" / name)
        assert [record["image"] for record in datalist.splits["test"]] == [
            r for r in range(110, 130) if r % 3 == number
        ]
        assert [record["image"] for record in datalist.splits["training"]] == list(range(number, 100, 3))
        assert datalist.splits["validation"] == []
    made = partition_of(tmp_path / "out")
    assert made.settings.test == "official"
    assert made.not_distributed == {"validation": 10}
    assert not (tmp_path / "out" / "global").exists()


def test_validation_images_come_out_of_training(tmp_path):
    pool = write_pool(tmp_path / "P", with_centres)
    written = partition(pool, tmp_path / "out", plan(val_fraction=0.25), by_site)
    counts = {name: [len(part) for part in datalist.splits.values()] for name, datalist in written.items()}
    assert counts == {"north": [25, 9, 7], "south-east": [25, 8, 6], "west": [25, 8, 7]}


def test_images_that_are_alike_stay_where_the_release_has_them(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (130, 4, 4), dtype=np.uint8)
    images[1], images[111] = images[0], images[5]
    pool = write_pool(tmp_path / "P", with_centres, images)
    with refused(DataError, "data_leak", what="training", held="a site's test set", counts={"pixels": 1}):
        partition(pool, tmp_path / "out", plan(), by_site)
    partition(pool, tmp_path / "out", plan(allow_leaks=("pixels",)), by_site)
    rows = rows_of(tmp_path / "out")
    assert {0, 111} & set(rows["north"]) == {0, 111}
    assert 1 in rows["south-east"]
    assert partition_of(tmp_path / "out").allowed_leaks == (
        "pixels: 1 training image identical to images of a site's test set",
    )
    dropped = partition(pool, tmp_path / "less", plan(duplicates="drop"), by_site)
    assert 5 not in [record["image"] for record in dropped["west"].splits["training"]]
    reasons = [entry.reason for entry in partition_of(tmp_path / "less").exclusions]
    assert reasons == ["the same image or patient is in a site's test set"]


def test_sites_without_training_images_are_refused_and_without_tests_reported(tmp_path):
    def strange(splits):
        with_centres(splits)
        splits["test"][0]["centre"] = "elsewhere"

    with refused(DataError, "unknown_site", sites=["elsewhere"], column="centre"):
        partition(write_pool(tmp_path / "P", strange), tmp_path / "out", plan(), by_site)

    def fewer(splits):
        with_centres(splits)
        splits["test"] = [record for record in splits["test"] if record["centre"] != "west"]

    partition(write_pool(tmp_path / "Q", fewer), tmp_path / "out", plan(sites=3), by_site)
    assert any("1 sites have no test images: west" in line for line in partition_of(tmp_path / "out").warnings)


@pytest.mark.parametrize(
    ("changes", "code", "fields"),
    [
        ({"column": None}, "missing_setting", {"setting": "column", "needed_by": "test"}),
        ({"server_test": "official"}, "incompatible_settings", {"settings": ["test", "server_test"]}),
    ],
)
def test_impossible_plans_are_refused(changes, code, fields):
    with refused(SettingsError, code, **fields):
        PartitionPlan(**{"scheme": "by_site", "column": "centre", "test": "official", "server_test": "none"} | changes)
