"""mini-MIAS: what is left out and listed, and what is refused."""

from __future__ import annotations

import csv
import shutil

import numpy as np
import pytest
from prepare_specs import prepare_spec

from medfl.errors import DataError, SettingsError
from medfl_datasets.mias.phantom import SOME, SOME_ROWS, write_film, write_release
from medfl_datasets.mias.spec import Mias


def prepare(source, out, size=8, **options):
    return prepare_spec(Mias, source, out, size=(size, size), **{"workers": 1} | options)


@pytest.fixture
def release(tmp_path):
    """A few films that a test may spoil, with a table of no others."""
    return write_release(tmp_path, edge=8)


def test_what_is_missing_damaged_or_without_a_row_is_left_out_and_listed(release, tmp_path):
    (release / "mdb003.pgm").unlink()
    path = release / "mdb006.pgm"
    path.write_bytes(path.read_bytes()[:40])
    write_film(release, 300)
    messages: list[str] = []
    datalist = prepare(release, tmp_path / "P", size=4, say=messages.append)
    assert len(np.load(tmp_path / "P" / "images.npy")) == sum(map(len, datalist.splits.values())) == len(SOME) - 2
    lines = [number for number, line in enumerate((release / "Info.txt").read_text().splitlines(), 1) if "mdb" in line]
    quarantine = list(csv.reader((tmp_path / "P" / "quarantine.csv").open()))
    assert quarantine[0] == ["table_line", "reason"]
    table = (release / "Info.txt").read_text().splitlines()
    assert [table[int(line) - 1].split()[0] for line, _ in quarantine[1:]] == ["mdb003", "mdb006"]
    assert all(int(line) in lines for line, _ in quarantine[1:])
    assert quarantine[1][1] == "the film is not there"
    assert quarantine[2][1].startswith("the image file is damaged or cut short")
    assert {"reason": "Info.txt has no row for the film", "count": 1} in datalist.extra["exclusions"]
    assert "warning: 1 films were left out: Info.txt has no row for the film" in messages
    assert "warning: 2 images were left out: see quarantine.csv" in messages
    with pytest.raises(DataError, match=r"a complete set of films is required, 1 are missing"):
        prepare(release, tmp_path / "Q", size=4, require_complete=True)
    write_film(release, 3)
    with pytest.raises(DataError, match=r"a complete set of films is required, 1 can't be read: .* lines \d+\."):
        prepare(release, tmp_path / "Q", size=4, require_complete=True)
    assert not (tmp_path / "Q").exists()


def test_a_film_of_another_size_has_no_place_for_its_lesion(release, tmp_path):
    for number in (1, 5, 144):
        write_film(release, number, SOME_ROWS[number], edge=1024)
    write_film(release, 239, edge=512)
    prepare(release, tmp_path / "P", size=4, view="crop")
    reasons = [reason for _, reason in csv.reader((tmp_path / "P" / "quarantine.csv").open())]
    assert sum(reason.startswith("expected a film of 1024 x 1024 pixels, on which") for reason in reasons) == 1 + 2
    assert any("got 512 x 512" in reason for reason in reasons)


def refused(release, message, **options):
    out = release.parent / "refused"
    with pytest.raises(DataError, match=message):
        prepare(release, out, size=4, **options)
    assert not out.exists()


def test_folders_that_are_not_the_data_set(release, tmp_path):
    refused(tmp_path / "absent", r"expected the table Info\.txt of mini-MIAS in .*absent, there is none\. Unpack")
    (release / "Info.txt").write_text("mdb is a word\nbut no row\n")
    refused(release, r"expected rows like 'mdb001 G CIRC B 535 425 197' in .*Info\.txt, there is none")
    (release / "Info.txt").unlink()
    refused(release, r"expected the table Info\.txt of mini-MIAS in .*all-mias, there is none")


def test_films_that_are_not_there_or_there_twice(release):
    shutil.copytree(release, release / "again")
    refused(release, r"expected each film once below .*, 14 of 14 are there several times\. Give the folder of one")
    for path in release.rglob("*.pgm"):
        path.unlink()
    refused(release, r"expected the films mdb001\.pgm, .* below .*all-mias, there are none")
    write_film(release, 322)
    refused(release, r"no film of Info\.txt is there")


def test_a_class_without_a_film(release):
    for number in (144, 216, 239):
        (release / f"mdb{number:03d}.pgm").unlink()
    refused(release, r"no image is left of the classes 'malignant'\.")


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
    refused(release, r"1 of 2 rows of .*Info\.txt can't be understood: line 1\. Expected a film, F or G or D, NORM,")


def test_rows_that_contradict_each_other(release):
    (release / "Info.txt").write_text("mdb001 G NORM\nmdb002 G NORM\nmdb001 G CIRC B 10 10 5\n")
    refused(release, r"rows of .* contradict each other, a film is normal and abnormal: lines 1, 3\.")


def test_settings_that_are_refused(release, tmp_path):
    for options, message in (
        ({"view": "crops"}, "unknown view 'crops'. Did you mean 'crop'"),
        ({"labels": "three"}, "unknown labels 'three'.*three-class"),
        ({"view": "crop", "labels": "three-class"}, "expected --labels benign-malignant for --view crop, got three-cl"),
        ({"view": "crop", "crop_breast": True}, "--crop-breast is for whole films"),
        ({"size": 0}, "expected a height and a width >= 1, got 0 and 0"),
        ({"test_share": 1}, "expected 0 <= test share < 1, got 1"),
        ({"test_share": -0.1}, "expected 0 <= test share < 1"),
        ({"workers": 0}, "expected 1 worker process or more, got 0"),
    ):
        with pytest.raises(SettingsError, match=message):
            prepare(release, tmp_path / "P", **options)
