"""Ultrasound of breast lesions from five sources in, a pooled data set with masks out; or with classes.

The folder has the images of BUS-BRA (four machines of one hospital) and of BrEaST (Poland) in one layout
(`medfl_datasets.breast_ultrasound.files`). The source is kept as ``site``, so that ``medfl partition --scheme by_site
--column site --test official --global-test none`` makes five sites with the test images of the table; pathology,
BI-RADS and device are kept, too. Images of a patient stay together. No name of a file or patient is kept.

Images are grey and resized with antialiasing; their aspect ratio is not kept, and nobody knows the size of a pixel, so
that distances are in pixels of the array. Images without a lesion (pathology ``normal``) have an empty mask; where the
pathology is learned, they are left out.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Annotated

from medfl.ingest.choice import Choice, Outcome, exclusions, rows_to_mend
from medfl.ingest.labels import number_subjects
from medfl.ingest.masks import STRATA, about_empty, take_apart, with_masks
from medfl.ingest.options import Choose, HeightWidth
from medfl.ingest.spec import ImageSpec

from medfl.data.datalists import Datalist
from medfl.errors import DataError
from medfl.records.datalist import CaseRecord, make_record
from medfl.utils.text import Say
from medfl_datasets.breast_ultrasound import RECORDS
from medfl_datasets.breast_ultrasound.files import FACTS, NORMAL, PATHOLOGIES, Part, Release, read_part, read_release

CITATION = (
    "Gomez-Flores, Gregorio-Calas and Pereira, BUS-BRA, Medical Physics 51(4):3110-3123 (2024), doi:10.1002/mp.16812; "
    "Pawlowska et al., Curated benchmark dataset for ultrasound based breast lesion analysis, Scientific Data 11:148 "
    "(2024), doi:10.1038/s41597-024-02984-z"
)
"""What users of the data are asked to cite."""

TARGETS = ("mask", "pathology")
"""What is to be learned of an image."""

NO_IMAGE, NO_MASK = "there is no file of the image", "there is no file of the mask"
NO_LESION = "the image is normal: it has no lesion to be benign or malignant"
"""Why rows of the table are left out."""


class BreastUltrasound(ImageSpec):
    """BUS-BRA and BrEaST in one folder: masks, or benign and malignant, at five sources. Nothing is downloaded.

    The splits are those of the table, by patient. The aspect ratio is not kept.
    """

    dataset = "breast_ultrasound"
    unreadable = "option skip_unreadable"
    terms = RECORDS[0].licence
    citation = CITATION

    source: Path
    """The folder of metadata.csv, images and masks."""
    size: HeightWidth = (128, 128)
    """Of the images in the array: 128, or 128x160 (HxW)."""
    target: Annotated[str, Choose(TARGETS)] = "mask"
    """What is learned: mask, or pathology (benign or malignant)."""

    def title(self) -> str:
        """Each target is a data set of its own."""
        return self.dataset if self.target == "mask" else f"{self.dataset}-pathology"

    def find(self) -> Release:
        """The table and the files."""
        return read_release(self.source)

    def choose(self, files: Release, say: Say) -> Choice:
        """All rows that have an image, and a mask or a pathology."""
        masked, pathologies = self.target == "mask", files.table.column("pathology")
        parts: dict[int, Part] = {}
        missing: dict[int, str] = {}
        for place, (image, mask) in enumerate(zip(files.images, files.masks, strict=True)):
            if not masked and pathologies[place] == NORMAL:
                continue
            if image is None:
                missing[place] = NO_IMAGE
            elif masked and mask is None:
                missing[place] = NO_MASK
            else:
                parts[place] = Part(image, mask if masked else None)
        if not parts:
            raise DataError(
                "no_readable_image",
                rows_to_mend(missing, len(missing), files.table.numbers.__getitem__),
                count=len(missing),
                total=len(missing),
            )
        return Choice(
            items=list(parts.values()),
            places=list(parts),
            files=Part.files,
            load=partial(read_part, size=self.size),
            shape=(*self.size, 2) if masked else self.size,
            recipe={"data set": self.title(), "size": self.size},
            cells=lambda place: (files.table.numbers[place],),
            columns=("table_row",),
            missing=missing,
            release=files,
        )

    def incomplete(self, outcome: Outcome) -> str:
        """Which rows of the table can't be read."""
        choice = outcome.choice
        return rows_to_mend(outcome.reasons, choice.count(), choice.release.table.numbers.__getitem__)

    def datalist(self, outcome: Outcome, say: Say) -> Datalist:
        """The data list of what was read."""
        release: Release = outcome.choice.release
        rows = release.table.rows
        subjects = number_subjects([rows[place]["patient"] for place in outcome.kept])
        records: list[CaseRecord] = []
        for place, subject, facts in zip(outcome.kept, subjects, outcome.facts, strict=True):
            known = {column: rows[place][column] for column in FACTS}
            label = {} if self.target == "mask" else {"label": PATHOLOGIES.index(known.pop("pathology"))}
            records.append(make_record({**label, "subject_id": subject, **known, **facts}))
        normal = 0 if self.target == "mask" else release.table.column("pathology").count(NORMAL)
        made = self.make_datalist(
            STRATA if self.target == "mask" else PATHOLOGIES,
            RECORDS[0].modality,
            records,
            [release.splits[place] for place in outcome.kept],
            exclusions=exclusions({NO_LESION: normal, **Counter(outcome.reasons.values())}),
        )
        if self.target == "pathology":
            return made
        for line in about_empty(made):
            say(line)
        return with_masks(made, ("background", "lesion"))

    def finish(self, folder: Path, outcome: Outcome, datalist: Datalist) -> None:
        """Take images and masks apart."""
        if self.target == "mask":
            take_apart(folder)
