"""CBIS-DDSM: the release as downloaded in, a pooled data set of mammograms or of lesions out.

`medfl_datasets.cbis_ddsm.tables` reads the case descriptions, `medfl_datasets.cbis_ddsm.files` finds files in every
layout of the release, `medfl_datasets.cbis_ddsm.choice` says which images are used with which label in which split, and
`medfl_datasets.cbis_ddsm.pixels` and `medfl.data.readers.mammograms` what becomes of a file. The array holds uint16.

Images without a file, and files that can't be read, are left out and listed in ``quarantine.csv``. A prepared data set
holds the release's own pseudonyms of patients (``P_00001``), nothing else about them.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from medfl.ingest.choice import Outcome, exclusions
from medfl.ingest.options import Choose, HeightWidth
from medfl.ingest.spec import ImageSpec

from medfl.data.datalists import Datalist
from medfl.data.readers.dicom_identity import CHECKS
from medfl.data.readers.dicom_intent import NOT_SAID, intent_records, tell_intents
from medfl.data.readers.mammogram_image import about_reading
from medfl.errors import DataError
from medfl.ingest import choice as ingest_choice
from medfl.records.datalist import CaseRecord, make_record
from medfl.utils.text import Say, describe_counts
from medfl_datasets.cbis_ddsm import RECORDS
from medfl_datasets.cbis_ddsm.choice import LEAKING, THREE_CLASSES, TWO_CLASSES, Choice, Image, choose
from medfl_datasets.cbis_ddsm.files import Tree
from medfl_datasets.cbis_ddsm.pixels import Film, Options, load
from medfl_datasets.cbis_ddsm.release import ABNORMALITIES, find_films, read_release, say_files
from medfl_datasets.cbis_ddsm.tables import Lesion, deviations

NAME = "cbis_ddsm"
"""Of the data set."""

CITATION = (
    "Sawyer-Lee et al., Curated Breast Imaging Subset of Digital Database for Screening Mammography (CBIS-DDSM), The "
    "Cancer Imaging Archive (2016), doi:10.7937/K9/TCIA.2016.7O02S9CY; Lee et al., A curated mammography data set for "
    "use in computer-aided detection and diagnosis research, Scientific Data 4, 170177 (2017)"
)

VIEWS = ("full", "crop")
"""Whole mammograms, or lesions cut out of them."""

NO_FILE = "there is no file of its series"
"""Why an image is left out."""


class CbisDdsm(ImageSpec):
    """CBIS-DDSM: mammograms with benign or malignant lesions. Nothing is downloaded.

    Official split, without the training images of 31 patients who are tested on, too. What is missing or can't be read
    is left out and listed in quarantine.csv. If interrupted, the same command goes on where it stopped.
    """

    dataset = "cbis_ddsm"
    terms = RECORDS[0].licence
    citation = CITATION

    source: Path
    """The folder of the images, in any layout of the release."""
    tables: Path | None = None
    """The folder of the four case descriptions (CSV), if they are not in --source."""
    size: HeightWidth = (224, 224)
    """Of the images in the array: 224, or 448x224 (HxW)."""
    view: Annotated[str, Choose(VIEWS)] = "full"
    """full: whole mammograms; crop: lesions cut out of them."""
    abnormality: Annotated[str, Choose(ABNORMALITIES)] = "both"
    """both, mass or calc."""
    three_classes: bool = False
    """Keep benign without callback as a class; it is benign otherwise."""
    crop_breast: bool = False
    """Cut the breast out of whole mammograms (needs the extra `mammography`)."""
    align: bool = False
    """Mirror right breasts: the chest wall is on the left."""
    voi: bool = False
    """Apply the window for display that a DICOM file holds."""
    deidentify_check: Annotated[str, Choose(CHECKS)] = "strip"
    """DICOM that may tell who the patient is: strip, or refuse it."""

    def pixels(self) -> Options:
        """What becomes of each image."""
        return Options(self.size, self.crop_breast, self.align, self.voi, self.deidentify_check)

    def find(self) -> tuple[Tree, list[Lesion]]:
        """The files, and the rows of the tables."""
        return read_release(self.source, self.tables, self.abnormality)

    def choose(self, files: tuple[Tree, list[Lesion]], say: Say) -> ingest_choice.Choice:
        """All images of the tables that have a file, but for those of patients who are tested on."""
        tree, lesions = files
        unlike = deviations(lesions)
        for sentence in unlike:
            say(f"warning: {sentence}")
        kinds = ABNORMALITIES[self.abnormality]
        choice = choose([lesion for lesion in lesions if lesion.kind in kinds], self.view == "crop")
        images = choice.images
        films = find_films(tree, images)
        _say_choice(choice, say)
        say_files(tree, lesions, films, len(images), say)
        places = sorted(films)
        return ingest_choice.Choice(
            items=[films[place] for place in places],
            places=places,
            files=Film.paths,
            load=functools.partial(load, self.pixels()),
            shape=self.size,
            dtype=np.uint16,
            recipe={"data set": NAME, "view": self.view, **asdict(self.pixels())},
            cells=lambda place: (images[place].name, ", ".join(lesion.where for lesion in images[place].lesions)),
            columns=("image", "table_rows"),
            missing={place: NO_FILE for place in range(len(images)) if place not in films},
            release=(choice, unlike),
        )

    def datalist(self, outcome: Outcome, say: Say) -> Datalist:
        """The data list of what was read."""
        choice, unlike = outcome.choice.release
        _say_headers(outcome.facts, say)
        used = [(choice.images[place], facts) for place, facts in zip(outcome.kept, outcome.facts, strict=True)]
        classes = THREE_CLASSES if self.three_classes else TWO_CLASSES
        _check_classes(classes, {image.label(self.three_classes) for image, _ in used}, outcome.reasons)
        reading = {"crop_breast": self.crop_breast and self.view == "full", "align": self.align, "voi": self.voi}
        datalist = self.make_datalist(
            classes,
            "mammography",
            _records(used, self.three_classes),
            [image.split for image, _ in used],
            deviations=unlike,
            exclusions=exclusions({LEAKING: choice.left_out, **Counter(outcome.reasons.values())}),
            label_rule="the worst lesion of an image counts",
            **about_reading(reading),
            warnings=tell_intents(_intents(used), say),
        )
        if self.view == "crop":
            datalist.name = f"{NAME}-crop"
        return datalist


def _say_choice(choice: Choice, say: Say) -> None:
    if choice.left_out:
        say(
            f"note: {choice.leaking_patients} patients are in the training part of one kind of lesion and in the test "
            f"part of the other: their {choice.left_out} training images are left out"
        )
    if choice.mixed:
        say(f"note: {choice.mixed} images show malignant and other lesions: they count as malignant")


def _say_headers(headers: Sequence[Mapping[str, Any]], say: Say) -> None:
    burned = sum("burned_in" in facts for facts in headers)
    if burned:
        say(
            f"warning: the headers of {burned} images say that names or the like are burned into the pixels: look at "
            "them ('burned_in' in the data list) before you use or share the array"
        )
    naming = sum("identifying" in facts for facts in headers)
    if naming:
        say(f"warning: the headers of {naming} images may tell who the patient is; nothing of them was kept")


def _intents(used: Sequence[tuple[Image, Mapping[str, object]]]) -> list[str]:
    return [str(facts.get("intent", NOT_SAID)) for _, facts in used]


def _check_classes(classes: Sequence[str], labels: Collection[int], failed: Mapping[int, str]) -> None:
    gone = [name for label, name in enumerate(classes) if label not in labels]
    if gone:
        raise DataError(
            "class_without_images",
            f"no readable image is left of the classes {', '.join(gone)}: {describe_counts(failed)}. Download the "
            "missing images.",
            classes=gone,
            reasons=dict(Counter(failed.values())),
        )


def _records(used: Sequence[tuple[Image, Mapping[str, object]]], three: bool) -> list[CaseRecord]:
    """What is said of each row of the array."""
    records: list[CaseRecord] = []
    for (image, facts), intent in zip(used, intent_records(_intents(used)), strict=True):
        record = {"label": image.label(three), "subject_id": image.patient} | image.about()
        burned_in = {"burned_in": True} if "burned_in" in facts else {}
        records.append(make_record(record | burned_in | intent))
    return records
