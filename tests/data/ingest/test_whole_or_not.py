"""Test that a data set is written completely or not at all, and never replaces its own input."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest
from own_cohort import SOME, make_own, prepare, prepared
from refusals import refused

from medfl.data.datalists import read_datalist
from medfl.data.folders import atomic_folder
from medfl.data.ingest import folder_format
from medfl.data.ingest.folder_synthetic import ROWS
from medfl.data.ingest.pipeline import work_folder
from medfl.data.readers.images import read_image
from medfl.errors import DataError


@pytest.fixture
def own(tmp_path):
    return make_own(tmp_path)


def test_an_interruption_leaves_nothing_and_what_was_there_stays(own, tmp_path, monkeypatch):
    images, datalist = prepared(own, tmp_path / "P", name="own")
    before = sorted(tmp_path.iterdir())

    def interrupted(path, *rest):
        if path.name == ROWS[2][0]:
            raise KeyboardInterrupt
        return read_image(path, *rest)

    for out in (tmp_path / "P", tmp_path / "Q"):
        with monkeypatch.context() as patch:
            patch.setattr(folder_format, "read_image", interrupted)
            with pytest.raises(KeyboardInterrupt):
                prepare(*own, SOME, (10, 15), out, name="own", force=True)
        assert sorted(tmp_path.iterdir()) == sorted([*before, work_folder(out)]), "what is done waits to go on"
        assert read_datalist(tmp_path / "P") == datalist
        np.testing.assert_array_equal(np.load(tmp_path / "P" / "images.npy"), images)
        lines: list[str] = []
        again = prepared(own, out, name="own", force=True, say=lines.append)
        assert "note: an earlier call was interrupted: 2 of 4 images are done, the rest follows" in lines
        np.testing.assert_array_equal(again[0], images)
        assert again[1] == datalist
        assert not work_folder(out).exists()


def test_what_is_read_is_never_replaced(own, tmp_path):
    prepared(own, tmp_path / "P")
    inside = tmp_path / "P" / "scans"
    shutil.copytree(own[0], inside)
    for images, table, out in ((inside, own[1], tmp_path / "P"), (own[0], own[1], tmp_path / "P" / ".." / own[0].name)):
        with refused(DataError, "output_contains_input", path=str(out)):
            prepare(images, table, SOME, (10, 15), out, force=True)
    assert len(list(inside.rglob("*.png"))) == 3
    assert (own[0] / ROWS[0][0]).exists()


def test_an_interruption_between_the_old_and_the_new_brings_the_old_back(tmp_path, monkeypatch):
    (tmp_path / "P").mkdir()
    (tmp_path / "P" / "datalist.json").write_text("old")
    replace = os.replace

    def interrupted(source, target):
        if source.name == "new":
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt), atomic_folder(tmp_path / "P", force=True) as folder:
        (folder / "datalist.json").write_text("new")
    assert [path.name for path in tmp_path.iterdir()] == ["P"]
    assert (tmp_path / "P" / "datalist.json").read_text() == "old"


def test_a_link_as_out_stays_a_link(own, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "P").symlink_to(tmp_path / "disk")
    prepared(own, tmp_path / "P")
    assert (tmp_path / "P").is_symlink()
    assert (tmp_path / "disk" / "images.npy").exists()
