"""Test mammograms for inference: read as during preparation, from DICOM, PGM and other formats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from image_makers import dicom, picture
from prepare_specs import prepare_spec
from refusals import refused

from medfl.data.datalists import read_datalist, write_datalist
from medfl.data.inference import SiteImages
from medfl.data.mammogram_files import load_mammograms, reading_options
from medfl.data.readers.mammogram_image import read_mammogram
from medfl.data.readers.mammograms import to_row
from medfl.errors import DataError, SettingsError
from medfl.objectives import Multiclass
from medfl_datasets.mias.spec import Mias
from medfl_datasets.mias.synthetic import KNOWN_ROWS, write_release

GREY = np.random.default_rng(0).integers(100, 4000, (20, 12), dtype=np.uint16)
EXPECTED = to_row(GREY, (8, 8))


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a pooled data set in the place of the only site, and return it with its release."""
    place = tmp_path_factory.mktemp("mias")
    rows = {number: KNOWN_ROWS.get(number, ["G NORM"]) for number in (1, 2, 3, 4, 143, 144)}
    release = write_release(place, rows, edge=50)
    prepare_spec(Mias, release, place / "data" / "site-1", size=(16, 16), test_share=0.5, workers=1)
    return place


def test_a_film_is_read_as_prep_read_it(pool: Path) -> None:
    images = np.load(pool / "data" / "site-1" / "images.npy")
    for row, path in enumerate(sorted((pool / "all-mias").glob("*.pgm"))):
        assert np.array_equal(read_mammogram(path, (16, 16), 1), images[row])
    films = load_mammograms(pool / "all-mias", reading_options(pool / "data", None), 16, 2, 1, Multiclass(3))
    assert np.allclose(films[1]["image"][0], images[1] / 65535 * 2 - 1, atol=1e-6)
    assert films[1]["image"].meta["filename_or_obj"] == "mdb002.pgm"
    assert isinstance(load_mammograms(pool / "data" / "site-1", {}, 16, 2, 1, Multiclass(3)), SiteImages)


def test_dicom_in_both_photometric_interpretations_and_with_a_negative_slope(tmp_path: Path) -> None:
    path = tmp_path / "secret-sally"
    assert np.array_equal(read_mammogram(dicom(path, GREY), (8, 8), 1), EXPECTED)
    inverted = to_row(GREY, (8, 8), inverted=True)
    assert np.array_equal(read_mammogram(dicom(path, GREY, "MONOCHROME1"), (8, 8), 1), inverted)
    falling = {"RescaleSlope": -2, "RescaleIntercept": 5000}
    assert np.array_equal(read_mammogram(dicom(path, GREY, **falling), (8, 8), 1), inverted)
    assert np.array_equal(read_mammogram(dicom(path, GREY, "MONOCHROME1", **falling), (8, 8), 1), EXPECTED)


def test_the_window_is_applied_on_request_only(tmp_path: Path) -> None:
    path = dicom(tmp_path / "image.dcm", GREY, WindowCenter=1000, WindowWidth=500)
    assert np.array_equal(read_mammogram(path, (8, 8), 1), EXPECTED)
    narrow = np.clip(GREY.astype(float), 750, 1250)
    seen = read_mammogram(path, (20, 12), 1, voi=True)
    assert np.abs(seen / 65535 - (narrow - 750) / 500).max() < 0.01


def test_three_channels_repeat_one_and_colours_give_their_first(tmp_path: Path) -> None:
    grey = (GREY >> 4).astype(np.uint8)
    path = picture(tmp_path / "image.png", np.stack([grey, grey // 2, grey // 3], axis=-1))
    assert np.array_equal(read_mammogram(path, (8, 8), 1), to_row(grey, (8, 8)))
    assert np.array_equal(read_mammogram(path, (8, 8), 3), np.stack([to_row(grey, (8, 8))] * 3, axis=-1))


def test_right_breasts_are_mirrored_where_the_file_names_the_side(tmp_path: Path) -> None:
    right = dicom(tmp_path / "r.dcm", GREY, ImageLaterality="R")
    left = dicom(tmp_path / "l.dcm", GREY, ImageLaterality="L")
    turned = dicom(tmp_path / "t.dcm", GREY, ImageLaterality="L", PatientOrientation=["P", "F"])
    assert np.array_equal(read_mammogram(right, (8, 8), 1, align=True), EXPECTED[:, ::-1])
    assert np.array_equal(read_mammogram(left, (8, 8), 1, align=True), EXPECTED)
    assert np.array_equal(read_mammogram(turned, (8, 8), 1, align=True), EXPECTED[:, ::-1]), "as displayed"
    silent = dicom(tmp_path / "s.dcm", GREY)
    with refused(DataError, "missing_laterality"):
        read_mammogram(silent, (8, 8), 1, align=True)


def test_what_cannot_be_read_is_refused_and_not_named(tmp_path: Path) -> None:
    path = tmp_path / "secret-sally.pgm"
    path.write_bytes(b"P5\n30 30\n255\n" + bytes(20))
    films = load_mammograms(tmp_path, {}, 8, 2, 1, Multiclass(2))
    with refused(DataError, "damaged_file", path=str(tmp_path), number=1) as error:
        films[0]
    assert "sally" not in f"{error.value}{error.value.fields}"
    colour = dicom(tmp_path / "secret.dcm", np.zeros((4, 4, 3), np.uint8), "RGB", stored=8)
    with refused(DataError, "colour_image"):
        read_mammogram(colour, (8, 8), 1)
    with refused(DataError, "unreadable_file"):
        read_mammogram(tmp_path / "absent.dcm", (8, 8), 1)
    for size, channels in (((8, 8, 8), 1), ((8, 8), 2)):
        with refused(SettingsError, "setting_out_of_range", size=list(size), channels=channels):
            read_mammogram(path, size, channels)


def test_how_a_data_set_was_read_is_in_its_list(pool: Path, tmp_path: Path) -> None:
    everything = {"crop_breast": False, "align": False, "voi": False}
    assert reading_options(pool / "data", None) == everything
    assert reading_options(tmp_path / "absent", None) is None
    assert reading_options(tmp_path / "absent", {"align": True}) == everything | {"align": True}
    site = tmp_path / "data" / "site-1"
    site.mkdir(parents=True)
    datalist = read_datalist(pool / "data" / "site-1")
    for entry, code, fields in (
        ({"crop": True}, "unknown_setting", {"setting": "crop"}),
        ({"align": "$print(1)"}, "wrong_setting_type", {"setting": "align", "expected": "bool", "found": "str"}),
    ):
        datalist.extra["reading"] = entry
        write_datalist(site, datalist)
        with refused(SettingsError, code, **fields):
            reading_options(site.parent, None)
    del datalist.extra["reading"]
    write_datalist(site, datalist)
    assert reading_options(site.parent, {}) is None, "no mammograms"
