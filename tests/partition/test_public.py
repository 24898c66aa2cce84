"""Public data: the pooled validation split in a folder of its own, for the server and for nobody else."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from pools import facts_of, rows_of, write_pool

from medfl.cli.main import main
from medfl.data.datalists import FILE, read_datalist
from medfl.data.leaks import find_leaks
from medfl.data.sites import PUBLIC, site_names
from medfl.errors import DataError, SettingsError
from medfl.partition.iid import iid
from medfl.partition.plan import Plan, partition

BUNDLE = Path(__file__).parents[2] / "bundles" / "mammography_classification"


def test_the_validation_split_becomes_public_and_nobodys(pool, tmp_path):
    partition(pool, tmp_path / "D", Plan("iid", 3, public="validation"), iid)
    public = read_datalist(tmp_path / "D" / PUBLIC)
    assert [len(public.splits[name]) for name in ("training", "validation", "test")] == [10, 0, 0]
    assert {record["image"] for record in public.splits["training"]} == set(range(100, 110))
    assert PUBLIC not in site_names(tmp_path / "D")
    assert sorted(sum(rows_of(tmp_path / "D").values(), [])) == list(range(100))
    assert find_leaks(tmp_path / "D", site_names(tmp_path / "D"), PUBLIC) == []
    facts = facts_of(tmp_path / "D")
    assert (facts["public"], facts["sites"], facts["not_distributed"]) == ("validation", 3, {})


def test_a_share_of_it_becomes_public_test_images(pool, tmp_path):
    partition(pool, tmp_path / "D", Plan("iid", 3, public="validation", public_test_fraction=0.3), iid)
    splits = {
        name: {record["image"] for record in records}
        for name, records in read_datalist(tmp_path / "D" / PUBLIC).splits.items()
    }
    assert {name: len(rows) for name, rows in splits.items()} == {"training": 7, "validation": 0, "test": 3}
    assert splits["training"] | splits["test"] == set(range(100, 110))
    assert facts_of(tmp_path / "D")["public_test_fraction"] == 0.3
    with pytest.raises(SettingsError, match=r"share in \[0, 1\) of the public images as their test set, got 1.0"):
        Plan("iid", 3, public="validation", public_test_fraction=1.0)


def test_without_it_the_sites_are_the_same(pool, tmp_path):
    for name, public in (("with", "validation"), ("without", "none")):
        partition(pool, tmp_path / name, Plan("iid", 3, public=public), iid)
    assert not (tmp_path / "without" / PUBLIC).exists()
    assert rows_of(tmp_path / "with") == rows_of(tmp_path / "without")


def test_there_must_be_a_validation_split(tmp_path):
    pool = write_pool(tmp_path / "P", lambda splits: splits.update(validation=[]))
    with pytest.raises(DataError, match="expected a validation split in the pooled data set 'toy' to make it public"):
        partition(pool, tmp_path / "D", Plan("iid", 3, public="validation"), iid)
    assert not (tmp_path / "D").exists()


def test_unknown_words_are_refused():
    with pytest.raises(SettingsError, match="unknown 'test' for public"):
        Plan("iid", 3, public="test")


def test_public_data_with_other_classes_are_refused_before_a_run(tmp_path, capsys):
    """Labels that don't mean the same would teach the server's classifier nonsense."""
    images = np.random.default_rng(0).integers(0, 256, (130, 10, 10), dtype=np.uint8)
    partition(write_pool(tmp_path / "P", images=images), tmp_path / "D", Plan("iid", 3), iid)
    partition(write_pool(tmp_path / "Q", images=images), tmp_path / "E", Plan("iid", 3, public="validation"), iid)
    path = tmp_path / "E" / PUBLIC / FILE
    lists = json.loads(path.read_text())
    path.write_text(json.dumps(lists | {"labels": {"0": "normal", "1": "benign", "2": "malignant"}}))
    words = ["run", BUNDLE, "--dataset-dir", tmp_path / "D", "--output_dir", tmp_path / "run", "--rounds", "1"]
    words += ["--method", "pfedcdp", "--public", path.parent]
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert "expected public data with the classes of the sites, ['0', '1', '2']" in error
    assert "got ['normal', 'benign', 'malignant']" in error
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_network_that_can_not_be_made_is_told_in_its_own_words(tmp_path, capsys):
    """MONAI wraps the error of a configuration's part in one of its own."""
    partition(write_pool(tmp_path / "P"), tmp_path / "D", Plan("iid", 3), iid)
    words = ["run", BUNDLE, "--dataset-dir", tmp_path / "D", "--output_dir", tmp_path / "run", "--rounds", "1"]
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error: ConvNet expected size >= 10, got 4")
