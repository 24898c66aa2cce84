"""Read an image file or a DICOM series, in the same way during preparation and inference.

Supported are the formats of `medfl.data.readers.pillow_images` (PNG, JPEG, TIFF, BMP, PGM), DICOM, NIfTI volumes and,
with the package `itk`, NRRD and MHA files, which follow the rules of NIfTI. A DICOM series
(`medfl.data.readers.dicom_series`) and a DICOM file with several frames follow the rules of NIfTI too. The rules:

- Files with 8 bits per channel (also colour DICOM) give uint8 with unchanged values. All others (grey DICOM, NIfTI,
  images of 16 or 32 bits) give float32 in [0, 1]: each image is scaled by its own smallest and largest value, or by the
  scale of an `ImageReading`, such as a window in Hounsfield units. A display window in the file is not applied
  (`medfl.data.readers.mammogram_image` does that). A constant image becomes zeros.
- DICOM: rescale slope and intercept, or the lookup table that replaces them, are applied first. MONOCHROME1, where
  large values are dark, is inverted. Padding pixels become background.
- NIfTI: a volume is rotated to the nearest canonical orientation, MONAI's ``Orientation("RAS")``: its axes (D, H, W)
  run from left to right, back to front and feet to head. A single slice is an image with the two remaining axes.
- The orientation in a JPEG file (EXIF) is applied. Of the images in a phone's JPEG file (MPO) the first is used. Alpha
  channels and transparent colours are ignored. Colour of 16 bits per channel is refused.
- Size: each axis is resampled linearly, with an antialiasing filter as wide as the reduction, so that no pixel is
  skipped. The aspect ratio is not preserved and nothing is cropped.
- Spacing: if an `ImageReading` has a voxel spacing, a volume is instead resampled trilinearly to it before its values
  are scaled, and then padded with zeros or cropped, symmetrically, to the size.

Messages never name a file, because its name may identify a patient; the caller knows which file it was.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from medfl.data.harmonisation.histogram_matching import match_histogram
from medfl.data.readers.dicom import read_dicom
from medfl.data.readers.dicom_header import (
    check_regular_file,
    damaged_file_error,
    decoding,
    is_dicom,
    open_dicom,
    unopenable_file_error,
)
from medfl.data.readers.dicom_identity import check_identity, is_burned_in, refuse_identity
from medfl.data.readers.dicom_intent import intent_of
from medfl.data.readers.dicom_series import (
    MAX_VOXELS,
    DicomVolume,
    ImageSource,
    SeriesFiles,
    check_units,
    inspect_series,
    read_series,
    source_files,
)
from medfl.data.readers.image_reading import DEFAULT_READING, ImageReading
from medfl.data.readers.itk_files import ITK_SUFFIXES, open_itk
from medfl.data.readers.pillow_images import (
    FORMATS,
    is_colour,
    is_deep,
    open_pillow_image,
    read_pillow_image,
)
from medfl.data.readers.volumes import (
    MAX_GZIP_RATIO,
    SUFFIXES,
    SpatialGrid,
    Volume,
    canonical_volume,
    check_memory,
    is_flat,
    pad_or_crop,
    resample_to_spacing,
)
from medfl.errors import DataError, SettingsError

IMAGE_SUFFIXES = (*FORMATS, ".dcm", *SUFFIXES, *ITK_SUFFIXES)
"""File name suffixes by which images are found in a folder, in lower case. A file with another suffix, such as a DICOM
file without suffix, can be read if it is named."""

_GZIP_START = b"\x1f\x8b"
"""First bytes of a gzip file."""


@dataclass(frozen=True)
class ImageKind:
    """Kind of an image file, as stated in its header.

    Attributes:
        dims: 2 for an image, 3 for a volume.
        colour: Whether the image has three channels.
        deep: Whether reading gives float32 in [0, 1]; otherwise uint8.
        intent: Presentation intent of a grey DICOM file: ``FOR PROCESSING``, ``FOR PRESENTATION`` or ``not said``;
            empty for other files.
        grid: Grid of a volume, in the orientation of the array that `read_image` returns; None for an image.
    """

    dims: int
    colour: bool
    deep: bool
    intent: str = ""
    grid: SpatialGrid | None = field(default=None, compare=False)


def inspect_image(source: ImageSource, check: str = "strip", reading: ImageReading = DEFAULT_READING) -> ImageKind:
    """Return the kind of an image from its header. Pixels are not read.

    Args:
        source: Path of the file, or the files of a DICOM series.
        check: Treatment of DICOM files that may identify the patient: ``strip`` accepts them, ``refuse`` raises.
        reading: Rule by which the image will be read.

    Raises:
        DataError: If the file is no image, is of an unsupported kind, lacks the unit that `reading` needs, or may
            identify the patient and `check` is ``refuse``.
    """
    kind = "series" if isinstance(source, SeriesFiles) else file_kind(source)
    if kind == "volume":
        assert isinstance(source, Path)
        volume = _open_volume(source)
        reading.require_units("volume", deep=True)
        if _is_slice(volume.shape):
            return ImageKind(2, colour=False, deep=True)
        return ImageKind(3, colour=False, deep=True, grid=_canonical_grid(volume.shape[:3], volume.affine))
    if kind == "dicom":
        assert isinstance(source, Path)
        header = open_dicom(source, pixels=False, several_frames=True)
        kind = "series" if int(header.get("NumberOfFrames") or 1) > 1 else kind
    if kind == "series":
        geometry = inspect_series(source_files(source), check, reading)
        return ImageKind(3, colour=False, deep=True, grid=_canonical_grid(geometry.shape, geometry.affine))
    assert isinstance(source, Path)
    if kind == "dicom":
        if check == "refuse":
            with decoding():
                refuse_identity(check_identity(header), is_burned_in(header))
        colour = header.SamplesPerPixel == 3
        if colour:
            reading.require_units("dicom", deep=False)
        else:
            check_units([header], reading)
        return ImageKind(2, colour=colour, deep=not colour, intent="" if colour else intent_of(header))
    with open_pillow_image(source) as image:
        reading.require_units("picture", deep=is_deep(image))
        return ImageKind(2, colour=is_colour(image), deep=is_deep(image))


def read_image(
    source: ImageSource, size: tuple[int, ...], channels: int, reading: ImageReading = DEFAULT_READING
) -> np.ndarray:
    """Read an image and resize it; see the module for the rules.

    Args:
        source: Path of the file, or the files of a DICOM series.
        size: (H, W) for an image, (D, H, W) for a volume, each >= 1.
        channels: 1 for grey, 3 for colour. Colour is converted to grey by the weights of ITU-R BT.601; grey is
            repeated.
        reading: Rule for the scale of the grey values.

    Returns:
        Array of shape (H, W), (H, W, 3) or (D, H, W); uint8, or float32 in [0, 1].

    Raises:
        DataError: If the file is no image, is damaged or unsupported, lacks the unit that `reading` needs, or does not
            have as many axes as `size`.
        SettingsError: If the number of channels is impossible.
    """
    if channels not in (1, 3):
        raise SettingsError(
            "setting_out_of_range",
            f"expected 1 or 3 channels, got {channels}",
            setting="channels",
            expected=[1, 3],
            found=channels,
        )
    pixels, is_volume = _read_pixels(source, reading, several_frames=len(size) == 3)
    if is_volume:
        _check_volume_format(size, channels)
        fit = _resize_volume if reading.spacing is None else pad_or_crop
        return _harmonised(fit(pixels, size), channels, reading)
    if len(size) != 2:
        raise DataError(
            "wrong_dimensions",
            f"expected a volume for the size {_size_text(size)}, got a 2-D image. Give two numbers.",
            expected=len(size),
            found=2,
        )
    return _harmonised(_resize_image(pixels, (size[0], size[1]), channels), channels, reading)


def _harmonised(pixels: np.ndarray, channels: int, reading: ImageReading) -> np.ndarray:
    """Return an image after histogram matching, or unchanged if the rule has no template.

    Raises:
        SettingsError: If the template has another number of channels.
    """
    if not reading.template:
        return pixels
    if len(reading.template) != channels:
        raise SettingsError(
            "wrong_template_channels",
            f"expected a template of {channels} channels, got {len(reading.template)}.",
            setting="template",
            expected=channels,
            found=len(reading.template),
        )
    return match_histogram(pixels, reading.template)


def image_size(source: ImageSource) -> tuple[int, ...]:
    """Return the original size of an image before resizing: (H, W), or (D, H, W) of a volume.

    Raises:
        DataError: As in `read_image`.
    """
    pixels, is_volume = _read_pixels(source, DEFAULT_READING, several_frames=False)
    return tuple(pixels.shape if is_volume else pixels.shape[:2])


def volume_grid(source: ImageSource) -> SpatialGrid:
    """Return the grid of a volume in the orientation of the array that `read_image` returns, before resizing.

    Raises:
        DataError: If the file is no volume, or as in `inspect_image`.
    """
    grid = inspect_image(source).grid
    if grid is None:
        raise DataError("wrong_dimensions", "expected a volume, got a 2-D image.", expected=3, found=2)
    return grid


def _read_pixels(source: ImageSource, reading: ImageReading, *, several_frames: bool) -> tuple[np.ndarray, bool]:
    """Return the scaled pixels of an image in its original size, and whether it is a volume.

    Args:
        source: Path of the file, or the files of a DICOM series.
        reading: Rule for the scale of the grey values.
        several_frames: Whether a DICOM file may have several frames, the slices of a volume.
    """
    kind = "series" if isinstance(source, SeriesFiles) else file_kind(source)
    if kind == "volume":
        assert isinstance(source, Path)
        unit = _read_volume(source, reading)
        return unit, unit.ndim == 3
    if kind == "dicom" and several_frames:
        assert isinstance(source, Path)
        header = open_dicom(source, pixels=False, several_frames=True)
        kind = "series" if int(header.get("NumberOfFrames") or 1) > 1 else kind
    if kind == "series":
        return _read_series(source_files(source), reading), True
    assert isinstance(source, Path)
    if kind == "dicom":
        return _read_dicom(source, reading), False
    pixels = read_pillow_image(source, reading.unit_values)
    reading.require_units("picture", deep=pixels.dtype != np.uint8)
    return pixels, False


def _resize_image(pixels: np.ndarray, size: tuple[int, int], channels: int) -> np.ndarray:
    from PIL import Image

    if pixels.ndim == 3 and channels == 1:
        pixels = np.asarray(Image.fromarray(pixels).convert("L"))
    resized = _resample(pixels, size)
    return np.repeat(resized[..., np.newaxis], 3, axis=-1) if channels == 3 and resized.ndim == 2 else resized


def _check_volume_format(size: tuple[int, ...], channels: int) -> None:
    """Raise if a size or a number of channels is impossible for a volume."""
    if len(size) != 3:
        raise DataError(
            "wrong_dimensions",
            f"expected a 2-D image for the size {_size_text(size)}, got a volume. Give three numbers.",
            expected=len(size),
            found=3,
        )
    if channels != 1:
        raise SettingsError(
            "setting_out_of_range",
            "volumes have one channel, got 3. Give --channels 1.",
            setting="channels",
            expected=[1],
            found=channels,
        )


def _resize_volume(voxels: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    planes = np.stack([_resample(plane, (size[1], size[2])) for plane in voxels])
    return _resample(planes.reshape(len(planes), -1), (size[0], size[1] * size[2])).reshape(size)


def _resample(plane: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resample (H, W) or (H, W, 3) linearly with antialiasing."""
    from PIL import Image

    if plane.shape[:2] == size:
        return plane
    return np.asarray(Image.fromarray(plane).resize((size[1], size[0]), Image.Resampling.BILINEAR))


def file_kind(path: Path) -> str:
    """Return the kind of reader for a file: ``volume``, ``dicom`` or ``picture``.

    The suffix decides; without a known suffix, the first bytes decide whether the file is DICOM. A file with a suffix
    of a Pillow format is a ``picture`` even if it starts like DICOM; `medfl.data.readers.pillow_images` then refuses
    it.

    Raises:
        DataError: If the file can't be opened, or is a named pipe, a socket or a device.
    """
    check_regular_file(path)
    try:
        with path.open("rb") as file:
            head = file.read(132)
    except OSError as error:
        raise unopenable_file_error(error) from None
    if path.name.lower().endswith((*SUFFIXES, *ITK_SUFFIXES)):
        return "volume"
    dicom = path.suffix.lower() == ".dcm" or (is_dicom(head) and path.suffix.lower() not in FORMATS)
    return "dicom" if dicom else "picture"


def _read_dicom(path: Path, reading: ImageReading) -> np.ndarray:
    image = read_dicom(path)
    if image.pixels.ndim == 3:
        reading.require_units("dicom", deep=False)
        return image.pixels
    values = image.values()
    if reading.scale != "range":
        values = values * np.float32(check_units([open_dicom(path, pixels=False)], reading))
    unit = reading.unit_values(values)
    return 1 - unit if image.inverted else unit


def _read_series(paths: list[Path], reading: ImageReading) -> np.ndarray:
    series = read_series(paths, reading)
    unit = _unit_values(_canonical_series(series), reading)
    return 1 - unit if series.inverted else unit


def _canonical_series(series: DicomVolume) -> Volume:
    import nibabel

    return canonical_volume(nibabel.Nifti1Image(series.values, series.geometry.affine))


def _canonical_grid(shape: tuple[int, ...], affine: np.ndarray) -> SpatialGrid:
    """Return the grid of a volume after its rotation to the nearest canonical orientation."""
    import nibabel

    turn = nibabel.io_orientation(affine)
    order = np.argsort(turn[:, 0])
    x, y, z = (int(shape[axis]) for axis in order)
    return SpatialGrid((x, y, z), affine @ nibabel.orientations.inv_ornt_aff(turn, shape[:3]))


def _open_volume(path: Path) -> Any:
    """Open a volume without reading its voxels.

    Raises:
        DataError: If it is damaged, has no real numbers, not three axes, no voxels or too many, or a degenerate affine.
    """
    import nibabel

    with decoding():
        if path.name.lower().endswith(ITK_SUFFIXES):
            volume: Any = open_itk(path, MAX_VOXELS)
        else:
            _check_gzip(path)
            volume = nibabel.load(path)
            _check_nifti_header(volume, path)
    _check_volume(volume)
    return volume


def _check_gzip(path: Path) -> None:
    """Raise if a file with the ending of a compressed file is not compressed."""
    with path.open("rb") as file:
        if path.name.lower().endswith(".gz") and file.read(2) != _GZIP_START:
            raise DataError(
                "wrong_file_ending",
                "expected a compressed file, as its extension states (.gz), got another. Give it the right extension, "
                "or export it again.",
                ending=".gz",
            )


def _check_nifti_header(volume: Any, path: Path) -> None:
    """Raise if a NIfTI file states too many voxels, an infinite slope, another unit than mm, or lacks a voxel size.

    nibabel would allocate memory for the voxels, and ignore the others.
    """
    from nibabel.openers import ImageOpener

    is_compressed = path.name.lower().endswith(".gz")
    most_bytes = path.stat().st_size * (MAX_GZIP_RATIO if is_compressed else 1)
    if MAX_VOXELS >= math.prod(volume.shape) > most_bytes // max(1, volume.get_data_dtype().itemsize):
        raise damaged_file_error(EOFError())

    with ImageOpener(str(path)) as file:
        header = type(volume.header).from_fileobj(file, check=False)
    if np.isinf([header["scl_slope"], header["scl_inter"]]).any():
        raise DataError(
            "invalid_rescaling", "expected a finite slope and intercept in the NIfTI file (scl_slope), got infinity."
        )
    if int(header["xyzt_units"]) % 8 in (1, 3):  # metres or micrometres
        raise DataError(
            "unsupported_unit",
            "expected lengths in millimetres in the NIfTI file (xyzt_units), got another unit. Save it in millimetres.",
        )
    edges = header["pixdim"][1:4]
    if not int(header["sform_code"]) and not (np.isfinite(edges).all() and edges.all()):
        raise _degenerate_affine_error()


def _degenerate_affine_error() -> DataError:
    return DataError(
        "degenerate_affine",
        "the affine of the volume is degenerate: its axes do not span a space, or its voxels have no size. Correct its "
        "header, or export it again.",
    )


def _check_volume(volume: Any) -> None:
    if not 1 <= math.prod(volume.shape) <= MAX_VOXELS or min(volume.shape) < 1:
        raise DataError(
            "invalid_image_size",
            f"expected a volume of 1 to {MAX_VOXELS // 10**6} million voxels, its header states "
            f"{_size_text(volume.shape)}. Crop or downsample it.",
            maximum=MAX_VOXELS,
            found=[int(length) for length in volume.shape],
        )
    check_memory(math.prod(volume.shape))
    if volume.get_data_dtype().fields is not None or volume.get_data_dtype().kind not in "iuf":
        raise DataError(
            "unsupported_pixel_format",
            "expected a NIfTI volume of real numbers, got colours or complex numbers. Convert it.",
        )
    if len(volume.shape) < 3 or any(length != 1 for length in volume.shape[3:]):
        raise DataError(
            "wrong_shape",
            f"expected one NIfTI volume of three axes, got the shape {_size_text(volume.shape)}. "
            "Save the volume to use in its own file.",
            found=[int(length) for length in volume.shape],
        )
    if not np.isfinite(volume.affine).all() or is_flat(volume.affine):
        raise _degenerate_affine_error()


def read_voxels(source: ImageSource) -> Volume:
    """Return the values of a volume as its file states them, such as HU in CT, and its position in space.

    Args:
        source: NIfTI, NRRD or MHA file, DICOM file with several frames, or the files of a DICOM series.

    Returns:
        Volume of shape (D, H, W), float32, in the orientation of the array that `read_image` returns.

    Raises:
        DataError: If the file is no volume, or can't be read.
    """
    if isinstance(source, SeriesFiles) or file_kind(source) == "dicom":
        return _canonical_series(read_series(source_files(source)))
    if file_kind(source) != "volume":
        raise DataError("wrong_dimensions", "expected a volume, got a 2-D image.", expected=3, found=2)
    volume = _open_volume(source)
    with decoding():
        return canonical_volume(volume)


def _read_volume(path: Path, reading: ImageReading) -> np.ndarray:
    reading.require_units("volume", deep=True)
    volume = read_voxels(path)
    if _is_slice(volume.values.shape):
        return reading.unit_values(volume.values).squeeze()
    return _unit_values(volume, reading)


def _unit_values(volume: Volume, reading: ImageReading) -> np.ndarray:
    """Return the values of a volume at the spacing of a reading rule, scaled to [0, 1]."""
    resampled = volume if reading.spacing is None else resample_to_spacing(volume, reading.spacing)
    return reading.unit_values(resampled.values)


def _is_slice(shape: tuple[int, ...]) -> bool:
    """Return True if a volume is a single slice: exactly one of its three axes has length 1."""
    return sorted(length > 1 for length in shape[:3]) == [False, True, True]


def _size_text(size: tuple[int, ...]) -> str:
    return "x".join(map(str, size))
