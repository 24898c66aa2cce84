"""Releases of white blood cells in, one pooled data set out: the part that all of them share.

Images are read by the rules of `medfl.data.readers.images` as RGB of 8 bits and resized with antialiasing; alpha is
left out, grey is repeated. One that is deeper, is smaller than `MIN_EDGE` or can't be read is left out, and listed in
``quarantine.csv``. No release says which cells are of one patient, so each image is a subject of its own; copies of a
file are one subject.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

from medfl.ingest.choice import Choice, Outcome, exclusions
from medfl.ingest.labels import number_subjects
from medfl.ingest.spec import ImageSpec, folder_or_top
from pydantic import Field, model_validator

from medfl.data.datalists import Datalist
from medfl.errors import DataError, SettingsError
from medfl.records.datalist import CaseRecord, make_record
from medfl.utils.text import Say
from medfl_datasets.bloodcells.files import Cell, Listing, Release, read_cell
from medfl_datasets.bloodcells.labels import LabelMap
from medfl_datasets.bloodcells.split import choose_test, find_copies

NO_PATIENTS = (
    "warning: {} does not say which cells are of one patient: each image counts as a patient of its own, and cells of "
    "one patient may be at several sites and in several splits"
)
"""Said of every release."""


@dataclass(frozen=True)
class Cohort:
    """The cells of all releases.

    Attributes:
        cells: By their place.
        labels: The class of each kind of cell.
        left_out: Reason to the number of images that are not looked at.
        deviations: How the releases differ from what was published.
    """

    cells: dict[int, Cell]
    labels: LabelMap
    left_out: Counter[str]
    deviations: list[str]

    def label(self, place: int) -> int:
        """The number of a cell's class."""
        return self.labels.classes.index(self.class_of(place))

    def class_of(self, place: int) -> str:
        """The name of a cell's class."""
        name = self.labels.sources[self.cells[place].source][self.cells[place].code]
        assert name is not None, "cells without a class are left out before they are read"
        return name


class Cells(ImageSpec):
    """Sizes and shares.

    Class attributes:
        complete: Whether a class without an image is refused; otherwise there is a warning.
    """

    complete: ClassVar[bool] = True

    size: int = Field(224, ge=1)
    """Height and width of the images in the array."""
    test_share: float = 0.2
    """Share of each class of a release in the test set; 0 leaves it to medfl partition."""
    seed: int = 0
    """Decides which images these are."""

    @model_validator(mode="after")
    def _check_share(self) -> Self:
        if not 0 <= self.test_share < 1:
            raise SettingsError(
                "setting_out_of_range",
                f"expected 0 <= test share < 1, got {self.test_share}",
                setting="test_share",
                found=self.test_share,
            )
        return self

    @abstractmethod
    def releases(self) -> list[tuple[Release, Path]]:
        """Each release with its folder, at least one."""

    @abstractmethod
    def class_map(self) -> LabelMap:
        """The class of each kind of cell.

        Raises:
            SettingsError: If it is a file that is missing or no label map.
        """

    def keeps_copies(self) -> bool:
        """Whether byte-identical copies are kept; they are then one subject, and in training."""
        return False

    def credits(self) -> list[str]:
        """Terms of use and citation of each release."""
        return [
            line
            for release, _ in self.releases()
            for line in (f"{release.name}: licence {release.licence}", f"Please cite: {release.citation}")
        ]

    def find(self) -> tuple[LabelMap, list[Listing]]:
        """The class of each kind of cell, and the cells of each release."""
        labels = self.class_map()
        labels.check([release for release, _ in self.releases()])
        return labels, [release.find(folder) for release, folder in self.releases()]

    def choose(self, files: tuple[LabelMap, list[Listing]], say: Say) -> Choice:
        """All cells that have a class; what a release contradicts comes first in the list of what is left out."""
        labels, listings = files
        deviations = _deviations([release for release, _ in self.releases()], listings, say)
        cells, left_out = _choose(listings, labels, say)
        quarantined = [entry for listing in listings for entry in listing.quarantined]
        first = len(quarantined)
        names = [name for name, _ in quarantined]
        names += [f"{cell.source}/{cell.path.parent.name}/{cell.path.name}" for cell in cells]
        return Choice(
            items=[cell.path for cell in cells],
            places=range(first, len(names)),
            files=lambda path: [path],
            load=partial(read_cell, size=self.size),
            shape=(self.size, self.size, 3),
            recipe={"data set": "blood cells", "size": self.size},
            cells=lambda place: (names[place],),
            columns=("image",),
            missing={place: reason for place, (_, reason) in enumerate(quarantined)},
            release=Cohort(dict(enumerate(cells, first)), labels, left_out, deviations),
        )

    def drop(self, outcome: Outcome, say: Say) -> dict[int, str]:
        """Copies of files, unless they are to be kept."""
        cohort: Cohort = outcome.choice.release
        copies = find_copies([cohort.label(place) for place in outcome.kept], _digests(outcome))
        counts = Counter(copies.values())
        described = ", ".join(f"{count} x {reason}" for reason, count in counts.items()) or "there are none"
        total = len(outcome.kept)
        if self.keeps_copies():
            say(f"note: {total} images, copies of files are kept: {described}")
            return {}
        say(f"note: {total} images before, {total - len(copies)} after copies of files were left out: {described}")
        return copies

    def datalist(self, outcome: Outcome, say: Say) -> Datalist:
        """The data list; each record has the `source` and the kind of `cell` that the release says."""
        cohort: Cohort = outcome.choice.release
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
        tested = choose_test(strata, subjects, self.test_share, self.seed)
        releases = [release for release, _ in self.releases()]
        reasons = cohort.left_out + Counter(outcome.reasons.values()) + Counter(outcome.dropped.values())
        return self.make_datalist(
            cohort.labels.classes,
            "blood smear, light microscopy",
            records,
            ["test" if test else "training" for test in tested],
            licence="; ".join(f"{release.name}: {release.licence}" for release in releases),
            citation="; ".join(release.citation for release in releases),
            deviations=cohort.deviations,
            copies="kept" if self.keeps_copies() else "left out",
            exclusions=exclusions(reasons),
        )

    def _check_classes(self, there: set[str], labels: LabelMap, say: Say) -> None:
        gone = [name for name in labels.classes if name not in there]
        if gone and (self.complete or not there):
            raise DataError(
                "class_without_images",
                f"no readable image is left of the classes {', '.join(gone)}. Unpack the release again.",
                classes=gone,
            )
        if gone:
            say(f"warning: there is no image of the classes {', '.join(gone)}; their numbers stay free")


class OneRelease(Cells):
    """Cells of one release.

    Class attributes:
        release: Which one.
    """

    release: ClassVar[Release]

    source: Path
    """Its folder."""

    @classmethod
    def locate(cls, top: Path, options: Mapping[str, Any]) -> dict[str, Path]:
        """A folder of its name, or the source folder itself."""
        return {"source": folder_or_top(top, cls.release.name)}

    def releases(self) -> list[tuple[Release, Path]]:
        """It, with its folder."""
        return [(self.release, self.source)]


def _digests(outcome: Outcome) -> list[str]:
    return [facts["digest"] for facts in outcome.facts]


def _deviations(releases: Sequence[Release], listings: Sequence[Listing], say: Say) -> list[str]:
    """Say what is in the folders; the sentences on what is unlike the releases."""
    deviations = []
    for release, listing in zip(releases, listings, strict=True):
        unlike = release.deviation(listing.cells)
        if unlike is not None:
            deviations.append(unlike)
            say(f"warning: {unlike}")
        for reason, count in listing.passed_over.items():
            say(f"note: {release.name}: {count} x {reason}")
        say(NO_PATIENTS.format(release.name))
    return deviations


def _choose(listings: Sequence[Listing], labels: LabelMap, say: Say) -> tuple[list[Cell], Counter[str]]:
    """The cells that have a class, and what else there is."""
    cells = [cell for listing in listings for cell in listing.cells]
    codes = Counter((cell.source, cell.code) for cell in cells if labels.sources[cell.source][cell.code] is None)
    left_out = Counter({f"{code} of {source}, which has no class": count for (source, code), count in codes.items()})
    for reason, count in left_out.items():
        say(f"note: {count} images are left out: {reason}")
    chosen = [cell for cell in cells if (cell.source, cell.code) not in codes]
    if not chosen:
        raise DataError("no_labelled_images", "no image has a class. Give another folder, or another label map.")
    return chosen, left_out + sum((listing.passed_over for listing in listings), Counter())
