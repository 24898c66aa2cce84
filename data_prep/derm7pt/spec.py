"""Spec of Derm7pt: options, choice of images and data list of the prepared data set.

`medfl prep` turns a release (the files that the publisher distributes) into a prepared data set. It calls the methods
of the spec in this order: `find` (find the files), `plan_reading` (plan what to read) and `datalist` (describe the rows
of the array).

Each case has a dermoscopic and a clinical image; a prepared data set has one of these views. The diagnoses form five
groups (BCC, MEL, MISC, NEV, SK), which are the classes. Nine cases have no clinical image: the table names the
dermoscopic one twice. They are excluded from the view ``clinic``, where a network would otherwise see another kind of
image.

Prepared data set: ``images.npy`` (N, size, size, 3), uint8, resized with antialiasing without keeping the aspect ratio;
each record has ``label``, ``subject_id``, ``sex`` and ``location`` (on the body), but no file name and no identifier of
the case. The release does not state which cases belong to one patient, so each case has a ``subject_id`` of its own.
The splits are the release's, or all cases are in training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from medfl.data.datalists import SPLITS, Datalist
from medfl.data.ingest.columns.labels import number_subjects
from medfl.data.ingest.image_folder import ImageFolder
from medfl.data.ingest.options import OneOf
from medfl.data.ingest.read_plan import ReadOutcome, ReadPlan, exclusions, unreadable_rows_message
from medfl.data.ingest.spec import ImageSpec, folder_with
from medfl.data.ingest.workers import LoadedItem
from medfl.data.readers.rgb import read_rgb, resize
from medfl.errors import DataError
from medfl.records.datalist import CaseRecord, make_record
from medfl.utils.text import Say
from medfl_datasets.derm7pt import RECORDS
from medfl_datasets.derm7pt.tables import DIAGNOSIS_GROUPS, Derm7ptRelease, read_release

CITATION = (
    "Kawahara et al., Seven-Point Checklist and Skin Lesion Classification Using Multitask Multimodal Neural Nets, "
    "IEEE Journal of Biomedical and Health Informatics 23(2), 538-546 (2019), doi:10.1109/JBHI.2018.2824327"
)
"""Publication that users of the data are asked to cite."""

VIEWS = {"derm": "dermoscopy", "clinic": "clinical photograph"}
"""Maps each view to its modality. A view is also the name of the table's column with its images."""

SPLIT_OPTIONS = ("official", "none")
"""Choices of `Derm7pt.split`. ``official``: the split of the release; ``none``: all cases in training."""

NO_CLINICAL_IMAGE = "the case has no clinical image: the release names its dermoscopic one twice"
"""Exclusion reason of a case in the view ``clinic``."""


class _Derm7ptInputs(NamedTuple):
    """Inputs of `Derm7pt.datalist` that `Derm7pt.plan_reading` collects.

    Attributes:
        release: Content of the tables.
        subjects: Maps the index of each chosen case to its ``subject_id``.
        differences: Differences from the official release, one sentence each.
        left_out: Maps each exclusion reason to its number of cases.
    """

    release: Derm7ptRelease
    subjects: dict[int, str]
    differences: list[str]
    left_out: dict[str, int]


class Derm7pt(ImageSpec):
    """Derm7pt: skin lesions in five groups. Nothing is downloaded.

    Sex and location are kept, the aspect ratio is not. Nine cases without a clinical image are not in the view clinic.

    Source: Kawahara et al., IEEE Journal of Biomedical and Health Informatics 23(2) (2019). Licence: academic research
    only, no redistribution of images (see README.txt of the release).
    """

    dataset = "derm7pt"
    """Name of the data set, as users type it."""
    unreadable = "option skip_unreadable"
    """Treatment of unreadable images: stop, unless the user sets the option ``skip_unreadable``."""
    terms = RECORDS[0].licence
    """Terms of use, which the user sees before reading starts and the data list states."""
    citation = CITATION
    """Publications to cite, which the user sees before reading starts and the data list states."""

    source: Path
    """The folder release_v0, as unpacked, or the one that contains it."""
    size: int = Field(224, ge=1)
    """Height and width of the images in the array."""
    view: Annotated[str, OneOf(VIEWS)] = "derm"
    """Images to use: derm (dermoscopy) or clinic (photograph)."""
    split: Annotated[str, OneOf(SPLIT_OPTIONS)] = "official"
    """Split: official, or none (all cases in training, for cross-validation folds at each site as in FedSKD)."""

    @classmethod
    def locate(cls, top: Path, options: Mapping[str, Any]) -> dict[str, Path]:
        """Find the release for a study (a file that lists data sets, methods and seeds) that names no path to it.

        Args:
            top: Source folder of the study, which contains the downloaded releases.
            options: Options of the data set in the study file.

        Returns:
            ``{"source": folder}``. The folder is ``derm7pt`` in `top` if that contains ``release_v0``, otherwise `top`
            itself.

        Raises:
            DataError: If neither folder contains ``release_v0``.
        """
        return {"source": folder_with(top, cls.dataset, "release_v0/meta/meta.csv")}

    def title(self) -> str:
        """Return the name of the prepared data set, with a suffix for photographs."""
        return "derm7pt" if self.view == "derm" else f"derm7pt-{self.view}"

    def find(self) -> Derm7ptRelease:
        """Read the tables of the release; `plan_reading` looks up the images."""
        return read_release(self.source)

    def plan_reading(self, files: Derm7ptRelease, say: Say) -> ReadPlan:
        """Plan to read the images of all cases that have the view; an image has the index of its case in the table."""
        differences = files.deviations()
        for sentence in differences:
            say(f"warning: {sentence}")
        places, left_out = _select_cases(files, self.view, say)
        files.check_images(self.view, places)
        say("note: Derm7pt does not state which cases are of one patient: each case counts as a patient of its own")
        numbers = files.table.numbers
        cases = [files.table.rows[place] for place in places]
        subjects = number_subjects([case["case_num"] for case in cases])
        return ReadPlan(
            items=ImageFolder(files.images).find(
                [case[self.view] for case in cases], [numbers[place] for place in places]
            ),
            places=places,
            files=lambda path: [path],
            load=partial(read_case, size=self.size),
            shape=(self.size, self.size, 3),
            recipe={"data set": self.title(), "size": self.size},
            cells=lambda place: (numbers[place],),
            columns=("table_row",),
            release=_Derm7ptInputs(
                release=files,
                subjects=dict(zip(places, subjects, strict=True)),
                differences=differences,
                left_out=left_out,
            ),
        )

    def incomplete_message(self, outcome: ReadOutcome) -> str:
        """Return the error message if the user requires all images, but some are unreadable."""
        numbers = outcome.plan.release.release.table.numbers
        return unreadable_rows_message(outcome.reasons, outcome.plan.count(), numbers.__getitem__)

    def datalist(self, outcome: ReadOutcome, say: Say) -> Datalist:
        """Build the data list: a record with label, metadata and split for each image that was read."""
        inputs: _Derm7ptInputs = outcome.plan.release
        release = inputs.release
        empty_groups = [
            group for group in DIAGNOSIS_GROUPS if group not in {release.groups[place] for place in outcome.kept}
        ]
        if empty_groups:
            raise DataError(
                "class_without_images",
                f"no readable image is left of the classes {', '.join(map(repr, empty_groups))}. Repair the files of "
                "these classes.",
                classes=empty_groups,
            )
        classes = list(DIAGNOSIS_GROUPS)
        records: list[CaseRecord] = [
            make_record(
                {
                    "label": classes.index(release.groups[place]),
                    "subject_id": inputs.subjects[place],
                    "sex": release.table.rows[place]["sex"],
                    "location": release.table.rows[place]["location"],
                }
            )
            for place in outcome.kept
        ]
        reasons = inputs.left_out | dict(Counter(outcome.reasons.values()).most_common())
        return self.make_datalist(
            classes,
            VIEWS[self.view],
            records,
            [release.splits[place] if self.split == "official" else SPLITS[0] for place in outcome.kept],
            deviations=inputs.differences,
            exclusions=exclusions(reasons),
        )


def read_case(path: Path, size: int) -> LoadedItem:
    """Read and resize the image of a case.

    Args:
        path: Image file.
        size: Height and width of the result in pixels.

    Returns:
        Row of the array, shape (size, size, 3), uint8.

    Raises:
        DataError: If the file can't be read, or has more than 8 bits a channel.
    """
    return LoadedItem(resize(read_rgb(path), (size, size)))


def _select_cases(release: Derm7ptRelease, view: str, say: Say) -> tuple[list[int], dict[str, int]]:
    """Select the cases that have an image of the view.

    Returns:
        Indices of the cases, and a mapping from the exclusion reason to the number of excluded cases.

    Raises:
        DataError: If a group of diagnoses has no case.
    """
    count, cases, leave = sum(release.doubled), range(len(release.doubled)), view == "clinic"
    if count:
        say(
            f"note: {count} cases have no clinical image, the release names the dermoscopic one twice; the view "
            f"{view} {'leaves them out' if leave else 'has them'}"
        )
    kept = [place for place in cases if not (leave and release.doubled[place])]
    empty_groups = [group for group in DIAGNOSIS_GROUPS if group not in {release.groups[place] for place in kept}]
    if empty_groups:
        raise DataError(
            "class_without_images",
            f"expected cases of all groups of diagnoses, {', '.join(DIAGNOSIS_GROUPS)}; there are none of "
            f"{', '.join(empty_groups)} in {release.table.path}. Give the whole release.",
            path=release.table.path,
            classes=empty_groups,
        )
    return kept, {NO_CLINICAL_IMAGE: count} if leave else {}
