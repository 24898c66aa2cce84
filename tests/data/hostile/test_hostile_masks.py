"""Hostile and odd masks of a volume, in NIfTI and as contours.

Masks on another grid, beyond their image, of another study, and DICOM-SEG are in
`tests/data/readers/test_volume_masks.py` and `test_segmentations.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hostile_checks import bounded, check_discreet, silent
from image_makers import nifti
from pydicom import Dataset
from pydicom.dataset import FileMetaDataset
from pydicom.sequence import Sequence
from pydicom.uid import ExplicitVRLittleEndian
from refusals import refused

from medfl.data.readers.quiet import quiet_decoders
from medfl.data.readers.segmentations import read_volume_mask
from medfl.errors import DataError

SHAPE = (6, 6, 4)
SQUARE = [-1, -1, 1, -4, -1, 1, -4, -4, 1, -1, -4, 1]
"""A square in slice 1 of the image, in the LPS coordinates of DICOM."""


def volume(values: object, affine: np.ndarray | None = None) -> Callable[[Path], Path]:
    """Return a function that writes a mask in NIfTI; one value fills it."""
    return lambda folder: nifti(folder / "secret-sally.nii", np.broadcast_to(values, SHAPE), affine)


def contours(*points: object, number: int = 1, **elements: object) -> Callable[[Path], Path]:
    """Return a function that writes an RTSTRUCT with one structure; each item of `points` is one contour."""

    def make(folder: Path) -> Path:
        header, region, drawn = Dataset(), Dataset(), Dataset()
        header.file_meta = FileMetaDataset()
        header.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        header.file_meta.MediaStorageSOPClassUID = header.SOPClassUID = "1.2.840.10008.5.1.4.1.1.481.3"
        header.file_meta.MediaStorageSOPInstanceUID = header.SOPInstanceUID = "1.2.3"
        header.Modality, header.PatientName = "RTSTRUCT", "Secret^Sally"
        region.ROINumber, region.ROIName, drawn.ReferencedROINumber = 1, "Liver", number
        drawn.ContourSequence = Sequence()
        for data in points:
            contour = Dataset()
            contour.ContourGeometricType = "CLOSED_PLANAR"
            contour.ContourData = data
            drawn.ContourSequence.append(contour)
        header.StructureSetROISequence, header.ROIContourSequence = Sequence([region]), Sequence([drawn])
        for name, value in elements.items():
            setattr(header, name, value)
        header.save_as(folder / "secret-sally.dcm", enforce_file_format=True)
        return folder / "secret-sally.dcm"

    return make


def file(name: str, content: bytes) -> Callable[[Path], Path]:
    """Return a function that writes a file."""

    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return make


SHIFTED = np.eye(4)
SHIFTED[0, 3] = 0.5

CASES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "all background": (volume(np.uint8(0)), ""),
    "all one structure": (volume(np.float32(1)), ""),
    "no number": (volume(np.float32(np.nan)), "wrong_label"),
    "infinity": (volume(np.float32(np.inf)), "wrong_label"),
    "a fraction": (volume(np.float32(0.5)), "wrong_label"),
    "a negative number": (volume(np.int16(-1)), "wrong_label"),
    "a number beyond 8 bits": (volume(np.int32(257)), "wrong_label"),
    "half a voxel beside its image": (volume(np.uint8(1), SHIFTED), "misaligned_mask"),
    "voxels of another size": (volume(np.uint8(1), np.diag([2.0, 2, 2, 1])), "misaligned_mask"),
    "far away": (volume(np.uint8(1), np.eye(4) + 1e15 * np.eye(4, k=3)), "mask_outside_image"),
    "a text": (file("sally.nii", b"Secret Sally" * 99), "damaged_file"),
    "nothing": (file("sally.nii", b""), "damaged_file"),
    "a text as DICOM": (file("sally.dcm", b"Secret Sally" * 99), "unsupported_file"),
    "a contour": (contours(SQUARE), ""),
    "a contour without points": (contours([]), "damaged_file"),
    "a contour of one point": (contours(SQUARE[:3]), ""),
    "a contour of half a point": (contours(SQUARE[:4]), "damaged_file"),
    "a contour of no numbers": (contours(["NaN"] * 12), "damaged_file"),
    "a contour at the end of the world": (contours(["1E300", *SQUARE[1:]]), "mask_outside_image"),
    "a contour that crosses itself": (contours([*SQUARE[:3], *SQUARE[6:9], *SQUARE[3:6], *SQUARE[9:]]), ""),
    "a contour of 10,000 points": (contours(SQUARE * 2500), ""),
    "a contour across slices": (contours([*SQUARE[:11], 3]), "misaligned_mask"),
    "the contours of another structure": (contours(SQUARE, number=2), ""),
    "no structure": (contours(SQUARE, StructureSetROISequence=[]), "missing_structure"),
    "structures without contours": (contours(SQUARE, ROIContourSequence=[]), ""),
}


@pytest.mark.parametrize("case", CASES)
def test_a_mask_is_refused_or_read(tmp_path, case):
    make, code = CASES[case]
    image = nifti(tmp_path / "image.nii", np.zeros(SHAPE, np.int16))
    path = make(tmp_path)
    with silent(), bounded(tmp_path), quiet_decoders():
        if not code:
            mask = read_volume_mask(path, image, ("liver",)).values
            assert mask.shape == SHAPE
            assert set(np.unique(mask)) <= {0, 1}
            return
        with refused(DataError, code) as error:
            read_volume_mask(path, image, ("liver",))
    check_discreet(error.value, tmp_path)


def test_without_names_of_structures_each_number_is_one_but_what_is_no_number(tmp_path):
    image = nifti(tmp_path / "image.nii", np.zeros(SHAPE, np.int16))
    assert read_volume_mask(volume(np.int16(-7))(tmp_path), image).values.min() == 1
    with refused(DataError, "not_finite"):
        read_volume_mask(volume(np.float32(np.nan))(tmp_path), image)
