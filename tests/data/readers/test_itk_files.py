"""Test NRRD and MHA files written by ITK: same pixels as NIfTI, and no other file is read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from image_makers import nifti
from refusals import refused

from medfl.data.readers import itk_files
from medfl.data.readers.images import image_size, inspect_image, read_image
from medfl.data.transforms.cases import check_cases
from medfl.errors import DataError

NEEDED = "itk is not installed (pip install 'medfl-monai[itk]')"

VOXELS = np.random.default_rng(0).normal(size=(6, 5, 4)).astype(np.float32)


def write(path: Path, voxels: np.ndarray, **options: bool) -> Path:
    """Write a file with ITK; its axes run to the left, to the back and up, with spacing 1, 2, 3 mm."""
    import itk

    image = itk.image_from_array(np.ascontiguousarray(voxels.T))
    image.SetSpacing([1.0, 2.0, 3.0][: voxels.ndim])
    image.SetOrigin([5.0, 6.0, 7.0][: voxels.ndim])
    itk.imwrite(image, str(path), **options)
    return path


@pytest.mark.parametrize("ending", [".nrrd", ".mha"])
@pytest.mark.parametrize("kind", [np.float32, np.int16])
def test_it_is_read_as_the_same_volume_in_nifti(tmp_path: Path, ending: str, kind: type) -> None:
    pytest.importorskip("itk", reason=NEEDED)
    voxels = (VOXELS * 100).astype(kind)
    affine = np.array([[-1.0, 0, 0, -5], [0, -2, 0, -6], [0, 0, 3, 7], [0, 0, 0, 1]])
    expected = nifti(tmp_path / "a.nii", voxels.astype(np.float32), affine)
    for compression in (False, True):
        path = write(tmp_path / f"a{ending}", voxels, compression=compression)
        assert inspect_image(path) == inspect_image(expected)
        assert image_size(path) == (6, 5, 4)
        for size in ((6, 5, 4), (3, 5, 8)):
            assert np.array_equal(read_image(path, size, 1), read_image(expected, size, 1))


def test_a_plane_is_an_image(tmp_path: Path) -> None:
    pytest.importorskip("itk", reason=NEEDED)
    path = write(tmp_path / "a.mha", VOXELS[..., 0])
    assert inspect_image(path).dims == 2
    low, high = VOXELS[..., 0].min(), VOXELS[..., 0].max()
    expected = (VOXELS[::-1, ::-1, 0] - low) / (high - low)
    np.testing.assert_allclose(read_image(path, (6, 5), 1), expected, atol=1e-6)


def test_several_numbers_a_voxel_are_refused(tmp_path: Path) -> None:
    itk = pytest.importorskip("itk", reason=NEEDED)
    colours = itk.image_from_array(np.zeros((4, 5, 3), dtype=np.uint8), is_vector=True)
    itk.imwrite(colours, str(tmp_path / "a.mha"))
    with refused(DataError, "wrong_shape", axes=2, components=3):
        inspect_image(tmp_path / "a.mha")


@pytest.mark.parametrize("ending", [".nrrd", ".mha"])
def test_a_damaged_file_is_refused_and_not_named(tmp_path: Path, ending: str) -> None:
    pytest.importorskip("itk", reason=NEEDED)
    content = write(tmp_path / f"a{ending}", VOXELS).read_bytes()
    path = tmp_path / f"secret{ending}"
    for damaged, code in (
        (b"", "unsupported_file"),
        (content[:40], "unsupported_file"),
        (content[:-40], "damaged_file"),
        (b"text" * 90, "unsupported_file"),
        (content.replace(b"6 5 4", b"6 5 4000000", 1), "damaged_file"),
    ):
        path.write_bytes(damaged)
        with refused(DataError, code) as error:
            inspect_image(path)
        assert "secret" not in f"{error.value}{error.value.fields}"


HEADS = {
    "a.nrrd": b"NRRD0004\ntype: float\ndimension: 1\nsizes: 4\nencoding: raw\ndata file: /etc/hostname\n\n",
    "b.nrrd": b"NRRD0004\ntype: float\ndimension: 1\nsizes: 4\nDATAFILE: ../other.raw\n\n",
    "c.nrrd": b"NRRD0004\ntype: float\n" + b"# x\n" * 30_000 + b"data file: other.raw\n\n",
    "a.mha": b"ObjectType = Image\nNDims = 2\nDimSize = 2 2\nElementDataFile = /etc/hostname\n",
    "b.mha": b"ObjectType = Image\nNDims = 2\nElementDataFile : LIST\nother.raw\n",
    "c.mha": b"ObjectType = Image\nElementDataFile = other.raw\nElementDataFile = LOCAL\n",
}


@pytest.mark.parametrize("name", HEADS)
def test_pixels_in_another_file_are_refused(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(itk_files, "find_spec", lambda package: package)
    (tmp_path / name).write_bytes(HEADS[name])
    with refused(DataError, "unsupported_file", expected=["NRRD", "MHA"]):
        inspect_image(tmp_path / name)


def test_without_the_package_the_message_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(itk_files, "find_spec", lambda package: None)
    for name in ("secret.nrrd", "secret.mha"):
        (tmp_path / name).write_bytes(HEADS["a.nrrd"])
        with refused(DataError, "missing_package", extra="itk") as error:
            inspect_image(tmp_path / name)
        assert "need another package: pip install 'medfl-monai[itk]'" in str(error.value)
        cases = [{"image": str(tmp_path / name), "label": 1}]
        with refused(DataError, "missing_package", extra="itk", where="site 'a'", row=0, key="image") as two:
            check_cases(cases, ["image", "label"], ["image"], "site 'a'")
        assert "secret" not in f"{error.value}{two.value}{error.value.fields}{two.value.fields}"
