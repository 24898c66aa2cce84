"""A data set is written whole or not at all, and never over what it is made of."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from own_cohort import ROWS, SOME, make_own, prepared

from medfl.data.datalists import read_datalist
from medfl.data.folders import written_whole
from medfl.data.readers.images import read_image
from medfl.errors import DataError
from medfl.ingest import own_form, own_images
from medfl.ingest.own_images import prepare


@pytest.fixture
def own(tmp_path):
    return make_own(tmp_path)


def test_an_interruption_leaves_nothing_and_what_was_there_stays(own, tmp_path, monkeypatch):
    images, datalist = prepared(own, tmp_path / "P")
    before = sorted(tmp_path.iterdir())

    def interrupted(path, *rest):
        if path.name == ROWS[2][0]:
            raise KeyboardInterrupt
        return read_image(path, *rest)

    monkeypatch.setattr(own_form, "read_image", interrupted)
    for out in ("P", "Q"):
        with pytest.raises(KeyboardInterrupt):
            prepare(*own, SOME, (10, 15), tmp_path / out, force=True)
        assert sorted(tmp_path.iterdir()) == before
    assert read_datalist(tmp_path / "P") == datalist
    np.testing.assert_array_equal(np.load(tmp_path / "P" / "images.npy"), images)


def test_only_a_few_images_are_read_ahead(own, tmp_path, monkeypatch):
    monkeypatch.setattr(own_images.os, "cpu_count", lambda: 2)
    begun: list[Path] = []
    files = [tmp_path / str(number) for number in range(100)]
    each = own_images._each(lambda path: begun.append(path) or path, files, "reading", lambda line: None)
    for done, path in enumerate(each):
        assert path == files[done]
        assert len(begun) <= done + 1 + own_images.AHEAD * 2
    assert sorted(begun) == sorted(files), "two threads may begin in either order"


def test_what_is_read_is_never_replaced(own, tmp_path):
    prepared(own, tmp_path / "P")
    inside = tmp_path / "P" / "scans"
    shutil.copytree(own[0], inside)
    for images, table, out in ((inside, own[1], tmp_path / "P"), (own[0], own[1], tmp_path / "P" / ".." / own[0].name)):
        with pytest.raises(DataError, match="holds what is to be read .* Give another --out"):
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
    with pytest.raises(KeyboardInterrupt), written_whole(tmp_path / "P", force=True) as folder:
        (folder / "datalist.json").write_text("new")
    assert [path.name for path in tmp_path.iterdir()] == ["P"]
    assert (tmp_path / "P" / "datalist.json").read_text() == "old"


def test_a_link_as_out_stays_a_link(own, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "P").symlink_to(tmp_path / "disk")
    prepared(own, tmp_path / "P")
    assert (tmp_path / "P").is_symlink()
    assert (tmp_path / "disk" / "images.npy").exists()
