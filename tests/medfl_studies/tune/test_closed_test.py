"""No trial opens a test image: real runs on unreadable test data."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from tune_toys import launch_here, without_seconds

from medfl.data.leaks import find_leaks
from medfl.data.sites import load_site, load_sites
from medfl.errors import DataError
from medfl.objectives import Multiclass
from medfl_studies.tune.search import run_search
from medfl_studies.tune.search_report import write_search_reports

CHANGES = {"tune__trials": 2, "settings__rounds": 2, "tune__rows": {}}
CHANGES |= {"rows": {"near": {"method": "fedprox", "method_args": {"mu": 0.5}}}, "baseline": "near"}

opened: list[str] | None = None
"""Files that were opened, while a test listens."""


def listen(event: str, arguments: tuple) -> None:
    if event == "open" and opened is not None:
        opened.append(str(arguments[0]))


def spoiled(source: Path, folder: Path) -> Path:
    """Make the same cohort with noise as test images, invalid test labels, and an invalid test list."""
    shutil.copytree(source / "cohort", folder / "cohort")
    (folder / "cohort" / "partition.json").unlink()  # its digests would tell that files changed
    images = np.load(folder / "cohort" / "images.npy")
    for path in sorted((folder / "cohort").glob("*/datalist.json")):
        content = json.loads(path.read_text())
        for record in content["test"]:
            images[record["image"]] = np.random.default_rng(record["image"]).integers(0, 255, images.shape[1:])
            record["label"] = 99
        path.write_text(json.dumps(content))
    (folder / "cohort" / "global" / "datalist.json").write_text("no list")
    np.save(folder / "cohort" / "images.npy", images)
    return folder


def test_a_search_is_the_same_whatever_the_test_data_are_and_opens_no_test_list(load, source, tmp_path) -> None:
    global opened
    whole = load(CHANGES, out="whole")
    write_search_reports([whole], [run_search(whole, launch_here)])
    other = spoiled(source, tmp_path / "other")
    with pytest.raises(DataError):
        load_sites(other / "cohort", Multiclass(2))
    blind = load(CHANGES, out="blind", source=other)
    sys.addaudithook(listen)
    opened = []
    try:
        write_search_reports([blind], [run_search(blind, launch_here)])
        names = opened
    finally:
        opened = None
    assert without_seconds(whole.out / "search.json") == without_seconds(blind.out / "search.json")
    assert (whole.out / "small-tuned.yaml").read_bytes() == (blind.out / "small-tuned.yaml").read_bytes()
    assert any(name.endswith("site-01/datalist.json") for name in names), "the hook listens"
    assert not [name for name in names if Path(name).is_relative_to(other / "cohort" / "global")]
    for summary in blind.out.glob("trials/*/*/summary.json"):
        scores = json.loads(summary.read_text())["scores"]
        assert {split for splits in scores.values() for split in splits} == {"val"}
    assert not list(blind.out.rglob("predictions.csv"))


def test_a_closed_test_leaves_the_digest_as_it_is(source: Path) -> None:
    """A ledger identifies a site's data by the digest, whether or not a run opens its test set."""
    folder, scale = source / "cohort" / "site-01", (Multiclass(2), (0.5,), (0.5,))
    opened_site, closed_site = load_site(folder, *scale), load_site(folder, *scale, open_test=False)
    assert len(opened_site.test) > 0
    assert len(closed_site.test) == 0
    assert closed_site.digest == opened_site.digest
    assert [len(closed_site.train), len(closed_site.val)] == [len(opened_site.train), len(opened_site.val)]
    assert set(closed_site.test_metadata.values()) <= {()}


def test_leaks_into_a_closed_test_are_not_looked_for(source: Path, tmp_path: Path) -> None:
    shutil.copytree(source / "cohort", tmp_path / "cohort")
    path = tmp_path / "cohort" / "site-01" / "datalist.json"
    content = json.loads(path.read_text())
    content["test"].append(content["training"][0])
    path.write_text(json.dumps(content))
    names = ["site-01", "site-02"]
    assert {leak.between for leak in find_leaks(tmp_path / "cohort", names)} == {("site-01/training", "site-01/test")}
    assert find_leaks(tmp_path / "cohort", names, open_test=False) == []
