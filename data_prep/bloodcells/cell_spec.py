"""Base specs of white blood cell data sets: options, reading and data list that all releases share.

`medfl prep` turns a release (the files that the publisher distributes) into a prepared data set. It calls the methods
of the spec in this order: `find` (find the files), `plan_reading` (plan what to read), `rows_to_drop` (select rows to
remove after reading) and `datalist` (describe the other rows).

Images are read by the rules of `medfl.data.readers.images` as 8-bit RGB and resized with antialiasing; alpha is
dropped, and grey is repeated in all channels. Images with more than 8 bits a channel, images smaller than 8
pixels and unreadable files are excluded and listed in ``quarantine.csv``. No release states which cells belong to one
patient, so each image is a subject of its own; byte-identical copies of a file are one subject.

Prepared data set: ``images.npy`` (N, size, size, 3), uint8; each record has ``label``, ``subject_id``, ``source`` (the
release) and ``cell`` (the release's code of the cell type). The test set is drawn from each class of each release.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from medfl.data.datalists import Datalist
from medfl.data.ingest.columns.labels import number_subjects
from medfl.data.ingest.options import check_test_share
from medfl.data.ingest.read_plan import ReadOutcome, ReadPlan, exclusions
from medfl.data.ingest.spec import ImageSpec, folder_or_top
from medfl.errors import DataError
from medfl.records.datalist import CaseRecord, make_record
from medfl.utils.text import Say
from medfl_datasets.bloodcells.files import CellImage, CellListing, CellRelease, read_cell
from medfl_datasets.bloodcells.labels import LabelMap
from medfl_datasets.bloodcells.split import find_copies, select_test_images

NO_PATIENTS_WARNING = (
    "warning: {} does not state which cells are of one patient: each image counts as a patient of its own, and "
    "cells of one patient may be at several sites and in several splits"
)
"""Warning that patients are unknown, given for every release. ``{}`` stands for the name of the release."""


@dataclass(frozen=True)
class CellCohort:
    """Cells to read from all releases, and the numbers to report about them.

    Attributes:
        cells: Maps the index of each image in the read plan to its cell. Quarantined images have the first indices and
            no cell.
        labels: Label map: the class of each cell type of each release.
        left_out: Maps each exclusion reason to its number of images.
        deviations: Sentences about differences between the releases and their published numbers of images.
    """

    cells: dict[int, CellImage]
    labels: LabelMap
    left_out: Counter[str]
    deviations: list[str]

    def label(self, place: int) -> int:
        """Return the class number of the cell in the image with index `place`."""
        return self.labels.classes.index(self.class_of(place))

    def class_of(self, place: int) -> str:
        """Return the class name of the cell in the image with index `place`."""
        name = self.labels.sources[self.cells[place].source][self.cells[place].code]
        assert name is not None, "cells without a class are left out before they are read"
        return name


class CellSpec(ImageSpec):
    """Base spec of data sets of white blood cells.

    Class attributes:
        complete: Whether a class without an image is an error; otherwise it causes a warning.
    """

    complete: ClassVar[bool] = True
    """Whether a class without an image is an error; otherwise it causes a warning."""

    size: int = Field(224, ge=1)
    """Height and width of the images in the array."""
    test_share: float = 0.2
    """Share of the images of each class of a release that become test images; with 0, medfl partition holds out test
    sets."""
    seed: int = 0
    """Seed that selects the images of the test set."""

    @model_validator(mode="after")
    def _check_share(self) -> Self:
        """Raise SettingsError if the test share is out of range."""
        check_test_share(self.test_share)
        return self

    @abstractmethod
    def releases(self) -> list[tuple[CellRelease, Path]]:
        """Return pairs of a release to prepare and its folder, at least one."""

    @abstractmethod
    def class_map(self) -> LabelMap:
        """Return the label map, which states the class of each cell type.

        Raises:
            SettingsError: If the map is a file that is missing or invalid.
        """

    def keeps_copies(self) -> bool:
        """Return whether byte-identical copies are kept. Copies of a file form one subject of the training split."""
        return False

    def credits(self) -> list[str]:
        """Return the lines with the licence and citation of each release, which the user sees first."""
        return [
            line
            for release, _ in self.releases()
            for line in (f"{release.name}: licence {release.licence}", f"Please cite: {release.citation}")
        ]

    def find(self) -> tuple[LabelMap, list[CellListing]]:
        """Read and check the label map, and list the cells of each release."""
        labels = self.class_map()
        labels.check([release for release, _ in self.releases()])
        return labels, [release.find(folder) for release, folder in self.releases()]

    def plan_reading(self, files: tuple[LabelMap, list[CellListing]], say: Say) -> ReadPlan:
        """Plan to read all cells that have a class. Quarantined images have the first indices, and the cells follow."""
        labels, listings = files
        deviations = _deviations([release for release, _ in self.releases()], listings, say)
        cells, left_out = _select_cells(listings, labels, say)
        quarantined = [entry for listing in listings for entry in listing.quarantined]
        first = len(quarantined)
        names = [name for name, _ in quarantined]
        names += [f"{cell.source}/{cell.path.parent.name}/{cell.path.name}" for cell in cells]
        return ReadPlan(
            items=[cell.path for cell in cells],
            places=range(first, len(names)),
            files=lambda path: [path],
            load=partial(read_cell, size=self.size),
            shape=(self.size, self.size, 3),
            recipe={"data set": "blood cells", "size": self.size},
            cells=lambda place: (names[place],),
            columns=("image",),
            missing={place: reason for place, (_, reason) in enumerate(quarantined)},
            release=CellCohort(dict(enumerate(cells, first)), labels, left_out, deviations),
        )

    def rows_to_drop(self, outcome: ReadOutcome, say: Say) -> dict[int, str]:
        """Select the rows of byte-identical copies to remove from the array after reading; none if copies are kept.

        Returns:
            Maps each row to remove to the reason.
        """
        cohort: CellCohort = outcome.plan.release
        copies = find_copies([cohort.label(place) for place in outcome.kept], _digests(outcome))
        counts = Counter(copies.values())
        described = ", ".join(f"{count} x {reason}" for reason, count in counts.items()) or "there are none"
        total = len(outcome.kept)
        if self.keeps_copies():
            say(f"note: {total} images, copies of files are kept: {described}")
            return {}
        say(f"note: {total} images before, {total - len(copies)} after copies of files were left out: {described}")
        return copies

    def datalist(self, outcome: ReadOutcome, say: Say) -> Datalist:
        """Build the data list: a record with class, subject and split for each image in the array."""
        cohort: CellCohort = outcome.plan.release
        self._check_classes({cohort.class_of(place) for place in outcome.kept}, cohort.labels, say)
        cells, subjects = [cohort.cells[place] for place in outcome.kept], number_subjects(_digests(outcome))
        strata = [f"{cohort.cells[place].source} {cohort.class_of(place)}" for place in outcome.kept]
        records: list[CaseRecord] = [
            make_record(
                {
                    "label": cohort.label(place),
                    "subject_id": subject,
                    "source": cell.source,
                    "cell": cell.code,
                    **cell.about,
                }
            )
            for place, cell, subject in zip(outcome.kept, cells, subjects, strict=True)
        ]
        test_images = select_test_images(strata, subjects, self.test_share, self.seed)
        releases = [release for release, _ in self.releases()]
        reasons = cohort.left_out + Counter(outcome.reasons.values()) + Counter(outcome.dropped.values())
        return self.make_datalist(
            cohort.labels.classes,
            "blood smear, light microscopy",
            records,
            ["test" if test else "training" for test in test_images],
            licence="; ".join(f"{release.name}: {release.licence}" for release in releases),
            citation="; ".join(release.citation for release in releases),
            deviations=cohort.deviations,
            copies="kept" if self.keeps_copies() else "left out",
            exclusions=exclusions(reasons),
        )

    def _check_classes(self, found_classes: set[str], labels: LabelMap, say: Say) -> None:
        """Raise DataError, or warn if `complete` is false, if a class has no image."""
        empty_classes = [name for name in labels.classes if name not in found_classes]
        if empty_classes and (self.complete or not found_classes):
            raise DataError(
                "class_without_images",
                f"no readable image is left of the classes {', '.join(empty_classes)}. Unpack the release again.",
                classes=empty_classes,
            )
        if empty_classes:
            say(f"warning: there is no image of the classes {', '.join(empty_classes)}; their numbers stay unused")


class SingleReleaseSpec(CellSpec):
    """Base spec of a data set that consists of one release.

    Class attributes:
        release: Description of the release.
    """

    release: ClassVar[CellRelease]
    """Description of the release: names, licence, published numbers, and the function that lists its images."""

    source: Path
    """The folder of the release."""

    @classmethod
    def locate(cls, top: Path, options: Mapping[str, Any]) -> dict[str, Path]:
        """Find the release for a study (a file that lists data sets, methods and seeds) that names no path to it.

        Args:
            top: Source folder of the study, which contains the downloaded releases.
            options: Options of the data set in the study file.

        Returns:
            ``{"source": folder}``. The folder is the one in `top` with the name of the release, otherwise `top` itself.
        """
        return {"source": folder_or_top(top, cls.release.name)}

    def releases(self) -> list[tuple[CellRelease, Path]]:
        """Return the only release, paired with its folder."""
        return [(self.release, self.source)]


def _digests(outcome: ReadOutcome) -> list[str]:
    """Return the file digest of each row of the array."""
    return [facts["digest"] for facts in outcome.facts]


def _deviations(releases: Sequence[CellRelease], listings: Sequence[CellListing], say: Say) -> list[str]:
    """Report the content of the folders, and return one sentence for each difference from a release."""
    deviations = []
    for release, listing in zip(releases, listings, strict=True):
        difference = release.deviation(listing.cells)
        if difference is not None:
            deviations.append(difference)
            say(f"warning: {difference}")
        for reason, count in listing.skipped.items():
            say(f"note: {release.name}: {count} x {reason}")
        say(NO_PATIENTS_WARNING.format(release.name))
    return deviations


def _select_cells(listings: Sequence[CellListing], labels: LabelMap, say: Say) -> tuple[list[CellImage], Counter[str]]:
    """Select the cells that have a class.

    Returns:
        The cells, and the number of excluded images for each reason.

    Raises:
        DataError: If no cell has a class.
    """
    cells = [cell for listing in listings for cell in listing.cells]
    codes = Counter((cell.source, cell.code) for cell in cells if labels.sources[cell.source][cell.code] is None)
    left_out = Counter({f"{code} of {source}, which has no class": count for (source, code), count in codes.items()})
    for reason, count in left_out.items():
        say(f"note: {count} images are left out: {reason}")
    chosen = [cell for cell in cells if (cell.source, cell.code) not in codes]
    if not chosen:
        raise DataError("no_labelled_images", "no image has a class. Give another folder, or another label map.")
    return chosen, left_out + sum((listing.skipped for listing in listings), Counter())
