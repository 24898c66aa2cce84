"""DICOM segmentations, written by highdicom for made-up images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pydicom
from image_makers import dicom
from pydicom.sr.codedict import codes
from pydicom.uid import CTImageStorage, UltrasoundImageStorage, generate_uid

STUDY, SERIES, FRAME = generate_uid(), generate_uid(), generate_uid()


def source_image(path: Path, pixels: np.ndarray, slice_number: int | None = None) -> pydicom.Dataset:
    """An image of a patient, with what a segmentation refers to: an ultrasound image, or a slice of a CT volume."""
    tags = {"SOPInstanceUID": generate_uid(), "StudyInstanceUID": STUDY, "SeriesInstanceUID": SERIES}
    tags |= {"SOPClassUID": UltrasoundImageStorage, "Modality": "US"}
    if slice_number is not None:
        tags |= {"SOPClassUID": CTImageStorage, "Modality": "CT", "FrameOfReferenceUID": FRAME}
        tags |= {"PixelSpacing": [1, 1], "SliceThickness": 2, "ImageOrientationPatient": [1, 0, 0, 0, 1, 0]}
        tags |= {"ImagePositionPatient": [0, 0, 2 * slice_number]}
    blank = dict.fromkeys(
        ("AccessionNumber", "StudyDate", "StudyTime", "StudyID", "PatientBirthDate", "PatientSex"), ""
    )
    return pydicom.dcmread(dicom(path, pixels, **tags, **blank), force=True)


def segmentation(path: Path, mask: np.ndarray, images: list[pydicom.Dataset], kind: str = "BINARY") -> Path:
    """A DICOM-SEG.

    Args:
        path: The file to write.
        mask: (images, H, W, segments); 0 or 1, or fractions.
        images: What it is about.
        kind: ``BINARY``, ``FRACTIONAL`` or ``LABELMAP``.
    """
    import highdicom

    names = [
        highdicom.seg.SegmentDescription(
            segment_number=number + 1,
            segment_label=f"lesion {number}",
            segmented_property_category=codes.SCT.MorphologicallyAbnormalStructure,
            segmented_property_type=codes.SCT.Lesion,
            algorithm_type="MANUAL",
        )
        for number in range(mask.shape[-1])
    ]
    written = highdicom.seg.Segmentation(
        source_images=images,
        pixel_array=mask,
        segmentation_type=kind,
        segment_descriptions=names,
        series_instance_uid=generate_uid(),
        series_number=2,
        sop_instance_uid=generate_uid(),
        instance_number=1,
        manufacturer="made up",
        manufacturer_model_name="made up",
        software_versions="1",
        device_serial_number="1",
        omit_empty_frames=False,
    )
    written.save_as(path)
    return path
