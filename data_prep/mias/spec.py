"""Spec of mini-MIAS: options, choice of images and data list of the prepared data set.

`medfl prep` turns a release (the files that the publisher distributes) into a prepared data set. It calls the methods
of the spec in this order: `find` (find the files), `plan_reading` (plan what to read) and `datalist` (describe the rows
of the array).

- ``view="full"``: each of the 322 films is an image. A film with a malignant abnormality is malignant, even if it has
  benign ones.
- ``view="crop"``: each abnormality with coordinates is an image, with its own severity. Four abnormalities have no
  coordinates and are excluded. Normal films are excluded too: a crop of a normal film could not be chosen as crops of
  lesions are, so a network could separate the classes by cues other than the content. Crops are therefore benign or
  malignant.

Prepared data set: ``images.npy`` (N, H, W), uint16; each record has ``label``, ``subject_id``, ``laterality``,
``view``, ``tissue`` and ``finding``, but no file name. The two films of a patient have one ``subject_id`` and are in
the same split. The patients of the test set depend only on the seed and the share, so that all views and labels have
the same ones.

The table and the films are described in `medfl_datasets.mias.tables` and `medfl_datasets.mias.files`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple, Self

import numpy as np
from pydantic import model_validator

from medfl.data.datalists import Datalist
from medfl.data.ingest.columns.labels import number_subjects
from medfl.data.ingest.options import HeightWidth, OneOf, check_test_share
from medfl.data.ingest.read_plan import ReadOutcome, ReadPlan, exclusions
from medfl.data.ingest.spec import ImageSpec
from medfl.data.partition.shares import holdout
from medfl.data.readers.mammogram_image import reading_entries
from medfl.errors import DataError, SettingsError
from medfl.records.datalist import CaseRecord, make_record
from medfl.utils.seeds import seed_of
from medfl.utils.text import Say
from medfl_datasets.mias import RECORDS
from medfl_datasets.mias.files import MiasImage, find_films, find_table, read_film_or_crop
from medfl_datasets.mias.selection import NO_FILE, MiasSelection, select_images
from medfl_datasets.mias.tables import (
    FINDINGS,
    NORMAL,
    SEVERITIES,
    TABLE_FILE,
    TISSUES,
    MiasFilm,
    deviations,
    read_films,
)

CITATION = (
    "Suckling et al., The Mammographic Image Analysis Society Digital Mammogram Database, "
    "Excerpta Medica, International Congress Series 1069, 375-378 (1994)"
)
"""Publication that users of the data are asked to cite."""

VIEWS = ("full", "crop")
"""Choices of `Mias.view`: whole films (``full``), or crops of lesions."""

LABEL_SETS: dict[str, dict[str, str]] = {
    "three-class": {"normal": "normal", "benign": "benign", "malignant": "malignant"},
    "benign-malignant": {"benign": "benign", "malignant": "malignant"},
    "malignant-rest": {"normal": "benign or normal", "benign": "benign or normal", "malignant": "malignant"},
}
"""Maps each label set to a mapping from diagnosis to class. Images whose diagnosis has no class are excluded."""

TEST_SHARE = 0.15
"""Default share of the patients in the test set. It matches PFedCDP, where 50 of 330 rows are test rows."""

_DIAGNOSES = (NORMAL, *SEVERITIES.values())


class _MiasInputs(NamedTuple):
    """Inputs of `Mias.datalist` that `Mias.plan_reading` collects.

    Attributes:
        films: All films of the table.
        selection: Images to read.
        differences: Differences from the official table, one sentence each.
    """

    films: list[MiasFilm]
    selection: MiasSelection
    differences: list[str]


class Mias(ImageSpec):
    """mini-MIAS: films of the breast, normal, benign or malignant. Nothing is downloaded.

    The two films of a patient stay together. A missing or unreadable film is left out and listed in quarantine.csv.

    Source: Suckling et al., Excerpta Medica, International Congress Series 1069 (1994). Licence: research only, no
    redistribution (see Licence.txt of the release).
    """

    dataset = "mias"
    """Name of the data set, as users type it."""
    unreadable = "option require_complete"
    """Treatment of missing or unreadable images: exclude them, unless the user sets ``require_complete``."""
    item = "film"
    """Name of one item that is read, in the singular, for messages."""
    terms = RECORDS[0].licence
    """Terms of use, which the user sees before reading starts and the data list states."""
    citation = CITATION
    """Publications to cite, which the user sees before reading starts and the data list states."""

    source: Path
    """The folder all-mias, as unpacked, or the one that contains it."""
    size: HeightWidth = (224, 224)
    """Height and width of the images in the array: 224, or 448x224 (HxW)."""
    view: Annotated[str, OneOf(VIEWS)] = "full"
    """full: whole films; crop: abnormalities cut out of them."""
    labels: Annotated[str | None, OneOf(LABEL_SETS)] = None
    """Label set: three-class, benign-malignant or malignant-rest. Default: three-class, for crops benign-malignant."""
    test_share: float = TEST_SHARE
    """Share of the patients in the test set; with 0, medfl partition holds out test sets."""
    seed: int = 0
    """Seed that selects the patients of the test set."""
    crop_breast: bool = False
    """Cut the breast out of whole mammograms (needs the extra `mammography`)."""
    align: bool = False
    """Mirror right breasts, so that the chest wall is on the left."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Raise SettingsError if options are incompatible or out of range."""
        if self.view == "crop" and self.label_set() != "benign-malignant":
            raise SettingsError(
                "incompatible_settings",
                f"expected --labels benign-malignant for --view crop, got {self.label_set()}: a normal film has no "
                "abnormality to cut out. Take whole films (--view full) for other labels.",
                settings=("view", "labels"),
                found=self.label_set(),
            )
        if self.view == "crop" and self.crop_breast:
            raise SettingsError(
                "incompatible_settings",
                "--crop-breast is for whole films: leave it out, or take --view full.",
                settings=("view", "crop_breast"),
            )
        check_test_share(self.test_share)
        return self

    def label_set(self) -> str:
        """Return the name of the label set that `labels` states, or the view's default; a key of `LABEL_SETS`."""
        return self.labels or ("three-class" if self.view == "full" else "benign-malignant")

    def title(self) -> str:
        """Return the name of the prepared data set, with a suffix for crops."""
        return "mias" if self.view == "full" else "mias-crop"

    def item_plural(self) -> str:
        """Return the name of the items that are read, in the plural, for messages: films or crops."""
        return "films" if self.view == "full" else "crops"

    def find(self) -> Path:
        """Find the file of the table; the films are in the same folder."""
        return find_table(self.source)

    def plan_reading(self, files: Path, say: Say) -> ReadPlan:
        """Plan to read the images that have a table row and a file; an image has the line number of its row."""
        films = read_films(files)
        differences = deviations(films)
        for sentence in differences:
            say(f"warning: {sentence}")
        selection = select_images(films, find_films(files.parent), self.view, LABEL_SETS[self.label_set()], say)
        return ReadPlan(
            items=selection.images,
            places=[finding.line for finding in selection.findings],
            files=MiasImage.files,
            load=partial(read_film_or_crop, size=self.size, crop_breast=self.crop_breast, align=self.align),
            shape=self.size,
            dtype=np.uint16,
            recipe={
                "data set": self.title(),
                "size": self.size,
                "crop_breast": self.crop_breast,
                "align": self.align,
            },
            cells=lambda line: (line,),
            columns=("table_line",),
            missing=dict.fromkeys(selection.missing, NO_FILE),
            release=_MiasInputs(films=films, selection=selection, differences=differences),
        )

    def incomplete_message(self, outcome: ReadOutcome) -> str:
        """Return the error message if the user requires all films, but some are missing or unreadable."""
        lines, absent = list(outcome.reasons), len(outcome.plan.missing)
        if absent:
            return f"a complete set of films is required, {absent} are missing. Unpack it again."
        return (
            f"a complete set of films is required, {len(lines)} can't be read: rows of {TABLE_FILE} in lines "
            f"{', '.join(map(str, lines[:10]))}. Unpack it again."
        )

    def datalist(self, outcome: ReadOutcome, say: Say) -> Datalist:
        """Build the data list: a record with label, patient, metadata and split for each image that was read."""
        inputs: _MiasInputs = outcome.plan.release
        selection = inputs.selection
        place_of = {line: place for place, line in enumerate(outcome.plan.places)}
        kept = [place_of[line] for line in outcome.kept]
        classes = LABEL_SETS[self.label_set()]
        _check_classes(selection, kept, classes)
        failed = [reason for line, reason in outcome.reasons.items() if line in place_of]
        test_patients = _select_test_patients(inputs.films, self.test_share, self.seed)
        names = list(dict.fromkeys(classes.values()))
        return self.make_datalist(
            names,
            "mammography",
            _records(names, selection, kept),
            ["test" if selection.films[place].patient in test_patients else "training" for place in kept],
            exclusions=exclusions(selection.left_out + Counter(failed)),
            view=self.view,
            deviations=inputs.differences,
            **reading_entries({"crop_breast": self.crop_breast, "align": self.align}),
        )


def _select_test_patients(films: Sequence[MiasFilm], share: float, seed: int) -> set[int]:
    """Select the patients of the test set, stratified by the diagnosis of each patient's worst film."""
    worst: dict[int, int] = {}
    for film in films:
        worst[film.patient] = max(worst.get(film.patient, 0), _DIAGNOSES.index(film.diagnosis))
    patients = np.array(sorted(worst))
    rng = np.random.default_rng(seed_of(seed, "mias", "test"))
    mask = holdout(np.array([worst[patient] for patient in patients]), share, rng)
    return set(patients[mask].tolist())


def _check_classes(selection: MiasSelection, kept: Sequence[int], classes: dict[str, str]) -> None:
    """Raise DataError if a class has no image."""
    left = {selection.classes[place] for place in kept}
    empty_classes = [name for name in dict.fromkeys(classes.values()) if name not in left]
    if empty_classes:
        raise DataError(
            "class_without_images",
            f"no image is left of the classes {', '.join(map(repr, empty_classes))}. Unpack all-mias.tar.gz "
            "completely.",
            classes=empty_classes,
        )


def _records(classes: Sequence[str], selection: MiasSelection, kept: Sequence[int]) -> list[CaseRecord]:
    """Build the record of each row of the array."""
    subjects = number_subjects([str(selection.films[place].patient) for place in kept])
    return [
        make_record(
            {
                "label": classes.index(selection.classes[place]),
                "subject_id": subject,
                "laterality": selection.films[place].laterality,
                "view": "MLO",
                "tissue": TISSUES[selection.findings[place].tissue],
                "finding": FINDINGS[selection.findings[place].kind],
            }
        )
        for place, subject in zip(kept, subjects, strict=True)
    ]
