"""Test the reader for MONAI's ``LoadImage``."""

from __future__ import annotations

import numpy as np
from dicom_maker import make_dicom, without_preamble
from image_makers import picture
from monai.transforms import Compose, LoadImage, LoadImaged
from refusals import refused

from medfl.data.readers.mammogram_reader import MammogramReader
from medfl.errors import DataError

TWELVE = np.linspace(0, 4095, 48 * 40).astype(np.uint16).reshape(48, 40)


def load(path, **options):
    return LoadImage(reader=MammogramReader(**options), image_only=True, ensure_channel_first=True)(path)


def test_an_image_is_as_it_is_seen(tmp_path):
    """Rows stay rows, unlike in MONAI's readers; values are modality values."""
    path = make_dicom(
        tmp_path / "a", TWELVE, RescaleSlope="2", RescaleIntercept="-7", ImageLaterality="R", ViewPosition="MLO"
    )
    image = load(path)
    assert image.shape == (1, 48, 40)
    np.testing.assert_allclose(image[0], TWELVE * 2.0 - 7)
    assert (image.meta["laterality"], image.meta["view"]) == ("right", "MLO")
    transposed = LoadImage(reader="PydicomReader", image_only=True)(make_dicom(tmp_path / "b.dcm", TWELVE))
    np.testing.assert_array_equal(transposed, TWELVE.T)


def test_bright_tissue_is_large(tmp_path):
    path = make_dicom(tmp_path / "a.dcm", TWELVE + 5, meaning="MONOCHROME1")
    np.testing.assert_array_equal(load(path)[0], 4095 + 10 - (TWELVE + 5.0))
    windowed = make_dicom(tmp_path / "b.dcm", TWELVE, stored=12, WindowCenter="2048", WindowWidth="2")
    assert set(np.unique(load(windowed, voi=True))) == {0, 4095}


def test_pgm_and_files_without_preamble(tmp_path):
    eight = (TWELVE >> 4).astype(np.uint8)
    np.testing.assert_array_equal(load(picture(tmp_path / "a.pgm", eight))[0], eight)
    np.testing.assert_array_equal(load(without_preamble(make_dicom(tmp_path / "b", TWELVE)))[0], TWELVE)


def test_in_a_chain_of_transforms_on_dictionaries(tmp_path):
    paths = [make_dicom(tmp_path / name, TWELVE) for name in ("a", "b")]
    chain = Compose([LoadImaged("image", reader=MammogramReader(), ensure_channel_first=True)])
    assert chain({"image": paths[0]})["image"].shape == (1, 48, 40)
    assert chain({"image": paths})["image"].shape == (2, 48, 40), "several files are channels"


def test_what_is_refused(tmp_path):
    reader = MammogramReader()
    with refused(DataError, "not_a_file"):
        reader.read(tmp_path)
    with refused(DataError, "wrong_modality", found="CT"):
        reader.read(make_dicom(tmp_path / "a", TWELVE, Modality="CT"))
    colour = np.zeros((4, 4, 3), np.uint8)
    with refused(DataError, "colour_image"):
        reader.read(picture(tmp_path / "a.png", colour))
    assert reader.verify_suffix(["a.dcm", "scan"])
    assert not reader.verify_suffix("a.txt")
