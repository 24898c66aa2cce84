"""Test that the user's own mammograms are read like published mammograms, for training and inference."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from dicom_maker import make_dicom
from image_makers import nifti, picture
from own_cohort import prepare
from pydicom.data import get_testdata_file
from refusals import refused

from medfl.cli.main import main
from medfl.data.ingest.columns.labels import TableColumns
from medfl.data.ingest.folder_format import RowFormat, read_row
from medfl.data.ingest.folder_synthetic import write_table
from medfl.data.mammogram_files import load_mammograms, reading_options
from medfl.data.partition.writing import presentation_intents
from medfl.data.readers.mammogram_image import check_reading, read_mammogram
from medfl.data.readers.mammograms import to_row
from medfl.errors import DataError, SettingsError
from medfl.objectives import Multiclass

COLUMNS = TableColumns("file", "finding")
SIZE = (24, 20)
ALL = {"crop_breast": True, "align": True, "voi": True}


def film(right: bool) -> np.ndarray:
    """Return a breast of values 1000 to 3000 on a background of 300, framed by padding.

    Args:
        right: Whether the chest wall is on the right.
    """
    rows, columns = np.indices((120, 90))
    inside = 1 - np.hypot(rows - 60, columns) / 50
    pixels = np.where(inside > 0, 1000 + inside * 2000, 300)
    pixels[:10] = pixels[-10:] = 65535
    return (pixels[:, ::-1] if right else pixels).astype(np.uint16)


TAGS = {"PixelPaddingValue": 65535, "WindowCenter": "1500", "WindowWidth": "2401", "Modality": "MG"}
FILES = {
    "left.dcm": (film(False), {"ImageLaterality": "L", "PresentationIntentType": "FOR PRESENTATION"}),
    "right.dcm": (film(True), {"ImageLaterality": "R", "PresentationIntentType": "FOR PROCESSING"}),
    "inverted.dcm": (65535 - film(False), {"ImageLaterality": "L", "meaning": "MONOCHROME1", "PixelPaddingValue": 0}),
    "turned.dcm": (film(True), {"PatientOrientation": ["P", "F"], "PresentationIntentType": "FOR PRESENTATION"}),
}


@pytest.fixture
def own(tmp_path: Path) -> tuple[Path, Path]:
    """Write the folder of the images and the table, and return both."""
    (tmp_path / "images").mkdir()
    for name, (pixels, tags) in FILES.items():
        tags = TAGS | tags
        if "inverted" in name:
            tags = {key: value for key, value in tags.items() if not key.startswith("Window")}
        make_dicom(tmp_path / "images" / name, pixels, **tags)
    rows = [(name, "ab"[place % 2]) for place, name in enumerate(FILES)]
    return tmp_path / "images", write_table(tmp_path / "t.csv", rows, ("file", "finding"))


def plain(own: tuple[Path, Path]) -> list[np.ndarray]:
    """Return the rows of all files, read as mammograms without any option."""
    form = RowFormat(SIZE, 1, np.dtype(np.uint16), check_reading({}))
    return [read_row(own[0] / name, form).pixels for name in FILES]


def images_of(out: Path) -> np.ndarray:
    return np.load(out / "images.npy")


def test_each_image_is_that_of_the_preparations_of_mammograms(own, tmp_path):
    for reading in (ALL, {"align": True}, {"voi": True}, {"crop_breast": True}):
        datalist = prepare(*own, COLUMNS, SIZE, tmp_path / "P", reading=reading, force=True)
        images = images_of(tmp_path / "P")
        assert (images.dtype, images.shape) == (np.uint16, (4, *SIZE))
        for name, row in zip(FILES, images, strict=True):
            np.testing.assert_array_equal(row, read_mammogram(own[0] / name, SIZE, 1, **reading))
        assert datalist.extra["reading"] == {"crop_breast": False, "align": False, "voi": False} | reading
    with refused(SettingsError, "unknown_setting", setting="crop"):
        check_reading({"crop": True})
    for name, row in zip(FILES, plain(own), strict=True):
        np.testing.assert_array_equal(row, read_mammogram(own[0] / name, SIZE, 1))


def test_breasts_are_cut_out_look_one_way_and_have_the_whole_range(own, tmp_path):
    datalist = prepare(*own, COLUMNS, SIZE, tmp_path / "P", reading={"crop_breast": True, "align": True})
    images = images_of(tmp_path / "P").astype(int)
    box = np.s_[10:110, :50]  # of the breast: neither the padding nor the background beside it
    expected = to_row(np.clip(film(False)[box], 300, 3000), SIZE, crop=True).astype(int)
    for name, image in zip(FILES, images, strict=True):
        assert image[:, 0].mean() > image[:, -1].mean() + 10_000, f"{name}: the chest wall is on the left"
        assert np.abs(image - expected).mean() < 1000, "but for a pixel or two at the edges"
    assert datalist.extra["chest_wall"] == "on the left in all images"
    assert images.max() > 60_000, "padding that is brighter takes nothing from the range"


def test_the_window_is_applied(own, tmp_path):
    prepare(*own, COLUMNS, SIZE, tmp_path / "W", reading={"voi": True})
    windowed, without = images_of(tmp_path / "W"), plain(own)
    assert windowed[0].mean() > 1.05 * without[0].mean(), "what is above 2700 is white"
    np.testing.assert_allclose(windowed[2], without[2].astype(int), atol=2, err_msg="a file without a window")


def test_a_mixture_of_presentation_intents_is_reported_wherever_the_images_go(own, tmp_path):
    lines: list[str] = []
    datalist = prepare(*own, COLUMNS, SIZE, tmp_path / "P", say=lines.append)
    counted = "2 FOR PRESENTATION, 1 FOR PROCESSING, 1 not said"
    assert f"note: presentation intent (DICOM): {counted}" in lines
    [warning] = datalist.warnings
    assert warning.startswith(f"the files have several presentation intents ({counted}): ")
    assert f"warning: {warning}" in lines
    kinds = ["FOR PRESENTATION", "FOR PROCESSING", "not said", "FOR PRESENTATION"]
    assert [record["presentation_intent"] for record in datalist.splits["training"]] == kinds
    assert presentation_intents(datalist) == {"FOR PRESENTATION": 2, "FOR PROCESSING": 1, "not said": 1}
    with refused(SettingsError, "reserved_name", columns=["presentation_intent"]):
        TableColumns("file", "finding", keep=("presentation_intent",))


def test_one_intent_is_no_mixture_and_pictures_have_none(own, tmp_path):
    for name, (pixels, _) in FILES.items():
        make_dicom(own[0] / name, pixels, PresentationIntentType="FOR PROCESSING")
    lines: list[str] = []
    datalist = prepare(*own, COLUMNS, SIZE, tmp_path / "P", say=lines.append)
    assert "note: presentation intent (DICOM): 4 FOR PROCESSING" in lines
    assert datalist.warnings == ()
    names = [f"{number}.png" for number in range(4)]
    for name in names:
        picture(own[0] / name, np.zeros((30, 20), np.uint8))
    write_table(own[1], [(name, "ab"[place % 2]) for place, name in enumerate(names)], ("file", "finding"))
    datalist = prepare(*own, COLUMNS, SIZE, tmp_path / "Q", say=lines.append)
    assert "presentation" not in json.dumps(datalist.splits)
    assert presentation_intents(datalist) == {}


def test_what_can_not_be_aligned_or_is_no_mammogram_is_refused(own, tmp_path):
    make_dicom(own[0] / "left.dcm", film(False), Modality="CT")
    with refused(DataError, "unreadable_image", count=1, total=4) as caught:
        prepare(*own, COLUMNS, SIZE, tmp_path / "P", reading={"align": True})
    assert "modality MG" in str(caught.value)
    assert "got CT" in str(caught.value)
    assert len(prepare(*own, COLUMNS, SIZE, tmp_path / "P", reading={"voi": True}).splits["training"]) == 4
    make_dicom(own[0] / "left.dcm", film(False))
    with refused(DataError, "unreadable_image", count=1, total=4) as caught:
        prepare(*own, COLUMNS, SIZE, tmp_path / "Q", reading={"align": True})
    assert "which breast" in str(caught.value)
    assert "(table row 2)" in str(caught.value)
    for name in FILES:
        nifti(own[0] / f"{name}.nii", np.zeros((4, 4, 4)))
    write_table(own[1], [(f"{name}.nii", "ab"[n % 2]) for n, name in enumerate(FILES)], ("file", "finding"))
    with refused(SettingsError, "data_not_supported", feature="mammograms", found="volumes"):
        prepare(*own, COLUMNS, (8,), tmp_path / "Q", reading={"align": True})


def test_a_real_file_of_pydicom_on_the_command_line_and_predicted_as_it_was_prepared(tmp_path, capsys):
    images = tmp_path / "images"
    images.mkdir()
    real = Path(get_testdata_file("RG3_UNCR.dcm", download=False))  # a radiograph
    for name in ("a", "b"):
        (images / f"{name}.dcm").write_bytes(real.read_bytes())
    table = write_table(tmp_path / "t.csv", [("a", "no"), ("b", "yes")], ("file", "finding"))
    words = ["prep", "folder", images, "--table", table, "--image-column", "file", "--target", "finding"]
    out = tmp_path / "data" / "site-1"
    with pytest.raises(SystemExit) as ended:
        main(
            [str(word) for word in (*words, "--size", "32x24", "--workers", 1, "--voi", "--crop-breast", "--out", out)]
        )
    assert ended.value.code == 0
    assert "note: presentation intent (DICOM): 2 not said" in capsys.readouterr().err
    expected = read_mammogram(real, (32, 24), 1, voi=True, crop_breast=True)
    np.testing.assert_array_equal(images_of(out), [expected] * 2)
    reading = reading_options(tmp_path / "data", None)
    assert reading == {"crop_breast": True, "align": False, "voi": True}
    loaded = load_mammograms(images, reading, (32, 24), 2, 1, Multiclass(2))
    np.testing.assert_allclose(loaded[1]["image"][0], expected / 65535 * 2 - 1, atol=1e-6)
