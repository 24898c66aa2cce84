"""The options of a hospital's own images; see `medfl.ingest.own_images`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer

from medfl.data.datalists import Datalist
from medfl.ingest.labels import Columns
from medfl.ingest.options import Positional, read_edges, size_text
from medfl.ingest.own_images import prepare
from medfl.ingest.spec import WholeSpec
from medfl.utils.text import Say


def _written(size: tuple[int, ...]) -> int | str:
    return size_text(size)


class Folder(WholeSpec):
    """Your own image files with a table of labels. No file name and no patient's identifier is kept.

    8-bit images stay as they are but for their size; DICOM, NIfTI and deeper ones are scaled to [0, 1], each by its own
    range, without what pads it. The aspect ratio is not kept. With --crop-breast, --align or --voi mammograms are read
    as by medfl prep cbis_ddsm, and predicted so.
    """

    dataset = "folder"
    unreadable = "option skip_unreadable"
    parallel = False

    images: Annotated[Path, Positional()]
    """The folder of the image files: PNG, JPEG, TIFF, DICOM, NIfTI, ..."""
    table: Path
    """CSV or TSV with a row for each image."""
    image_column: str
    """Column with the path of the file below IMAGES."""
    label_column: str
    """Column with the class."""
    size: Annotated[tuple[int, ...], BeforeValidator(read_edges), PlainSerializer(_written)]
    """Of the images in the array: 224, 224x160 (HxW) or 64x64x32 (DxHxW)."""
    group_column: str | None = None
    """Column with the patient; it is not kept."""
    site_column: str | None = None
    """Column with the site; kept as 'site'."""
    split_column: str | None = None
    """Column with train, val or test."""
    keep_column: tuple[str, ...] | None = None
    """Another column to keep; may be repeated."""
    name: str | None = None
    """Of the data set; by default that of --out."""
    licence: str = "not stated"
    """Terms of use, as the data list shall state them."""
    channels: int | None = None
    """1 or 3; by default 3 if an image has colour."""
    crop_breast: bool = False
    """Cut the breast out of whole mammograms (needs medfl[mammography])."""
    align: bool = False
    """Mirror right breasts: the chest wall is on the left."""
    voi: bool = False
    """Apply the window for display that a DICOM file holds."""
    deidentify_check: str = "strip"
    """DICOM that may tell who the patient is: strip, or refuse it."""

    @classmethod
    def locate(cls, top: Path, options: Mapping[str, Any]) -> dict[str, Path]:
        """Nothing: a study names the folder and the table."""
        return {}

    def columns(self) -> Columns:
        """Which column says what."""
        return Columns(
            self.image_column,
            self.label_column,
            self.group_column,
            self.site_column,
            self.split_column,
            tuple(self.keep_column or ()),
        )

    def make(self, out: Path, *, force: bool, workers: int | None, require_complete: bool, say: Say) -> Datalist:
        """Write the pooled data set."""
        reading = {"crop_breast": self.crop_breast, "align": self.align, "voi": self.voi}
        return prepare(
            self.images,
            self.table,
            self.columns(),
            self.size,
            out,
            name=self.name,
            licence=self.licence,
            channels=self.channels,
            skip_unreadable=not require_complete,
            deidentify_check=self.deidentify_check,
            reading=reading if any(reading.values()) else None,
            force=force,
            say=say,
        )
