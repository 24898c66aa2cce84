"""Spec of breast ultrasound: options, choice of images and data list of the prepared data set.

`medfl prep` turns a release (the files that the publisher distributes) into a prepared data set. It calls the methods
of the spec in this order: `find` (find the files), `plan_reading` (plan what to read), `datalist` (describe the rows of
the array) and `finish` (change the array or add files).

The folder contains the images of BUS-BRA (four machines of one hospital) and of BrEaST (Poland) in one layout
(`medfl_datasets.breast_ultrasound.files`). The command ``medfl partition --scheme by_site --column site --test official
--server-test none`` makes five sites with the table's test images.

Prepared data set: ``images.npy`` (N, H, W), uint8, with a second array of masks if the target is the mask. Each record
has ``subject_id``, ``site`` (the source), ``birads`` and ``device``, and the pathology as ``label`` or ``pathology``.
No name of a file or patient is kept. Images of a patient are in one split, as stated in the table.

Images are grey and resized with antialiasing, without keeping the aspect ratio. The size of a pixel is unknown, so that
distances are in pixels of the array. Images without a lesion (pathology ``normal``) have an empty mask; they are
excluded if the target is the pathology.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Annotated

from medfl.data.datalists import Datalist
from medfl.data.ingest.columns.labels import number_subjects
from medfl.data.ingest.masks import MASK_STRATA, add_masks, empty_mask_notes, separate_masks
from medfl.data.ingest.options import HeightWidth, OneOf
from medfl.data.ingest.read_plan import ReadOutcome, ReadPlan, exclusions, unreadable_rows_message
from medfl.data.ingest.spec import ImageSpec
from medfl.errors import DataError
from medfl.records.datalist import CaseRecord, make_record
from medfl.utils.text import Say
from medfl_datasets.breast_ultrasound import RECORDS
from medfl_datasets.breast_ultrasound.files import (
    KEPT_COLUMNS,
    NORMAL,
    PATHOLOGIES,
    UltrasoundImage,
    UltrasoundRelease,
    read_image,
    read_release,
)

CITATION = (
    "Gomez-Flores, Gregorio-Calas and Pereira, BUS-BRA, Medical Physics 51(4):3110-3123 (2024), doi:10.1002/mp.16812; "
    "Pawlowska et al., Curated benchmark dataset for ultrasound based breast lesion analysis, Scientific Data 11:148 "
    "(2024), doi:10.1038/s41597-024-02984-z"
)
"""Publications that users of the data are asked to cite."""

TARGETS = ("mask", "pathology")
"""Choices of `BreastUltrasound.target`: the learning target of an image."""

NO_IMAGE, NO_MASK = "there is no file of the image", "there is no file of the mask"
"""Exclusion reasons of rows of the table: `NO_IMAGE` without an image, `NO_MASK` without a mask that is needed."""

NO_LESION = "the image is normal, without a benign or malignant lesion"
"""Exclusion reason of a row whose pathology is ``normal``, if the target is the pathology."""


class BreastUltrasound(ImageSpec):
    """BUS-BRA and BrEaST in one folder: masks, or benign and malignant, at five sources. Nothing is downloaded.

    The table states the splits, by patient. The aspect ratio is not kept.

    Sources: Gomez-Flores et al., Medical Physics 51(4) (2024); Pawlowska et al., Scientific Data 11:148 (2024).
    Licences: BrEaST CC BY 4.0; BUS-BRA free to use and distribute, cite the paper and keep the notice.
    """

    dataset = "breast_ultrasound"
    """Name of the data set, as users type it."""
    unreadable = "option skip_unreadable"
    """Treatment of missing or unreadable images: stop, unless the user sets the option ``skip_unreadable``."""
    terms = RECORDS[0].licence
    """Terms of use, which the user sees before reading starts and the data list states."""
    citation = CITATION
    """Publications to cite, which the user sees before reading starts and the data list states."""

    source: Path
    """The folder of metadata.csv, images and masks."""
    size: HeightWidth = (128, 128)
    """Height and width of the images in the array: 128, or 128x160 (HxW)."""
    target: Annotated[str, OneOf(TARGETS)] = "mask"
    """Target to learn: mask, or pathology (benign or malignant)."""

    def title(self) -> str:
        """Return the name of the prepared data set, with a suffix if the target is the pathology."""
        return self.dataset if self.target == "mask" else f"{self.dataset}-pathology"

    def find(self) -> UltrasoundRelease:
        """Read the table and find the files."""
        return read_release(self.source)

    def plan_reading(self, files: UltrasoundRelease, say: Say) -> ReadPlan:
        """Plan to read each image of the table that has a file and a target: a mask file, or a lesion."""
        masked, pathologies = self.target == "mask", files.table.column("pathology")
        images: dict[int, UltrasoundImage] = {}
        missing: dict[int, str] = {}
        for place, (image, mask) in enumerate(zip(files.images, files.masks, strict=True)):
            if not masked and pathologies[place] == NORMAL:
                continue
            if image is None:
                missing[place] = NO_IMAGE
            elif masked and mask is None:
                missing[place] = NO_MASK
            else:
                images[place] = UltrasoundImage(image, mask if masked else None)
        if not images:
            raise DataError(
                "no_readable_image",
                unreadable_rows_message(missing, len(missing), files.table.numbers.__getitem__),
                count=len(missing),
                total=len(missing),
            )
        return ReadPlan(
            items=list(images.values()),
            places=list(images),
            files=UltrasoundImage.files,
            load=partial(read_image, size=self.size),
            shape=(*self.size, 2) if masked else self.size,
            recipe={"data set": self.title(), "size": self.size},
            cells=lambda place: (files.table.numbers[place],),
            columns=("table_row",),
            missing=missing,
            release=files,
        )

    def incomplete_message(self, outcome: ReadOutcome) -> str:
        """Return the error message if the user requires all images, but some are missing or unreadable."""
        plan = outcome.plan
        return unreadable_rows_message(outcome.reasons, plan.count(), plan.release.table.numbers.__getitem__)

    def datalist(self, outcome: ReadOutcome, say: Say) -> Datalist:
        """Build the data list: a record with metadata and split for each image that was read."""
        release: UltrasoundRelease = outcome.plan.release
        rows = release.table.rows
        subjects = number_subjects([rows[place]["patient"] for place in outcome.kept])
        records: list[CaseRecord] = []
        for place, subject, facts in zip(outcome.kept, subjects, outcome.facts, strict=True):
            known = {column: rows[place][column] for column in KEPT_COLUMNS}
            label = {} if self.target == "mask" else {"label": PATHOLOGIES.index(known.pop("pathology"))}
            records.append(make_record({**label, "subject_id": subject, **known, **facts}))
        normal = 0 if self.target == "mask" else release.table.column("pathology").count(NORMAL)
        made = self.make_datalist(
            MASK_STRATA if self.target == "mask" else PATHOLOGIES,
            RECORDS[0].modality,
            records,
            [release.splits[place] for place in outcome.kept],
            exclusions=exclusions({NO_LESION: normal, **Counter(outcome.reasons.values())}),
        )
        if self.target == "pathology":
            return made
        for line in empty_mask_notes(made):
            say(line)
        return add_masks(made, ("background", "lesion"))

    def finish(self, folder: Path, outcome: ReadOutcome, datalist: Datalist) -> None:
        """Split the array into images and masks, in place, if the target is the mask."""
        if self.target == "mask":
            separate_masks(folder)
