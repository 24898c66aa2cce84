"""Hostile and odd pictures, volumes, and what is no file, each through ``medfl prep folder`` and inference.

Further classes of input are in other modules: other formats under the names of pictures, and pictures that claim too
many pixels, in `tests/data/readers/test_pictures.py`; cut files, frames, palettes and 16 bits in colour in
`test_images.py`; pixels that a header names in another file in `test_itk_files.py`; masks on another grid in
`test_volume_masks.py`; DICOM in `test_hostile_dicom.py`; tables and names in `test_hostile_tables.py`.
"""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import nibabel
import numpy as np
import pytest
from hostile_checks import Hostile, bounded, check_image
from PIL import Image
from refusals import refused

from medfl.data.readers.images import inspect_image, read_image
from medfl.data.readers.quiet import quiet_decoders
from medfl.errors import DataError

BYTES = np.arange(16, dtype=np.uint8).reshape(4, 4) * 16
VOXELS = np.arange(64, dtype=np.int16).reshape(4, 4, 4)
UNIT = VOXELS / VOXELS.max()
CUBE = (4, 4, 4)


def picture(name: str, pixels: np.ndarray = BYTES, **options) -> bytes:
    """Return the bytes of a picture in the format of a suffix."""
    stream = io.BytesIO()
    kind = {".jpg": "JPEG", ".tif": "TIFF", ".pgm": "PPM"}.get(name, name[1:].upper())
    Image.fromarray(pixels).save(stream, kind, **options)
    return stream.getvalue()


def file(ending: str, content: bytes) -> Callable[[Path], Path]:
    """Return a function that writes a file."""

    def make(folder: Path) -> Path:
        path = folder / f"Secret-Sally{ending}"
        path.write_bytes(content)
        return path

    return make


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(width: int, height: int, rows: bytes, *more: bytes, depth: int = 8, colour: int = 0) -> bytes:
    """Return a PNG of arbitrary content."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(more) + pixels + chunk(b"IEND", b"")


def tiff(*entries: tuple[int, int, int, int], after: int = 0, content: bytes = b"") -> bytes:
    """Return a TIFF of one directory: (tag, type, count, value) for each entry, and the place of the next directory."""
    table = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return b"II*\0" + struct.pack("<IH", 8, len(entries)) + table + struct.pack("<I", after) + content


def grey_tiff(width: int, height: int, place: int = 200, length: int = 16, **options) -> bytes:
    """Return a TIFF of 8 bits whose pixels are said to be at a place of the file."""
    tags = [(256, 4, 1, width), (257, 4, 1, height), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1), (273, 4, 1, place)]
    whole = tiff(*tags, (277, 3, 1, 1), (278, 4, 1, height), (279, 4, 1, length), **options)
    return whole.ljust(200, b"\0") + BYTES.tobytes()


def deep_tiff(photometric: int) -> bytes:
    """Return a TIFF of 16 bits; 0 means that its large values are dark."""
    tags = [(256, 4, 1, 4), (257, 4, 1, 4), (258, 3, 1, 16), (259, 3, 1, 1), (262, 3, 1, photometric)]
    whole = tiff(*tags, (273, 4, 1, 200), (277, 3, 1, 1), (278, 4, 1, 4), (279, 4, 1, 32))
    return whole.ljust(200, b"\0") + (BYTES.astype("<u2") * 256).tobytes()


def nifti(voxels: np.ndarray = VOXELS, *, gz: bool = False, **header) -> bytes:
    """Return a NIfTI file whose header fields are then set to the given values."""
    whole = bytearray(nibabel.Nifti1Image(voxels, np.eye(4)).to_bytes())
    fields = nibabel.nifti1.header_dtype.fields
    record = np.frombuffer(whole, nibabel.nifti1.header_dtype, count=1)
    assert not set(header) - set(fields)
    for name, value in header.items():
        record[name] = value
    return gzip.compress(bytes(whole)) if gz else bytes(whole)


def volume(ending: str = ".nii", **header) -> Callable[[Path], Path]:
    """Return a function that writes a NIfTI file; see `nifti`."""
    return file(ending, nifti(gz=ending.endswith("gz"), **header))


def sized(*shape: int) -> list[int]:
    """Return the field ``dim`` of a NIfTI header."""
    return [len(shape), *shape, *[1] * (7 - len(shape))]


def extended(size: int, count: int = 1) -> bytes:
    """Return a NIfTI file with extensions that state a size."""
    whole = nifti(vox_offset=352 + 32)
    return whole[:348] + b"\1\0\0\0" + struct.pack("<ii", size, 4) * count + bytes(32 - 8 * count) + whole[352:]


FULL = np.zeros((4, 4), np.uint8)
PICTURES = {
    "a PNG of 40,000 pixels a side": Hostile(file(".png", png(40_000, 40_000, b"")), "invalid_image_size"),
    "a PNG of two billion pixels a side": Hostile(file(".png", png(2**31 - 1, 2**31 - 1, b"")), "invalid_image_size"),
    "a TIFF of 40,000 pixels a side": Hostile(file(".tif", grey_tiff(40_000, 40_000)), "invalid_image_size"),
    "a BMP of 40,000 pixels a side": Hostile(
        file(".bmp", b"BM" + struct.pack("<IIIIiiHHIIiiII", 9, 0, 54, 40, 40_000, 40_000, 1, 8, 0, 0, 1, 1, 0, 0)),
        "invalid_image_size",
    ),
    "a PGM of 40,000 pixels a side": Hostile(file(".pgm", b"P5 40000 40000 255\n"), "invalid_image_size"),
    "a PNG of no pixels": Hostile(file(".png", png(0, 0, b"")), "damaged_file"),
    "a BMP of no pixels": Hostile(
        file(".bmp", b"BM" + struct.pack("<IIIIiiHHIIiiII", 9, 0, 54, 40, 0, 0, 1, 24, 0, 0, 1, 1, 0, 0)),
        "damaged_file",
    ),
    "a PNG whose pixels inflate to 100 MB": Hostile(file(".png", png(4, 4, bytes(5) * 4 + bytes(10**8)))),
    "a PNG whose comment inflates to 300 MB": Hostile(
        file(".png", png(4, 4, bytes(20), chunk(b"zTXt", b"Secret\0\0" + zlib.compress(bytes(3 * 10**8))))),
        "damaged_file",
    ),
    "a PNG whose colour profile inflates to 300 MB": Hostile(
        file(".png", png(4, 4, bytes(20), chunk(b"iCCP", b"Sally\0\0" + zlib.compress(bytes(3 * 10**8))))),
        "damaged_file",
    ),
    "a PNG of 20,000 comments": Hostile(file(".png", png(4, 4, bytes(20), chunk(b"tEXt", b"Secret\0Sally") * 20_000))),
    "a PNG whose chunk is longer than the file": Hostile(
        file(".png", png(4, 4, b"").replace(struct.pack(">I", 8) + b"IDAT", struct.pack(">I", 2**31 - 1) + b"IDAT")),
        "damaged_file",
    ),
    "a PNG with a wrong checksum": Hostile(
        file(".png", picture(".png").replace(b"IHDR\0\0\0\4", b"IHDR\0\0\0\5")), "damaged_file"
    ),
    "a PNG of too few rows": Hostile(file(".png", png(4, 4, bytes(6))), "damaged_file"),
    "a PNG of another kind of colour": Hostile(file(".png", png(4, 4, bytes(20), colour=5)), "damaged_file"),
    "an animated PNG": Hostile(
        file(".png", picture(".png", save_all=True, append_images=[Image.fromarray(FULL)])), "several_frames"
    ),
    "a TIFF whose pixels are behind its end": Hostile(file(".tif", grey_tiff(4, 4, 10**9)), "damaged_file"),
    "a TIFF whose pixels are longer than the file": Hostile(file(".tif", grey_tiff(4, 4, 200, 2**31)), values=BYTES),
    "a TIFF of 16 bits": Hostile(file(".tif", deep_tiff(1)), values=BYTES / 240),
    "a TIFF of 16 bits whose large values are dark": Hostile(file(".tif", deep_tiff(0)), values=1 - BYTES / 240),
    "a TIFF whose directory is followed by itself": Hostile(file(".tif", grey_tiff(4, 4, after=8)), values=BYTES),
    "a TIFF without tags": Hostile(file(".tif", tiff()), "damaged_file"),
    "a TIFF whose directory is behind its end": Hostile(file(".tif", b"II*\0\xff\xff\xff\x7f"), "damaged_file"),
    "a TIFF with a tag of four billion values": Hostile(
        file(".tif", tiff((256, 4, 2**32 - 1, 8), (257, 4, 1, 4))), "damaged_file"
    ),
    "a TIFF of 60,000 samples a pixel": Hostile(
        file(
            ".tif", grey_tiff(4, 4).replace(struct.pack("<HHII", 277, 3, 1, 1), struct.pack("<HHII", 277, 3, 1, 60_000))
        ),
        "damaged_file",
    ),
    "a JPEG without its tables": Hostile(
        file(".jpg", picture(".jpg").replace(b"\xff\xdb", b"\xff\xfe").replace(b"\xff\xc4", b"\xff\xfe")),
        "damaged_file",
    ),
    "a JPEG of 60,000 pixels a side": Hostile(
        file(".jpg", picture(".jpg").replace(b"\xff\xc0\0\x0b\x08\0\4\0\4", b"\xff\xc0\0\x0b\x08\xea\x60\xea\x60")),
        "invalid_image_size",
    ),
    "a JPEG with an orientation that is no orientation": Hostile(
        file(".jpg", picture(".jpg", exif=b"Exif\0\0II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\x63\0\0\0\0\0\0\0"))
    ),
    "a JPEG with metadata that never end": Hostile(
        file(".jpg", picture(".jpg", exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff\x12\1\3\0\xff\xff\xff\xff\x63\0\0\0"))
    ),
    "a PGM whose comment never ends": Hostile(file(".pgm", b"P5 #" + b"Secret Sally" * 10**4), "damaged_file"),
    "a PGM of a number of 10,000 digits": Hostile(file(".pgm", b"P5 " + b"9" * 10_000 + b" 4 255\n"), "damaged_file"),
    "a PGM with letters for pixels": Hostile(file(".pgm", b"P2 4 4 255\nSecret Sally"), "damaged_file"),
    "a PGM of 17 bits": Hostile(file(".pgm", b"P5 4 4 70000\n" + bytes(64)), "damaged_file"),
    "a PGM of 16 bits": Hostile(
        file(".pgm", b"P5 4 4 65535\n" + (BYTES.astype(">u2") * 256).tobytes()), values=BYTES / 240
    ),
    "a float TIFF with infinity": Hostile(
        file(".tif", picture(".tif", np.where(BYTES > 9, np.inf, 1).astype(np.float32))), "not_finite"
    ),
    "an int32 TIFF with both ends": Hostile(
        file(".tif", picture(".tif", np.where(BYTES > 9, 2**31 - 1, -(2**31)).astype(np.int32))), values=BYTES > 9
    ),
    "a picture that is an archive too": Hostile(file(".png", picture(".png") + b"PK\5\6" + bytes(18)), values=BYTES),
}

VOLUMES = {
    "an affine that is no number": Hostile(
        volume(sform_code=1, srow_x=[np.nan, 0, 0, 0]), "degenerate_affine", size=CUBE
    ),
    "an affine of zeros": Hostile(volume(sform_code=1, srow_x=0, srow_y=0, srow_z=0), "degenerate_affine", size=CUBE),
    "an affine in one plane": Hostile(
        volume(sform_code=1, srow_z=[1, 0, 0, 0], srow_x=[1, 0, 0, 0]), "degenerate_affine", size=CUBE
    ),
    "an affine of infinite lengths": Hostile(
        volume(sform_code=1, srow_x=[np.inf, 0, 0, 0]), "degenerate_affine", size=CUBE
    ),
    "voxels of no size": Hostile(
        volume(sform_code=0, qform_code=0, pixdim=[1, 0, 0, 0, 0, 0, 0, 0]), "degenerate_affine", size=CUBE
    ),
    "voxels of a negative size": Hostile(
        volume(sform_code=0, qform_code=1, pixdim=[1, -1, -1, -1, 0, 0, 0, 0]), size=CUBE
    ),
    "a rotation that is none": Hostile(
        volume(sform_code=0, qform_code=1, quatern_b=9, quatern_c=9, quatern_d=9), "damaged_file", size=CUBE
    ),
    "lengths in metres": Hostile(volume(xyzt_units=1), "unsupported_unit", size=CUBE),
    "lengths in micrometres, times in seconds": Hostile(volume(xyzt_units=3 + 8), "unsupported_unit", size=CUBE),
    "lengths in millimetres, times in a unit that is none": Hostile(volume(xyzt_units=2 + 56), size=CUBE, values=UNIT),
    "lengths that overflow": Hostile(volume(dim=sized(32767, 32767, 32767)), "invalid_image_size", size=CUBE),
    "negative lengths": Hostile(volume(dim=sized(-4, -4, 4)), "invalid_image_size", size=CUBE),
    "no voxels": Hostile(volume(dim=sized(0, 4, 4)), "invalid_image_size", size=CUBE),
    "more voxels than the file holds": Hostile(volume(dim=sized(400, 400, 400)), "damaged_file", size=CUBE),
    "more voxels than the compressed file holds": Hostile(
        volume(".nii.gz", dim=sized(700, 700, 700)), "damaged_file", size=CUBE
    ),
    "no axes": Hostile(volume(dim=[0, *[4] * 7]), "invalid_image_size", size=CUBE),
    "seven axes": Hostile(volume(dim=sized(2, 2, 2, 2, 2, 2, 1)), "wrong_shape", size=CUBE),
    "eight axes": Hostile(volume(dim=[8, *[2] * 7]), "damaged_file", size=CUBE),
    "five axes, two of length 1": Hostile(volume(dim=sized(4, 4, 4, 1, 1)), size=CUBE, values=UNIT),
    "colours": Hostile(volume(datatype=128, bitpix=24, dim=sized(4, 4, 2)), "unsupported_pixel_format", size=CUBE),
    "128 bits": Hostile(volume(datatype=1536, bitpix=128, dim=sized(4, 2, 1)), "damaged_file", size=CUBE),
    "a type that is no type": Hostile(volume(datatype=999), "damaged_file", size=CUBE),
    "one bit": Hostile(volume(datatype=1, bitpix=1), "damaged_file", size=CUBE),
    "another magic": Hostile(volume(magic=b"sal"), "damaged_file", size=CUBE),
    "the magic of two files": Hostile(volume(magic=b"ni1"), size=CUBE, values=UNIT),
    "voxels before the header": Hostile(volume(vox_offset=-100), "damaged_file", size=CUBE),
    "voxels behind the end": Hostile(volume(vox_offset=1e30), "damaged_file", size=CUBE),
    "voxels at no place": Hostile(volume(vox_offset=np.nan), "damaged_file", size=CUBE),
    "a slope that is no number": Hostile(volume(scl_slope=np.nan), size=CUBE, values=UNIT),
    "an infinite slope": Hostile(volume(scl_slope=np.inf), "invalid_rescaling", size=CUBE),
    "a slope that overflows": Hostile(volume(scl_slope=1e38), "not_finite", size=CUBE),
    "a negative slope": Hostile(volume(scl_slope=-2), size=CUBE, values=1 - UNIT),
    "an extension of no length": Hostile(file(".nii", extended(0)), "damaged_file", size=CUBE),
    "an extension of a negative length": Hostile(file(".nii", extended(-16)), "damaged_file", size=CUBE),
    "an extension of 500 MB": Hostile(file(".nii", extended(2**29)), "damaged_file", size=CUBE),
    "no gzip": Hostile(file(".nii.gz", nifti()), "wrong_file_ending", {"ending": ".gz"}, size=CUBE),
    "a text in place of gzip": Hostile(file(".nii.gz", b"Secret Sally" * 99), "wrong_file_ending", size=CUBE),
    "half of gzip": Hostile(file(".nii.gz", nifti(gz=True)[:-60]), "damaged_file", size=CUBE),
    "gzip with a wrong checksum": Hostile(file(".nii.gz", nifti(gz=True)[:-8] + bytes(8)), "damaged_file", size=CUBE),
    "gzip in gzip": Hostile(file(".nii.gz", gzip.compress(nifti(gz=True))), "damaged_file", size=CUBE),
    "a volume followed by 300 MB": Hostile(
        file(".nii.gz", gzip.compress(nifti() + bytes(3 * 10**8), 1)), size=CUBE, values=UNIT
    ),
    "an empty volume": Hostile(file(".nii.gz", b""), "wrong_file_ending", size=CUBE),
    "big endian": Hostile(
        file(".nii", nibabel.Nifti1Image(VOXELS, np.eye(4), nibabel.Nifti1Header(endianness=">")).to_bytes()),
        size=CUBE,
        values=UNIT,
    ),
}

CASES = PICTURES | VOLUMES


def test_a_volume_larger_than_the_memory_is_refused_before_it_is_inflated(tmp_path, monkeypatch):
    monkeypatch.setattr("medfl.data.readers.volumes.available_memory", lambda: 64 * 12 - 1)
    with refused(DataError, "out_of_memory", needed=64 * 12, free=64 * 12 - 1):
        inspect_image(volume(".nii.gz")(tmp_path))


@pytest.mark.slow
def test_a_picture_at_the_limit_is_read_within_two_gigabytes(tmp_path):
    """178 million pixels, of 170 kB in the file."""
    rows = zlib.compressobj(1)
    row = bytes(13_301)
    pixels = b"".join([rows.compress(row) for _ in range(13_300)]) + rows.flush()
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 13_300, 13_300, 8, 0, 0, 0, 0))
    path = tmp_path / "a.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", pixels) + chunk(b"IEND", b""))
    with bounded(tmp_path, 2 << 30), quiet_decoders():
        assert read_image(path, (4, 4), 1).tolist() == [[0] * 4] * 4


@pytest.mark.parametrize("case", CASES)
def test_a_picture_or_volume_is_refused_or_read(tmp_path, case):
    check_image(tmp_path, CASES[case])
