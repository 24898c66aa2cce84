"""Test images for inference: the same pixels as in training, in a defined order."""

from __future__ import annotations

import numpy as np
from image_makers import picture
from refusals import refused

from medfl.data.datalists import Datalist, make_records, write_datalist
from medfl.data.inference import load_images
from medfl.data.readers.images import read_image
from medfl.errors import DataError
from medfl.objectives import Multiclass


def test_a_folder_of_files_is_read_as_prep_reads_it_and_files_of_the_system_are_passed_over(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "._b.png").write_bytes(b"of macOS")
    (tmp_path / "notes.txt").touch()
    pixels = np.random.default_rng(0).integers(0, 256, (12, 9, 3), dtype=np.uint8)
    names = ["a.png", "b.PNG", "sub/c.png"]
    for name in reversed(names):
        picture(tmp_path / name, pixels)
    images = load_images(tmp_path, 6, 2, 3, Multiclass(2), mean=(0.25,), std=(0.5,))
    assert [images[row]["image"].meta["filename_or_obj"] for row in range(len(images))] == names
    expected = (read_image(tmp_path / "a.png", (6, 6), 3) / 255 - 0.25) / 0.5
    np.testing.assert_allclose(images[2]["image"].numpy(), expected.transpose(2, 0, 1), atol=1e-6)


def test_a_file_that_can_not_be_read_is_named_by_its_place(tmp_path):
    picture(tmp_path / "secret-a.png", np.zeros((4, 4), np.uint8))
    (tmp_path / "secret-b.png").write_bytes(b"")
    images = load_images(tmp_path, 4, 2, 1, Multiclass(2))
    with refused(DataError, "wrong_file_ending", ending=".png", path=str(tmp_path), number=2) as error:
        images[1]
    assert "secret" not in f"{error.value}{error.value.fields}"


def test_a_site_gives_its_test_images_by_row(tmp_path):
    np.save(tmp_path / "images.npy", np.arange(64, dtype=np.uint8).reshape(4, 4, 4))
    write_datalist(tmp_path, Datalist("toy", "images.npy", 2, splits={"test": make_records([3, 1], [0, 1], "x")}))
    images = load_images(tmp_path, 4, 2, 1, Multiclass(2), mean=(0.0,), std=(1.0,))
    assert [images[row]["image"].meta["filename_or_obj"] for row in range(len(images))] == ["row 0", "row 1"]
    np.testing.assert_allclose(images[0]["image"][0].numpy() * 255, np.arange(48, 64).reshape(4, 4), atol=1e-4)


def test_nothing_to_predict(tmp_path):
    with refused(DataError, "no_images", path=str(tmp_path)):
        load_images(tmp_path, 4, 2, 1, Multiclass(2))
    with refused(DataError, "missing_folder", path=str(tmp_path / "none")):
        load_images(tmp_path / "none", 4, 2, 1, Multiclass(2))
    np.save(tmp_path / "images.npy", np.zeros((4, 4, 4), np.uint8))
    write_datalist(tmp_path, Datalist("toy", "images.npy", 2, splits={"training": make_records([3], [0], "x")}))
    with refused(DataError, "no_images", path=str(tmp_path), split="test"):
        load_images(tmp_path, 4, 2, 1, Multiclass(2))
