"""MedMNIST files: layouts that exist, and what is wrong with others."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from medfl.data.datalists import read_datalist
from medfl.data.medmnist import RELEASES, deviations, prepare, read_npz
from medfl.errors import DataError


def write_npz(path: Path, shape=(28, 28, 3), columns: bool = True, **change) -> Path:
    rng = np.random.default_rng(0)
    arrays = {}
    for part, size in (("test", 4), ("train", 10), ("val", 3)):
        labels = (np.arange(size) % 8).astype(np.uint8)
        arrays[f"{part}_images"] = rng.integers(0, 256, (size, *shape), dtype=np.uint8)
        arrays[f"{part}_labels"] = labels[:, None] if columns else labels
    arrays |= change
    np.savez_compressed(path, **{name: value for name, value in arrays.items() if value is not None})
    return path


@pytest.mark.parametrize("columns", [True, False], ids=["(N, 1)", "(N,)"])
@pytest.mark.parametrize("shape", [(28, 28), (28, 28, 3), (28, 28, 28), (64, 64, 3)])
def test_every_layout_becomes_one_array_and_a_list_that_fits(tmp_path, shape, columns):
    source = write_npz(tmp_path / "bloodmnist.npz", shape, columns)
    prepare(tmp_path, "bloodmnist", tmp_path / "P")
    images, datalist = np.load(tmp_path / "P" / "images.npy"), read_datalist(tmp_path / "P")
    assert images.shape == (17, *shape)
    content = read_npz(source)
    for number, split in enumerate(("training", "validation", "test")):
        rows, labels = datalist.rows_and_labels(split, "P")
        np.testing.assert_array_equal(images[rows], content.images[number])
        np.testing.assert_array_equal(labels, content.labels[number])
    assert datalist.num_classes == 8
    subjects = [record["subject_id"] for records in datalist.splits.values() for record in records]
    assert len(set(subjects)) == 17


def test_licence_and_citation_come_first_and_deviations_are_warned_of(tmp_path):
    write_npz(tmp_path / "dermamnist.npz")
    said: list[str] = []
    datalist = prepare(tmp_path, "dermamnist", tmp_path / "P", say=said.append)
    assert said[0] == "dermamnist: licence CC BY-NC 4.0"
    assert said[1].startswith("Please cite: Yang")
    assert any("10/3/4 images" in line and "7007/1003/2005" in line for line in said), said
    assert any("MD5" in line for line in said), said
    assert datalist.extra["deviations"], "the list remembers how the file differs"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"val_images": None}, "missing: val_images. It holds: "),
        ({"train_labels": np.zeros((10, 14), np.uint8)}, r"train_labels .* got shape \(10, 14\): several labels"),
        ({"train_labels": np.zeros((9, 1), np.uint8)}, r"expected integer labels of shape \(10,\)"),
        ({"test_labels": np.zeros((4, 1), np.float32)}, "got float32"),
        ({"test_images": np.zeros((4, 32, 32, 3), np.uint8)}, r"test_images .* of shape \(4, 32, 32, 3\) \(train has"),
        ({"train_images": np.zeros((10, 28, 28, 3), np.float32)}, "expected uint8 images"),
        ({"train_images": np.array([{}] * 10, dtype=object)}, "can't be read as a .npz file"),
    ],
)
def test_a_wrong_file_is_refused_and_nothing_is_written(tmp_path, change, message):
    write_npz(tmp_path / "bloodmnist.npz", **change)
    with pytest.raises(DataError, match=message):
        prepare(tmp_path, "bloodmnist", tmp_path / "P")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bloodmnist.npz"]


def test_cut_and_missing_files(tmp_path):
    with pytest.raises(DataError, match=r"there is none. Did you mean 'bloodmnist'\?"):
        prepare(tmp_path, "bloodmist", tmp_path / "P")
    path = write_npz(tmp_path / "bloodmnist.npz")
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DataError, match="can't be read as a .npz file"):
        prepare(tmp_path, "bloodmnist", tmp_path / "P")


def test_an_occupied_folder_is_replaced_only_on_request_and_only_if_ours(tmp_path):
    write_npz(tmp_path / "bloodmnist.npz")
    out = tmp_path / "P"
    prepare(tmp_path, "bloodmnist", out)
    with pytest.raises(DataError, match="is not empty. Give another --out, or --force"):
        prepare(tmp_path, "bloodmnist", out)
    prepare(tmp_path, "bloodmnist", out, force=True)
    foreign = tmp_path / "photos"
    foreign.mkdir()
    (foreign / "a.jpg").touch()
    with pytest.raises(DataError, match="medfl did not write"):
        prepare(tmp_path, "bloodmnist", foreign, force=True)
    assert (foreign / "a.jpg").exists()


@pytest.mark.parametrize("flag", ["adrenalmnist3d", "breastmnist", "bloodmnist"])
def test_the_real_files_have_the_official_sizes(tmp_path, flag):
    folder = os.environ.get("MEDFL_DATA")
    path = Path(folder or ".") / "medmnist" / f"{flag}.npz"
    if not folder or not path.exists():
        pytest.skip(f"needs the real medmnist/{flag}.npz in the folder that MEDFL_DATA names")
    content = read_npz(path)
    assert tuple(map(len, content.labels)) == RELEASES[flag].sizes
    assert all("MD5" in line for line in deviations(path, flag, content)), "sizes agree; a re-save may differ in MD5"
    datalist = prepare(path.parent, flag, tmp_path / "P")
    assert sum(map(len, datalist.splits.values())) == sum(RELEASES[flag].sizes)
