"""What a path of a table may lead to beside a file, odd names of files and folders, and files that change meanwhile.

The rules for paths that lead out of the folder by their text are in `tests/data/ingest/test_own_images.py`.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

import nibabel
import numpy as np
import pytest
from dicom_maker import make_dicom
from hostile_checks import HEAD, bounded, check_discreet, silent
from image_makers import picture
from own_cohort import SOME, prepare
from refusals import refused
from series_maker import hounsfield, write_series

from medfl.bundle.prediction_file import PredictionSaver
from medfl.data.inference import load_images
from medfl.data.ingest.folder_synthetic import write_table
from medfl.data.readers.images import inspect_image, read_image
from medfl.errors import DataError
from medfl.objectives import Multiclass

PIXELS = np.arange(16, dtype=np.uint8).reshape(4, 4) * 16
UNDECODABLE = os.fsdecode(b"\xff\xe9")
"""Name whose bytes are no UTF-8."""


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Write three good images."""
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(2, 5):
        picture(folder / f"{number}.png", PIXELS)
    return folder


def prepared(images: Path, cell: str, out: Path, **options) -> np.ndarray:
    """Prepare an image that a cell names with the three good ones, and return its pixels."""
    rows = [(cell, "a"), ("2", "b"), ("3", "a"), ("4", "b")]
    table = write_table(out.parent / "t.csv", rows, HEAD)
    datalist = prepare(images, table, SOME, (4, 4), out, **options)
    return np.load(out / "images.npy")[datalist.splits["training"][0]["image"]]


def bound(path: Path) -> None:
    """Write a socket; its path is short, since a socket's path is limited to about 100 characters."""
    place = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as end:
            end.bind(path.name)
    finally:
        os.chdir(place)


def looped(folder: Path) -> None:
    folder.mkdir()
    (folder / "again").symlink_to(folder)


def device_slice(folder: Path) -> None:
    write_series(folder, hounsfield((4, 4, 4)))
    (folder / "zero.dcm").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe.dcm")


PLACES: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "a named pipe": (lambda folder: os.mkfifo(folder / "1.png"), "1.png", "missing_image"),
    "a named pipe without its ending": (lambda folder: os.mkfifo(folder / "1.png"), "1", "missing_image"),
    "a link to a pipe": (
        lambda folder: (os.mkfifo(folder / "p"), (folder / "1.png").symlink_to("p")),
        "1",
        "missing_image",
    ),
    "a socket": (lambda folder: bound(folder / "1.png"), "1.png", "missing_image"),
    "a device": (lambda folder: (folder / "1.png").symlink_to("/dev/zero"), "1.png", "missing_image"),
    "a device without its ending": (lambda folder: (folder / "1.dcm").symlink_to("/dev/zero"), "1", "missing_image"),
    "a link to itself": (lambda folder: (folder / "1.png").symlink_to("1.png"), "1.png", "missing_image"),
    "a link to nothing": (lambda folder: (folder / "1.png").symlink_to("none"), "1.png", "missing_image"),
    "a folder": (lambda folder: (folder / "1.png").mkdir(), "1.png", "unreadable_image"),
    "a folder called as a DICOM file": (lambda folder: (folder / "1.dcm").mkdir(), "1.dcm", "unreadable_image"),
    "a folder that links to itself": (lambda folder: looped(folder / "1"), "1", "unreadable_image"),
    "a link to the folder itself": (lambda folder: (folder / "1").symlink_to("."), "1", "unreadable_image"),
    "a link to a text outside": (
        lambda folder: (folder / "1.png").symlink_to("/etc/passwd"),
        "1.png",
        "unreadable_image",
    ),
    "two links to one image": (lambda folder: (folder / "1.png").symlink_to("2.png"), "1.png", "duplicate_row"),
    "nothing, in 500 folders": (lambda folder: None, "sally/" * 500 + "1.png", "missing_image"),
    "nothing, with a name of 300 letters": (lambda folder: None, "sally" * 60, "missing_image"),
}


@pytest.mark.parametrize("case", PLACES)
def test_what_is_no_image_file_is_refused(images, tmp_path, case):
    make, cell, code = PLACES[case]
    make(images)
    write_table(tmp_path / "t.csv", [], HEAD)
    before = sorted(os.listdir(tmp_path))
    with silent(), bounded(tmp_path), refused(DataError, code) as error:
        prepared(images, cell, tmp_path / "P")
    assert "table row 2" in str(error.value) or error.value.fields["rows"][0] == 2
    check_discreet(error.value, tmp_path)
    assert sorted(os.listdir(tmp_path)) == before, "nothing is left behind"


@pytest.mark.parametrize("case", [case for case in PLACES if "outside" not in case and "two links" not in case])
def test_in_inference_what_is_no_image_file_is_passed_over(images, tmp_path, case):
    PLACES[case][0](images)
    with silent(), bounded(tmp_path):
        files = load_images(images, 4, 2, 1, Multiclass(2))
        assert [files[row]["image"].shape for row in range(len(files))] == [(1, 4, 4)] * 3


def test_a_series_among_pipes_and_devices_is_read(tmp_path):
    device_slice(tmp_path / "images")
    with silent(), bounded(tmp_path):
        assert load_images(tmp_path / "images", 4, 3, 1, Multiclass(2))[0]["image"].shape == (1, 4, 4, 4)


@pytest.mark.parametrize("ending", [".png", ".dcm", ".nii", ".nii.gz", ".nrrd", ""])
def test_the_readers_themselves_wait_for_no_pipe(tmp_path, ending):
    os.mkfifo(tmp_path / f"a{ending}")
    for read in (inspect_image, lambda path: read_image(path, (4, 4), 1)):
        with bounded(tmp_path), refused(DataError, "not_a_file"):
            read(tmp_path / f"a{ending}")


def test_a_link_to_an_image_outside_is_read(images, tmp_path):
    (images / "1.png").symlink_to(picture(tmp_path / "outside.png", PIXELS[::-1]))
    np.testing.assert_array_equal(prepared(images, "1.png", tmp_path / "P"), PIXELS[::-1])


@pytest.fixture
def other_user() -> Iterator[Path]:
    """Work as another user than root, who may open every file; gives a folder of that user."""
    place = Path(tempfile.mkdtemp())
    uid = os.geteuid()
    if uid == 0:
        os.chown(place, 65534, -1)
        os.seteuid(65534)
    try:
        yield place
    finally:
        os.seteuid(uid)
        shutil.rmtree(place)


@pytest.mark.parametrize("ending", [".png", ".dcm", ".nii"])
def test_files_that_may_not_be_opened_are_refused(other_user, ending):
    images = other_user / "images"
    images.mkdir()
    for number in range(2, 5):
        picture(images / f"{number}.png", PIXELS)
    make_dicom(images / f"1{ending}", PIXELS).chmod(0)
    with refused(DataError, "unreadable_image", count=1, total=4) as error:
        prepared(images, f"1{ending}", other_user / "P")
    assert "Permission denied" in str(error.value)
    with refused(DataError, "unreadable_file", reason="Permission denied"):
        read_image(images / f"1{ending}", (4, 4), 1)
    (other_user / "t.csv").chmod(0)
    with refused(DataError, "unreadable_file", reason="Permission denied"):
        prepare(images, other_user / "t.csv", SOME, (4, 4), other_user / "P")


@pytest.mark.parametrize("mode", [0, 0o444])
def test_folders_that_may_not_be_opened_are_refused(other_user, mode):
    images = other_user / "images"
    images.mkdir()
    for number in range(2, 5):
        picture(images / f"{number}.png", PIXELS)
    write_series(images / "1", hounsfield((4, 4, 4)), names="{}.dcm")
    (images / "1").chmod(mode)
    try:
        with refused(DataError, "unreadable_image", count=1, total=4) as error:
            prepared(images, "1", other_user / "P")
        assert "Permission denied" in str(error.value)
        with refused(DataError, "unreadable_file", reason="Permission denied"):
            load_images(images, 4, 3, 1, Multiclass(2))
    finally:
        (images / "1").chmod(0o700)


NAMES = {
    "Arabic": "سارة.png",
    "Hebrew, in a folder": "תיקייה/שרה.png",
    "both directions": "שרה-1-abc.png",
    "emoji": "🫁👩‍⚕️.png",
    "a line break": "a\nb.png",
    "a tab and quotes": 'a\t"b".png',
    "a formula": "=cmd|' calc'!A1.png",
    "an option": "--out.png",
    "spaces inside": "a  b.png",
    "a percent sign and braces": "{0}%s%n.png",
    "a device of Windows": "con.png",
    "a point first": ".hidden.png",
    "a control of direction": "a\u202egnp.png",
    "accents in one character": unicodedata.normalize("NFC", "Zoë Ångström.png"),
    "accents in two characters": unicodedata.normalize("NFD", "Zoë Ångström.png"),
    "an ending in capitals": "A.PNG",
}


@pytest.mark.parametrize("case", NAMES)
def test_odd_names_are_read(images, tmp_path, case):
    path = images / NAMES[case]
    path.parent.mkdir(exist_ok=True)
    picture(path, PIXELS.T)
    with silent():
        np.testing.assert_array_equal(prepared(images, NAMES[case], tmp_path / "P"), PIXELS.T)
        stem = NAMES[case][:-4]
        np.testing.assert_array_equal(prepared(images, stem, tmp_path / "Q"), PIXELS.T)
    assert not [word for word in (path.stem, stem) if word in (tmp_path / "P" / "datalist.json").read_text()]


@pytest.mark.parametrize(("on_disk", "in_table"), [("NFC", "NFD"), ("NFD", "NFC")])
@pytest.mark.parametrize("ending", [".png", ""])
def test_accents_may_have_another_form_in_the_table(images, tmp_path, on_disk, in_table, ending):
    name = "Zoë Ångström"
    picture(images / f"{unicodedata.normalize(on_disk, name)}.png", PIXELS.T)
    cell = unicodedata.normalize(in_table, name) + ending
    np.testing.assert_array_equal(prepared(images, cell, tmp_path / "P"), PIXELS.T)


def test_two_forms_of_one_name_are_two_files(images, tmp_path):
    for form, pixels in (("NFC", PIXELS), ("NFD", PIXELS.T)):
        picture(images / unicodedata.normalize(form, "é.png"), pixels)
    np.testing.assert_array_equal(prepared(images, unicodedata.normalize("NFD", "é.png"), tmp_path / "P"), PIXELS.T)
    with refused(DataError, "ambiguous_file", rows=[2]):
        prepared(images, "é", tmp_path / "Q")


def test_a_name_with_a_space_at_its_end_is_not_found_since_cells_lose_theirs(images, tmp_path):
    picture(images / "1.png", PIXELS).rename(images / "1.png ")
    with refused(DataError, "missing_image", rows=[2]):
        prepared(images, "1.png ", tmp_path / "P")


def test_folders_and_files_whose_names_are_no_utf8(images, tmp_path):
    """Windows names on a disk that was mounted without an encoding."""
    place = images.rename(tmp_path / UNDECODABLE)
    picture(place / "1.png", PIXELS.T).rename(place / f"{UNDECODABLE}.png")
    write_series(
        place / UNDECODABLE, hounsfield((4, 4, 4)), names=f"{UNDECODABLE}{{}}.dcm", SeriesInstanceUID="1.2.3.4.5"
    )
    files = load_images(place, 4, 2, 1, Multiclass(2))
    names = [files[row]["image"].meta["filename_or_obj"] for row in range(len(files))]
    assert r"\xff\xe9.png" in names
    saver = PredictionSaver(tmp_path, Multiclass(2))
    saver._rows = [[name, "0", "1", "0"] for name in names]
    saver._write(None)
    assert r"\xff\xe9.png" in (tmp_path / "predictions.csv").read_text()
    (place / f"{UNDECODABLE}.png").unlink()
    picture(place / "1.png", PIXELS.T)
    np.testing.assert_array_equal(prepared(place, "1.png", tmp_path / f"P{UNDECODABLE}"), PIXELS.T)
    for number in range(3):
        nibabel.save(
            nibabel.Nifti1Image(np.arange(64).reshape(4, 4, 4).astype(np.int16), np.eye(4)), place / f"{number}.nii"
        )
    rows = [("1.2.3.4.5", "a"), *((f"{number}.nii", "bab"[number]) for number in range(3))]
    prepare(place, write_table(tmp_path / "u.csv", rows, HEAD), SOME, (4, 4, 4), tmp_path / "Q")


def deep(path: Path) -> None:
    picture(path, PIXELS.astype(np.uint16) * 200)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


CHANGES: dict[str, Callable[[Path], object]] = {
    "more bits": deep,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:60]),
    "emptied": lambda path: path.write_bytes(b""),
    "deleted": lambda path: path.unlink(),
    "now a pipe": pipe,
    "now a folder": lambda path: (path.unlink(), path.mkdir()),
    "now a text": lambda path: path.write_text("Secret Sally"),
    "now claims 40,000 pixels a side": lambda path: path.write_bytes(
        path.read_bytes().replace(b"\0\0\0\4\0\0\0\4", b"\0\0\x9c\x40\0\0\x9c\x40")
    ),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_file_that_changes_after_its_inspection_is_refused(images, tmp_path, case):
    path = picture(images / "1.png", PIXELS)
    before = [*sorted(os.listdir(tmp_path)), "t.csv"]

    def hear(line: str) -> None:
        if line.startswith("note: needs"):
            CHANGES[case](path)

    with silent(), bounded(tmp_path), refused(DataError, "unreadable_image", count=1, total=4) as error:
        prepared(images, "1.png", tmp_path / "P", say=hear)
    assert "table row 2" in str(error.value)
    check_discreet(error.value, tmp_path)
    assert sorted(os.listdir(tmp_path)) == before, "nothing is left behind"


def test_a_slice_that_changes_after_its_inspection_is_refused(tmp_path, monkeypatch):
    place = write_series(tmp_path / "a", hounsfield((4, 4, 4)), names="{}.dcm")
    large = write_series(tmp_path / "b", hounsfield((4, 8, 8)), names="{}.dcm") / "2.dcm"
    files = load_images(place, 4, 3, 1, Multiclass(2))
    read = "medfl.data.readers.dicom_series.inspect_series"
    from medfl.data.readers.dicom_series import inspect_series

    def inspect_and_change(*words, **options):
        geometry = inspect_series(*words, **options)
        shutil.copy(large, place / "2.dcm")
        return geometry

    monkeypatch.setattr(read, inspect_and_change)
    with refused(DataError, "damaged_file") as error:
        files[0]
    check_discreet(error.value, tmp_path)


def test_an_output_folder_that_links_to_itself_is_refused(images, tmp_path):
    (tmp_path / "P").symlink_to("P")
    with refused(DataError, "not_a_folder", path=str(tmp_path / "P")):
        prepared(images, "2.png", tmp_path / "P")
