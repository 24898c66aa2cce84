"""Test reading of one image file: pixel values by closed forms, and unreadable files."""

from __future__ import annotations

import nibabel
import numpy as np
import pytest
import torch
from image_makers import dicom, nifti, picture, png16, ppm16, tiff16
from PIL import Image
from pydicom.uid import MPEG2MPML
from refusals import refused

from medfl.data.readers.images import IMAGE_SUFFIXES, ImageKind, inspect_image, read_image
from medfl.errors import DataError, SettingsError

RAMP = np.arange(24, dtype=np.uint8).reshape(4, 6) * 10
TWELVE = np.linspace(0, 4095, 24).astype(np.uint16).reshape(4, 6)
UNIT = (TWELVE / 4095).astype(np.float32)


@pytest.mark.parametrize("name", ["a.png", "a.bmp", "a.tif", "a.pgm", "a.PNG"])
def test_grey_images_keep_their_values(tmp_path, name):
    image = read_image(picture(tmp_path / name, RAMP), (4, 6), 1)
    assert image.dtype == np.uint8
    np.testing.assert_array_equal(image, RAMP)


def test_grey_and_colour(tmp_path):
    red = np.zeros((2, 3, 3), np.uint8)
    red[..., 0] = 200
    path = picture(tmp_path / "red.png", red)
    np.testing.assert_array_equal(read_image(path, (2, 3), 3), red)
    assert set(read_image(path, (2, 3), 1).flat) == {round(0.299 * 200)}
    as_colour = read_image(picture(tmp_path / "grey.png", RAMP), (4, 6), 3)
    np.testing.assert_array_equal(as_colour, np.stack([RAMP] * 3, axis=-1))


@pytest.mark.parametrize("mode", ["1", "P", "LA", "RGBA", "CMYK"])
def test_every_mode_of_8_bits_gives_uint8(tmp_path, mode):
    white = Image.new("RGB", (3, 2), "white").convert(mode)
    path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    white.save(path)
    for channels, shape in ((1, (2, 3)), (3, (2, 3, 3))):
        image = read_image(path, (2, 3), channels)
        assert (image.dtype, image.shape) == (np.uint8, shape)
        assert (image == 255).all()
    assert inspect_image(path) == ImageKind(2, colour=mode not in ("1", "LA"), deep=False)


def test_a_camera_held_sideways(tmp_path):
    tags = Image.Exif()
    tags[0x0112] = 6  # the camera was turned by 90 degrees
    path = picture(tmp_path / "a.png", RAMP, exif=tags)
    np.testing.assert_array_equal(read_image(path, (6, 4), 1), np.rot90(RAMP, -1))


def test_a_phone_held_sideways(tmp_path):
    """JPEG files of phones have an orientation entry, and further images after the first one."""
    half = np.zeros((32, 48), np.uint8)
    half[:, :24] = 255
    tags = Image.Exif()
    tags[0x0112] = 6
    further = {"format": "MPO", "save_all": True, "append_images": [Image.fromarray(RAMP)]}
    for name, options in (("a.jpg", {}), ("b.jpg", further)):
        path = picture(tmp_path / name, half, exif=tags, **options)
        np.testing.assert_allclose(read_image(path, (48, 32), 1), np.rot90(half, -1), atol=8)
    with Image.open(path) as image:
        assert image.n_frames == 2


@pytest.mark.filterwarnings("error")
def test_palettes_with_a_transparent_colour(tmp_path):
    image = Image.fromarray(np.array([[0, 1, 2]], np.uint8), "P")
    image.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
    image.save(tmp_path / "a.png", transparency=bytes([0, 128, 255]))
    expected = [[[10, 20, 30], [40, 50, 60], [70, 80, 90]]]
    np.testing.assert_array_equal(read_image(tmp_path / "a.png", (1, 3), 3), expected)


def test_images_of_one_bit_are_black_and_white(tmp_path):
    bits = RAMP > 100
    Image.fromarray(bits).save(tmp_path / "a.png")
    np.testing.assert_array_equal(read_image(tmp_path / "a.png", (4, 6), 1), bits * 255)


def test_a_jpeg_of_four_inks_is_not_inverted(tmp_path):
    Image.new("CMYK", (8, 8), (0, 255, 255, 0)).save(tmp_path / "a.jpg")
    np.testing.assert_allclose(read_image(tmp_path / "a.jpg", (8, 8), 3)[3, 3], [255, 0, 0], atol=6)


@pytest.mark.parametrize("make", [png16, tiff16, ppm16])
def test_colour_of_16_bits_is_refused_because_only_its_upper_half_would_be_read(tmp_path, make):
    for channels in (3, 4) if make is png16 else (3,):
        path = make(tmp_path / "a", np.arange(6 * channels).reshape(2, 3, channels) * 1000)
        for read in (inspect_image, lambda file: read_image(file, (2, 3), 3)):
            with refused(DataError, "too_many_bits", maximum=8):
                read(path)
    grey = png16(tmp_path / "grey", TWELVE[..., None])
    np.testing.assert_allclose(read_image(grey, (4, 6), 1), UNIT, atol=1e-6)
    with refused(DataError, "too_many_bits", maximum=8):
        inspect_image(png16(tmp_path / "alpha", np.stack([TWELVE, TWELVE], axis=-1)))


@pytest.mark.parametrize("pixels", [TWELVE, TWELVE.astype(np.int32) - 5, TWELVE.astype(np.float32) * 3])
def test_deeper_images_are_scaled_by_their_own_range(tmp_path, pixels):
    path = picture(tmp_path / "a.tif", pixels)
    image = read_image(path, (4, 6), 1)
    assert image.dtype == np.float32
    np.testing.assert_allclose(image, UNIT, atol=1e-6)
    assert inspect_image(path) == ImageKind(2, colour=False, deep=True)


def test_dicom_of_12_bits(tmp_path):
    plain = read_image(dicom(tmp_path / "a.dcm", TWELVE), (4, 6), 1)
    assert plain.dtype == np.float32
    np.testing.assert_allclose(plain, UNIT, atol=1e-6)
    inverted = read_image(dicom(tmp_path / "b.dcm", TWELVE, "MONOCHROME1"), (4, 6), 1)
    np.testing.assert_allclose(inverted, 1 - UNIT, atol=1e-6)
    as_colour = read_image(tmp_path / "a.dcm", (4, 6), 3)
    np.testing.assert_array_equal(as_colour, np.stack([plain] * 3, axis=-1))


def test_rescaling_a_dicom_image(tmp_path):
    signed = dicom(tmp_path / "a.dcm", TWELVE.astype(np.int16) - 1000, stored=16)
    np.testing.assert_allclose(read_image(signed, (4, 6), 1), UNIT, atol=1e-6)
    shifted = dicom(tmp_path / "b.dcm", TWELVE, RescaleSlope="2.5", RescaleIntercept="-1024")
    np.testing.assert_allclose(read_image(shifted, (4, 6), 1), UNIT, atol=1e-6)
    negative = dicom(tmp_path / "c.dcm", TWELVE, RescaleSlope="-1", RescaleIntercept="0")
    np.testing.assert_allclose(read_image(negative, (4, 6), 1), 1 - UNIT, atol=1e-6)


def test_dicom_in_colour_is_as_a_file_of_8_bits(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    path = dicom(tmp_path / "without-ending", pixels, "RGB")
    np.testing.assert_array_equal(read_image(path, (4, 6), 3), pixels)
    same = picture(tmp_path / "a.png", pixels)
    np.testing.assert_array_equal(read_image(path, (2, 3), 1), read_image(same, (2, 3), 1))
    assert inspect_image(path) == inspect_image(same) == ImageKind(2, colour=True, deep=False)
    grey = np.full((4, 6, 3), (77, 128, 128), np.uint8)
    assert (read_image(dicom(tmp_path / "ybr", grey, "YBR_FULL"), (4, 6), 3) == 77).all()


def test_an_image_of_one_value_becomes_zeros(tmp_path):
    assert not read_image(dicom(tmp_path / "a.dcm", np.full((4, 6), 7, np.uint16)), (2, 3), 1).any()


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
def test_volumes_are_turned_to_the_canonical_orientation(tmp_path, name):
    voxels = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    expected = voxels / np.float32(23)
    np.testing.assert_allclose(read_image(nifti(tmp_path / name, voxels), (2, 3, 4), 1), expected, atol=1e-6)
    flipped = nifti(tmp_path / name, voxels[::-1], np.diag([-1, 1, 1, 1]))
    np.testing.assert_allclose(read_image(flipped, (2, 3, 4), 1), expected, atol=1e-6)
    affine = np.eye(4)[[2, 1, 0, 3]]  # the first axis of the file runs from feet to head, the last from left to right
    turned = nifti(tmp_path / name, voxels.transpose(2, 1, 0), affine)
    assert nibabel.aff2axcodes(affine) == ("S", "A", "R")
    np.testing.assert_allclose(read_image(turned, (2, 3, 4), 1), expected, atol=1e-6)
    assert inspect_image(tmp_path / name) == ImageKind(3, colour=False, deep=True)
    np.testing.assert_allclose(read_image(nifti(tmp_path / name, voxels[..., None]), (2, 3, 4), 1), expected, atol=1e-6)


@pytest.mark.parametrize("size", [(12, 20), (31, 17), (90, 60), (12, 60), (48, 40)])
def test_resizing_is_the_antialiased_one_of_torch(tmp_path, size):
    pixels = np.random.default_rng(1).random((48, 40)).astype(np.float32)
    pixels.flat[:2] = 0, 1
    image = read_image(picture(tmp_path / "a.tif", pixels), size, 1)
    expected = torch.nn.functional.interpolate(
        torch.from_numpy(pixels)[None, None], size, mode="bilinear", antialias=True
    )
    np.testing.assert_allclose(image, expected[0, 0], atol=1e-5)


def test_nothing_is_skipped_when_an_image_shrinks(tmp_path):
    board = (np.indices((64, 64)).sum(axis=0) % 2 * 255).astype(np.uint8)
    assert abs(read_image(picture(tmp_path / "a.png", board), (4, 4), 1).astype(int) - 127.5).max() <= 2.5


def test_resizing_a_volume_is_linear_along_each_axis(tmp_path):
    ramps = [np.arange(8.0), np.arange(12.0), np.arange(16.0)]
    voxels = (ramps[0][:, None, None] * 2 + ramps[1][:, None] * 3 + ramps[2]).astype(np.float32)
    image = read_image(nifti(tmp_path / "a.nii", voxels), (4, 6, 8), 1)
    inner = [2 * np.arange(length) + 0.5 for length in (4, 6, 8)]
    expected = (inner[0][:, None, None] * 2 + inner[1][:, None] * 3 + inner[2]) / voxels.max()
    middle = (slice(1, -1),) * 3
    np.testing.assert_allclose(image[middle], expected[middle], atol=1e-6)


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    return path


def lab(path):
    Image.new("LAB", (3, 2)).save(path)
    return path


NOISE = np.random.default_rng(2).integers(0, 256, (40, 40), dtype=np.uint8)
FRAMES = {"save_all": True, "append_images": [Image.fromarray(RAMP)]}
BAD = {
    "nothing": (lambda folder: folder / "none.png", "unreadable_file", {"reason": "No such file or directory"}),
    "a folder": (lambda folder: folder, "unreadable_file", {"reason": "Is a directory"}),
    "empty": (lambda folder: (folder / "a.png").touch() or folder / "a.png", "wrong_file_ending", {"ending": ".png"}),
    "a cut PNG": (lambda folder: cut(picture(folder / "a.png", NOISE)), "damaged_file", {}),
    "a cut JPEG": (lambda folder: cut(picture(folder / "a.jpg", NOISE)), "damaged_file", {}),
    "a cut DICOM": (lambda folder: cut(dicom(folder / "a", NOISE)), "damaged_file", {}),
    "a cut NIfTI": (lambda folder: cut(nifti(folder / "a.nii", NOISE[..., None])), "damaged_file", {}),
    "a cut gz": (lambda folder: cut(nifti(folder / "a.nii.gz", NOISE[..., None])), "damaged_file", {}),
    "TIFF frames": (lambda folder: picture(folder / "a.tif", RAMP, **FRAMES), "several_frames", {"found": 2}),
    "DICOM frames": (lambda folder: dicom(folder / "a", TWELVE, NumberOfFrames=2), "several_frames", {"found": 2}),
    "a report": (lambda folder: dicom(folder / "a", TWELVE, without=("Rows", "PixelData")), "missing_pixels", {}),
    "LAB": (lambda folder: lab(folder / "a.tif"), "unsupported_pixel_format", {"found": "LAB"}),
    "a float TIFF with NaN": (
        lambda folder: picture(folder / "a.tif", np.where(UNIT > 0.5, UNIT, np.nan)),
        "not_finite",
        {},
    ),
    "a palette": (
        lambda folder: dicom(folder / "a", RAMP, "PALETTE COLOR"),
        "unsupported_pixel_format",
        {"found": "PALETTE COLOR", "samples": 1, "bits": 8},
    ),
    "packed": (
        lambda folder: dicom(folder / "a", TWELVE, syntax=MPEG2MPML),
        "unsupported_compression",
        {"name": MPEG2MPML.name},
    ),
    "4-D": (lambda folder: nifti(folder / "a.nii", np.zeros((2, 2, 2, 5))), "wrong_shape", {"found": [2, 2, 2, 5]}),
    "2-D NIfTI": (lambda folder: nifti(folder / "a.nii", np.zeros((2, 2))), "wrong_shape", {"found": [2, 2]}),
    "complex": (
        lambda folder: nifti(folder / "a.nii", np.zeros((2, 2, 2), np.complex64)),
        "unsupported_pixel_format",
        {},
    ),
    "NaN": (lambda folder: nifti(folder / "a.nii", np.full((2, 2, 2), np.nan)), "not_finite", {}),
    "a text": (lambda folder: (folder / "a.nii").write_text("no") and folder / "a.nii", "damaged_file", {}),
}


@pytest.mark.parametrize("case", BAD)
def test_what_can_not_be_read(tmp_path, case):
    make, code, fields = BAD[case]
    path = make(tmp_path)
    for size in ((4, 4), (2, 2, 2)):
        with refused(DataError, code, **fields) as error:
            read_image(path, size, 1)
    disclosed = f"{error.value}{error.value.fields}"
    assert "a.nii" not in disclosed
    assert str(tmp_path) not in disclosed, "a message names no file"
    assert error.value.__context__ is None or error.value.__suppress_context__, "nor does a decoder's own message"


def test_sizes_and_channels_that_do_not_fit(tmp_path):
    flat, deep = picture(tmp_path / "a.png", RAMP), nifti(tmp_path / "a.nii", np.zeros((2, 2, 2)))
    with refused(DataError, "wrong_dimensions", expected=3, found=2):
        read_image(flat, (4, 4, 4), 1)
    with refused(DataError, "wrong_dimensions", expected=2, found=3):
        read_image(deep, (4, 4), 1)
    with refused(SettingsError, "setting_out_of_range", setting="channels", expected=[1, 3], found=2):
        read_image(flat, (4, 4), 2)
    with refused(SettingsError, "setting_out_of_range", setting="channels", expected=[1], found=3):
        read_image(deep, (2, 2, 2), 3)


def test_the_endings_are_written_small():
    assert all(ending == ending.lower() and ending.startswith(".") for ending in IMAGE_SUFFIXES)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_nifti_volume_of_one_slice_is_an_image(tmp_path, axis):
    plane = np.arange(12, dtype=np.float32).reshape(3, 4)
    path = nifti(tmp_path / "a.nii", np.expand_dims(plane, axis))
    assert inspect_image(path).dims == 2
    np.testing.assert_allclose(read_image(path, (3, 4), 1), plane / 11, atol=1e-6)
    assert read_image(path, (6, 8), 3).shape == (6, 8, 3)
    with refused(DataError, "wrong_dimensions", expected=3, found=2):
        read_image(path, (3, 4, 1), 1)
