"""A hospital's own image files and a table of labels in, a pooled data set out.

The pooled data set holds nothing that says who a patient is: no names of files, no identifiers. Patients get running
numbers. What is kept is what the user names: labels, sites and other columns.

Images are read by the rules of `medfl.data.readers.images`. The array is uint8 if all files have 8 bits a channel; if
any file is deeper (DICOM in grey, NIfTI, 16 bits), it is float32 in [0, 1] for all. On request they are read as the
preparations of mammograms do it (`medfl.data.readers.mammogram_image`); the array is then uint16.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, PlainSerializer

from medfl.data.datalists import Datalist
from medfl.data.readers.dicom_identity import CHECKS
from medfl.data.readers.dicom_intent import intent_records, tell_intents
from medfl.data.readers.images import ImageKind
from medfl.data.readers.mammogram_image import about_reading
from medfl.data.table import read_table
from medfl.errors import DataError
from medfl.ingest.choice import Choice, Outcome, exclusions, rows_to_mend
from medfl.ingest.image_folder import ImageFolder
from medfl.ingest.labels import Columns, Rows, read_rows
from medfl.ingest.options import Choose, Positional, read_edges, size_text
from medfl.ingest.own_form import form_of, look_at_all, read_row
from medfl.ingest.spec import ImageSpec
from medfl.records.datalist import CaseRecord, make_record
from medfl.utils.text import Say

UNSTATED = "not stated"
"""Licence of a data set whose user gave none."""

NO_GROUPS = (
    "warning: without --group-column each image counts as a patient of its own: "
    "images of one patient may then be at several sites and in several splits"
)
"""Said where the table does not name the patients."""


@dataclass(frozen=True)
class Own:
    """What is known of the images.

    Attributes:
        rows: What the table says; a place is one of its rows.
        kinds: Place to what the file holds, of those that can be read.
        warnings: For the data list.
    """

    rows: Rows
    kinds: dict[int, ImageKind]
    warnings: list[str]


def _written(size: tuple[int, ...]) -> int | str:
    return size_text(size)


class Folder(ImageSpec):
    """Your own image files with a table of labels. No file name and no patient's identifier is kept.

    8-bit images stay as they are but for their size; DICOM, NIfTI and deeper ones are scaled to [0, 1], each by its own
    range, without what pads it. The aspect ratio is not kept. With --crop-breast, --align or --voi mammograms are read
    as by medfl prep cbis_ddsm, and predicted so.

    Example: medfl prep folder images --table labels.csv --image-column file --label-column diagnosis --group-column
    patient --site-column hospital --size 64 --out data/own
    """

    dataset = "folder"
    unreadable = "option skip_unreadable"
    terms = ""
    citation = ""

    images: Annotated[Path, Positional()]
    """The folder of the image files: PNG, JPEG, TIFF, DICOM, NIfTI, NRRD, MHA, ..."""
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
    licence: str = UNSTATED
    """Terms of use, as the data list shall state them."""
    channels: int | None = None
    """1 or 3; by default 3 if an image has colour."""
    crop_breast: bool = False
    """Cut the breast out of whole mammograms (needs the extra `mammography`)."""
    align: bool = False
    """Mirror right breasts: the chest wall is on the left."""
    voi: bool = False
    """Apply the window for display that a DICOM file holds."""
    deidentify_check: Annotated[str, Choose(CHECKS)] = "strip"
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

    def reading(self) -> dict[str, bool] | None:
        """How mammograms are read, as `medfl.data.readers.mammogram_image.READING`; None if the images are none."""
        reading = {"crop_breast": self.crop_breast, "align": self.align, "voi": self.voi}
        return reading if any(reading.values()) else None

    def named_after(self, out: Path) -> Self:
        """The data set has the name of its folder, unless the user gives one."""
        return self.model_copy(update={"name": self.name or out.absolute().name})

    def title(self) -> str:
        """What the user named it."""
        return self.name or self.dataset

    def credits(self) -> list[str]:
        """The terms of use as the user states them."""
        hint = " (state it with --licence TEXT)" if self.licence == UNSTATED else ""
        return [f"{self.title()}: licence {self.licence}{hint}"]

    def find(self) -> tuple[Rows, list[Path]]:
        """The rows of the table, and the file of each."""
        rows = read_rows(read_table(self.table), self.columns())
        return rows, ImageFolder(self.images).find(rows.images, rows.numbers)

    def choose(self, files: tuple[Rows, list[Path]], say: Say) -> Choice:
        """All images whose heads can be read; the heads tell what the images become."""
        rows, paths = files
        if self.group_column is None:
            say(NO_GROUPS)
        kinds, failed = look_at_all(paths, self.deidentify_check, say)
        if not kinds:
            raise DataError(
                "no_readable_image",
                rows_to_mend(failed, len(paths), rows.numbers.__getitem__),
                count=len(failed),
                total=len(paths),
            )
        numbered = {rows.numbers[place]: kind for place, kind in kinds.items()}
        form = form_of(numbered, self.size, self.channels, self.reading())
        warnings = tell_intents([kind.intent for kind in kinds.values()], say)
        return Choice(
            items=[paths[place] for place in kinds],
            places=list(kinds),
            files=lambda path: [path],
            load=partial(read_row, form=form),
            shape=form.shape(),
            dtype=form.dtype,
            recipe={"data set": "folder", "dtype": str(form.dtype), "shape": form.shape(), "reading": form.reading},
            cells=lambda place: (rows.numbers[place],),
            columns=("table_row",),
            missing=failed,
            release=Own(rows, kinds, warnings),
        )

    def incomplete(self, outcome: Outcome) -> str:
        """Which rows of the table have an image that can't be read."""
        own: Own = outcome.choice.release
        return rows_to_mend(outcome.reasons, outcome.choice.count(), own.rows.numbers.__getitem__)

    def datalist(self, outcome: Outcome, say: Say) -> Datalist:
        """The data list of what was read."""
        own: Own = outcome.choice.release
        rows, reading = own.rows, self.reading()
        left = {rows.labels[place] for place in outcome.kept}
        gone = [name for label, name in enumerate(rows.classes) if label not in left]
        if gone:
            listed = ", ".join(f"'{name}'" for name in gone)
            raise DataError(
                "class_without_images",
                f"no readable image is left of the classes {listed}. Mend the files of these classes.",
                classes=gone,
            )
        intents = intent_records([own.kinds[place].intent for place in outcome.kept])
        records: list[CaseRecord] = [
            make_record(
                {"label": rows.labels[place], "subject_id": rows.subjects[place], **rows.others[place], **intent}
            )
            for place, intent in zip(outcome.kept, intents, strict=True)
        ]
        return self.make_datalist(
            rows.classes,
            "not stated",
            records,
            [rows.splits[place] for place in outcome.kept],
            licence=self.licence,
            exclusions=exclusions(dict(Counter(outcome.reasons.values()).most_common())),
            warnings=own.warnings,
            **({} if reading is None else about_reading(reading)),
        )
