"""Spec of CBIS-DDSM: options, choice of images and data list of the prepared data set.

`medfl prep` turns a release (the files that the publisher distributes) into a prepared data set. It calls the methods
of the spec in this order: `find` (find the files), `plan_reading` (plan what to read) and `datalist` (describe the rows
of the array).

`medfl_datasets.cbis_ddsm.tables` reads the case descriptions, `medfl_datasets.cbis_ddsm.files` finds files in every
layout of the release, `medfl_datasets.cbis_ddsm.selection` selects images, labels and splits, and
`medfl_datasets.cbis_ddsm.pixels` and `medfl.data.readers.mammograms` read the images.

Prepared data set: ``images.npy`` (N, H, W), uint16; each record has ``label``, ``subject_id``, ``laterality``,
``view``, ``abnormality`` and ``density``, and for crops ``lesion``. The ``subject_id`` is the release's pseudonym of
the patient (``P_00001``); nothing else about patients is kept. The splits are the official ones. Images without a file
and unreadable files are excluded and listed in ``quarantine.csv``.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from medfl.data.datalists import Datalist
from medfl.data.ingest import read_plan as ingest_choice
from medfl.data.ingest.options import HeightWidth, OneOf
from medfl.data.ingest.read_plan import ReadOutcome, exclusions
from medfl.data.ingest.spec import ImageSpec
from medfl.data.readers.dicom_identity import IDENTITY_CHECKS
from medfl.data.readers.dicom_intent import INTENT_NOT_STATED, intent_records, report_intents
from medfl.data.readers.mammogram_image import reading_entries
from medfl.errors import DataError
from medfl.records.datalist import CaseRecord, make_record
from medfl.utils.text import Say, describe_counts
from medfl_datasets.cbis_ddsm import RECORDS
from medfl_datasets.cbis_ddsm.files import CbisTree
from medfl_datasets.cbis_ddsm.pixels import CbisFilm, CbisReadOptions, read_image
from medfl_datasets.cbis_ddsm.release import ABNORMALITIES, find_image_files, read_release, report_files
from medfl_datasets.cbis_ddsm.selection import (
    PATIENT_IN_TEST_PART,
    THREE_CLASSES,
    TWO_CLASSES,
    CbisImage,
    CbisSelection,
    select_images,
)
from medfl_datasets.cbis_ddsm.tables import Lesion, deviations

NAME = "cbis_ddsm"
"""Name of the data set."""

CITATION = (
    "Sawyer-Lee et al., Curated Breast Imaging Subset of Digital Database for Screening Mammography (CBIS-DDSM), The "
    "Cancer Imaging Archive (2016), doi:10.7937/K9/TCIA.2016.7O02S9CY; Lee et al., A curated mammography data set for "
    "use in computer-aided detection and diagnosis research, Scientific Data 4, 170177 (2017)"
)
"""Publications that users of the data are asked to cite."""

VIEWS = ("full", "crop")
"""Choices of `CbisDdsm.view`: whole mammograms, or crops of lesions."""

NO_FILE = "its series has no file"
"""Exclusion reason of an image whose series (DICOM folder) contains no file."""


class CbisDdsm(ImageSpec):
    """CBIS-DDSM: mammograms with benign or malignant lesions. Nothing is downloaded.

    The official split is used, without the training images of 31 patients who are also in the test set. Missing and
    unreadable images are left out and listed in quarantine.csv. An interrupted run continues with the same command.

    Source: The Cancer Imaging Archive, doi:10.7937/K9/TCIA.2016.7O02S9CY. Licence: CC BY 3.0.
    """

    dataset = "cbis_ddsm"
    """Name of the data set, as users type it."""
    terms = RECORDS[0].licence
    """Terms of use, which the user sees before reading starts and the data list states."""
    citation = CITATION
    """Publications to cite, which the user sees before reading starts and the data list states."""

    source: Path
    """The folder of the images, in any layout of the release."""
    tables: Path | None = None
    """The folder of the four case descriptions (CSV), if they are not in --source."""
    size: HeightWidth = (224, 224)
    """Height and width of the images in the array: 224, or 448x224 (HxW)."""
    view: Annotated[str, OneOf(VIEWS)] = "full"
    """full: whole mammograms; crop: lesions cut out of them."""
    abnormality: Annotated[str, OneOf(ABNORMALITIES)] = "both"
    """Kinds of lesions to use: mass, calc (calcifications) or both."""
    three_classes: bool = False
    """Keep benign without callback as a class; otherwise it is benign."""
    crop_breast: bool = False
    """Cut the breast out of whole mammograms (needs the extra `mammography`)."""
    align: bool = False
    """Mirror right breasts, so that the chest wall is on the left."""
    voi: bool = False
    """Apply the display window (VOI LUT) of a DICOM file."""
    deidentify_check: Annotated[str, OneOf(IDENTITY_CHECKS)] = "strip"
    """DICOM headers that may identify the patient: strip, or refuse the file."""

    def pixels(self) -> CbisReadOptions:
        """Return the options that decide how every image is read and processed."""
        return CbisReadOptions(self.size, self.crop_breast, self.align, self.voi, self.deidentify_check)

    def find(self) -> tuple[CbisTree, list[Lesion]]:
        """List the files of the release and read the rows of its tables, one for each lesion."""
        return read_release(self.source, self.tables, self.abnormality)

    def plan_reading(self, files: tuple[CbisTree, list[Lesion]], say: Say) -> ingest_choice.ReadPlan:
        """Plan to read all images that have a file, without training images of patients in the test set."""
        tree, lesions = files
        differences = deviations(lesions)
        for sentence in differences:
            say(f"warning: {sentence}")
        kinds = ABNORMALITIES[self.abnormality]
        choice = select_images([lesion for lesion in lesions if lesion.kind in kinds], self.view == "crop")
        images = choice.images
        films = find_image_files(tree, images)
        _report_selection(choice, say)
        report_files(tree, lesions, films, len(images), say)
        places = sorted(films)
        return ingest_choice.ReadPlan(
            items=[films[place] for place in places],
            places=places,
            files=CbisFilm.paths,
            load=functools.partial(read_image, self.pixels()),
            shape=self.size,
            dtype=np.uint16,
            recipe={"data set": NAME, "view": self.view, **asdict(self.pixels())},
            cells=lambda place: (images[place].name, ", ".join(lesion.where for lesion in images[place].lesions)),
            columns=("image", "table_rows"),
            missing={place: NO_FILE for place in range(len(images)) if place not in films},
            release=(choice, differences),
        )

    def datalist(self, outcome: ReadOutcome, say: Say) -> Datalist:
        """Build the data list: a record with label, metadata and split for each image that was read."""
        choice, differences = outcome.plan.release
        _report_headers(outcome.facts, say)
        used = [(choice.images[place], facts) for place, facts in zip(outcome.kept, outcome.facts, strict=True)]
        classes = THREE_CLASSES if self.three_classes else TWO_CLASSES
        _check_classes(classes, {image.label(self.three_classes) for image, _ in used}, outcome.reasons)
        reading = {"crop_breast": self.crop_breast and self.view == "full", "align": self.align, "voi": self.voi}
        datalist = self.make_datalist(
            classes,
            "mammography",
            _records(used, self.three_classes),
            [image.split for image, _ in used],
            deviations=differences,
            exclusions=exclusions({PATIENT_IN_TEST_PART: choice.left_out, **Counter(outcome.reasons.values())}),
            label_rule="the worst lesion of an image counts",
            **reading_entries(reading),
            warnings=report_intents(_intents(used), say),
        )
        if self.view == "crop":
            datalist.name = f"{NAME}-crop"
        return datalist


def _report_selection(choice: CbisSelection, say: Say) -> None:
    """Report the training images that are excluded, and films with several pathologies."""
    if choice.left_out:
        say(
            f"note: {choice.leaking_patients} patients are in the training part of one kind of lesion and in the test "
            f"part of the other: their {choice.left_out} training images are left out"
        )
    if choice.mixed:
        say(f"note: {choice.mixed} images show malignant and other lesions: they count as malignant")


def _report_headers(headers: Sequence[Mapping[str, Any]], say: Say) -> None:
    """Warn about images whose header may identify the patient."""
    burned = sum("burned_in" in facts for facts in headers)
    if burned:
        say(
            f"warning: the headers of {burned} images state that names or similar text are burned into the pixels: "
            "look at them ('burned_in' in the data list) before you use or share the array"
        )
    naming = sum("identifying" in facts for facts in headers)
    if naming:
        say(f"warning: the headers of {naming} images may identify the patient; nothing of them was kept")


def _intents(used: Sequence[tuple[CbisImage, Mapping[str, object]]]) -> list[str]:
    """Return the presentation intent of each image."""
    return [str(facts.get("intent", INTENT_NOT_STATED)) for _, facts in used]


def _check_classes(classes: Sequence[str], labels: Collection[int], failed: Mapping[int, str]) -> None:
    """Raise DataError if a class has no image."""
    empty_classes = [name for label, name in enumerate(classes) if label not in labels]
    if empty_classes:
        raise DataError(
            "class_without_images",
            f"no readable image is left of the classes {', '.join(empty_classes)}: {describe_counts(failed)}. "
            "Download the missing images.",
            classes=empty_classes,
            reasons=dict(Counter(failed.values())),
        )


def _records(used: Sequence[tuple[CbisImage, Mapping[str, object]]], three: bool) -> list[CaseRecord]:
    """Build the record of each row of the array."""
    records: list[CaseRecord] = []
    for (image, facts), intent in zip(used, intent_records(_intents(used)), strict=True):
        record = {"label": image.label(three), "subject_id": image.patient} | image.about()
        burned_in = {"burned_in": True} if "burned_in" in facts else {}
        records.append(make_record(record | burned_in | intent))
    return records
