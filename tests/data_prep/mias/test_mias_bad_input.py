"""mini-MIAS: exclusions that are listed, and input that is refused."""

from __future__ import annotations

import csv
import shutil

import numpy as np
import pytest
from prepare_specs import prepare_spec
from refusals import refused

from medfl.errors import DataError, SettingsError
from medfl.records.datalist import Exclusion
from medfl_datasets.mias.spec import Mias
from medfl_datasets.mias.synthetic import SOME_FILMS, SOME_ROWS, write_film, write_release


def prepare(source, out, size=8, **options):
    return prepare_spec(Mias, source, out, size=(size, size), **{"workers": 1} | options)


@pytest.fixture
def release(tmp_path):
    """Write a few films, and a table of only these, that a test may modify."""
    return write_release(tmp_path, edge=8)


def test_what_is_missing_damaged_or_without_a_row_is_left_out_and_listed(release, tmp_path):
    (release / "mdb003.pgm").unlink()
    path = release / "mdb006.pgm"
    path.write_bytes(path.read_bytes()[:40])
    write_film(release, 300)
    messages: list[str] = []
    datalist = prepare(release, tmp_path / "P", size=4, say=messages.append)
    assert len(np.load(tmp_path / "P" / "images.npy")) == sum(map(len, datalist.splits.values())) == len(SOME_FILMS) - 2
    lines = [number for number, line in enumerate((release / "Info.txt").read_text().splitlines(), 1) if "mdb" in line]
    quarantine = list(csv.reader((tmp_path / "P" / "quarantine.csv").open()))
    assert quarantine[0] == ["table_line", "reason"]
    table = (release / "Info.txt").read_text().splitlines()
    assert [table[int(line) - 1].split()[0] for line, _ in quarantine[1:]] == ["mdb003", "mdb006"]
    assert all(int(line) in lines for line, _ in quarantine[1:])
    assert quarantine[1][1] == "the film has no file"
    assert quarantine[2][1].startswith("the image file is damaged or cut short")
    assert Exclusion(reason="Info.txt has no row for the film", count=1) in datalist.exclusions
    assert "warning: 1 films were left out: Info.txt has no row for the film" in messages
    assert "warning: 2 images were left out: see quarantine.csv" in messages
    with refused(DataError, "unreadable_image", count=1, total=14) as error:
        prepare(release, tmp_path / "Q", size=4, require_complete=True)
    assert "1 are missing" in str(error.value)
    write_film(release, 3)
    with refused(DataError, "unreadable_image", count=1, total=14) as error:
        prepare(release, tmp_path / "Q", size=4, require_complete=True)
    assert f"rows of Info.txt in lines {quarantine[2][0]}." in str(error.value)
    assert not (tmp_path / "Q").exists()


def test_a_film_of_another_size_has_no_place_for_its_lesion(release, tmp_path):
    for number in (1, 5, 144):
        write_film(release, number, SOME_ROWS[number], edge=1024)
    write_film(release, 239, edge=512)
    prepare(release, tmp_path / "P", size=4, view="crop")
    reasons = [reason for _, reason in csv.reader((tmp_path / "P" / "quarantine.csv").open())]
    assert sum(reason.startswith("expected a film of 1024 x 1024 pixels, on which") for reason in reasons) == 1 + 2
    assert any("got 512 x 512" in reason for reason in reasons)


def check_refused(release, code, **fields):
    """Check that preparing fails and writes nothing."""
    out = release.parent / "refused"
    with refused(DataError, code, **fields):
        prepare(release, out, size=4)
    assert not out.exists()


def test_folders_that_are_not_the_data_set(release, tmp_path):
    check_refused(tmp_path / "absent", "missing_file", path=str(tmp_path / "absent" / "Info.txt"))
    (release / "Info.txt").write_text("mdb is a word\nbut no row\n")
    check_refused(release, "empty_table", path=str(release / "Info.txt"))
    (release / "Info.txt").unlink()
    check_refused(release, "missing_file", path=str(release / "Info.txt"))


def test_films_that_are_not_there_or_there_twice(release):
    shutil.copytree(release, release / "again")
    check_refused(release, "duplicate_image", path=str(release), count=14, total=14)
    for path in release.rglob("*.pgm"):
        path.unlink()
    check_refused(release, "no_images", path=str(release))
    write_film(release, 322)
    check_refused(release, "no_images", table="Info.txt")


def test_a_class_without_a_film(release):
    for number in (144, 216, 239):
        (release / f"mdb{number:03d}.pgm").unlink()
    check_refused(release, "class_without_images", classes=["malignant"])


@pytest.mark.parametrize(
    "row",
    [
        "X NORM",
        "G NORMAL",
        "G NORM B",
        "G",
        "G CIRC",
        "G CIRC X 1 2 3",
        "G CIRC B 1 2",
        "G CIRC B 1 2 3 4",
        "G CIRC B 1 2 x",
        "G CIRC B 1024 2 3",
        "G CIRC B 1 -2 3",
        "G CIRC B 1 2 0",
    ],
)
def test_rows_that_are_refused(release, row):
    (release / "Info.txt").write_text(f"mdb001 {row}\nmdb002 G NORM\n")
    check_refused(release, "invalid_row", path=str(release / "Info.txt"), lines=[1], total=2)


def test_rows_that_contradict_each_other(release):
    (release / "Info.txt").write_text("mdb001 G NORM\nmdb002 G NORM\nmdb001 G CIRC B 10 10 5\n")
    check_refused(release, "contradicting_rows", path=str(release / "Info.txt"), lines=[1, 3])


def test_settings_that_are_refused(release, tmp_path):
    for options, code, fields in (
        ({"view": "crops"}, "unknown_choice", {"what": "view", "choice": "crops"}),
        ({"labels": "three"}, "unknown_choice", {"what": "labels", "choice": "three"}),
        (
            {"view": "crop", "labels": "three-class"},
            "incompatible_settings",
            {"settings": ["view", "labels"], "found": "three-class"},
        ),
        ({"view": "crop", "crop_breast": True}, "incompatible_settings", {"settings": ["view", "crop_breast"]}),
        ({"size": 0}, "setting_out_of_range", {"setting": "size", "minimum": 1, "found": [0, 0]}),
        ({"test_share": 1}, "setting_out_of_range", {"setting": "test_share", "found": 1}),
        ({"test_share": -0.1}, "setting_out_of_range", {"setting": "test_share", "found": -0.1}),
        ({"workers": 0}, "setting_out_of_range", {"setting": "workers", "minimum": 1, "found": 0}),
    ):
        with refused(SettingsError, code, **fields):
            prepare(release, tmp_path / "P", **options)
