"""ABIDE I as the Preprocessed Connectomes Project (PCP) publishes it in, a pooled data set out.

The pooled data set is a folder with one array of all subjects (``images.npy``, float32, shape (N, X, Y, Z, channels),
a channel for each derivative), one data list, and, if an atlas is given, the atlas on the grid of the images with the
list of its regions. `medfl_datasets.abide.tables` says who takes part, `medfl_datasets.abide.files` what becomes of a
map.

A subject needs all the derivatives that are asked for. Who lacks one, or has one that can't be read, is left out and
listed in ``quarantine.csv`` by table row and derivative. Too many maps that can't be read mean a broken download, and
stop the command. Maps are read one by one, so that an interruption costs no subject; those of a subject become one row
of the array at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from medfl.ingest.array_file import stack_rows
from medfl.ingest.choice import Choice, Outcome, exclusions
from medfl.ingest.options import Words, check_mirror
from medfl.ingest.pipeline import QUARANTINE
from medfl.ingest.spec import ImageSpec, folder_with
from pydantic import model_validator

from medfl.data.datalists import Datalist
from medfl.data.readers.atlas import Placed, place_atlas, write_atlas
from medfl.data.readers.volumes import Grid, common_grid
from medfl.data.table import row_list
from medfl.errors import DataError
from medfl.records.datalist import CaseRecord
from medfl.utils.text import Say
from medfl_datasets.abide import RECORDS
from medfl_datasets.abide.download import URL, fetch_maps, fetch_phenotypes
from medfl_datasets.abide.files import DEFAULT_DERIVATIVES, Maps, find_maps, nothing_found
from medfl_datasets.abide.images import NO_MAP, Failures, described, read_one, too_many
from medfl_datasets.abide.tables import CLASSES, FEDASD, FILE, Cohort, Subject, read_phenotypes

CITATION = (
    "Di Martino et al., The autism brain imaging data exchange, Molecular Psychiatry 19, 659 (2014); "
    "Craddock et al., The Neuro Bureau Preprocessing Initiative, Frontiers in Neuroinformatics 7 (2013)"
)

INCOMPLETE = "another map of the subject can't be read"
"""Why a map does not stay."""

_TOPS = ("", "ABIDE_Initiative", "ABIDE_pcp")

Files = Mapping[tuple[str, str], Path]
"""The beginning of a subject's file names, and a derivative, to a file."""


@dataclass(frozen=True)
class _Release:
    """What is there: who takes part, of whom all maps are there, and the atlas on the grid of the images."""

    cohort: Cohort
    complete: list[Subject]
    atlas: Placed | None


class Abide(ImageSpec):
    """ABIDE I: maps of functional MRI with autism or without, as the Preprocessed Connectomes Project (PCP) has them.

    871 subjects passed its raters. Who lacks a map is left out and listed in quarantine.csv.
    """

    dataset = "abide"
    unreadable = "option require_complete"
    item = "map"
    terms = RECORDS[0].licence
    citation = CITATION

    source: Path
    """The folder with PCP's Outputs, nilearn's ABIDE_pcp, or all files."""
    derivatives: Words = DEFAULT_DERIVATIVES
    """The channels, separated by commas."""
    size: int = 48
    """Voxels along each edge of an image."""
    sites: str = FEDASD
    """fedasd for its four regions, or a column of the phenotypic file, such as SITE_ID."""
    pipeline: str = "cpac"
    """ccs, cpac, dparsf or niak."""
    strategy: str = "filt_noglobal"
    """filt_global, filt_noglobal, nofilt_..."""
    atlas: Path | None = None
    """Labels in MNI152 space (NIfTI), to put on the same grid."""
    phenotypes: Path | None = None
    """The phenotypic file, if it is not in --source."""
    download: bool = False
    """Download what is not in --source."""
    url: str | None = None
    """A mirror: the address below which Outputs lies."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_mirror(self.url, self.download)
        self.maps()
        self.grid()
        return self

    @classmethod
    def locate(cls, top: Path, options: Mapping[str, Any]) -> dict[str, Path]:
        """The folder that the study names, or that of the phenotypic file: one of its name, or the source itself."""
        return {} if "source" in options else {"source": folder_with(top, cls.dataset, FILE)}

    def maps(self) -> Maps:
        """Which maps are used."""
        return Maps(self.derivatives, self.pipeline, self.strategy)

    def grid(self) -> Grid:
        """Where the voxels of the images lie."""
        return common_grid(self.size)

    def find(self) -> Path | None:
        """The phenotypic file; None if it is to be downloaded."""
        if self.phenotypes is not None:
            if not self.phenotypes.is_file():
                raise DataError(
                    "missing_file",
                    f"expected the phenotypic file {self.phenotypes}, there is none. Give another --phenotypes.",
                    path=self.phenotypes,
                )
            return self.phenotypes
        path = next((path for top in _TOPS if (path := self.source / top / FILE).is_file()), None)
        if path is None and not self.download:
            raise DataError(
                "missing_file",
                f"expected the phenotypic file {self.source / FILE}, there is none. Add --download, or give the file "
                "as --phenotypes.",
                path=self.source / FILE,
            )
        return path

    def choose(self, files: Path | None, say: Say) -> Choice:
        """The maps of subjects who have all, after those that are not there were downloaded if the user wants that.

        Each subject has a place for each derivative, in the order of their names.
        """
        maps, url = self.maps(), self.url or URL
        atlas = place_atlas(self.atlas, self.grid(), say) if self.atlas else None
        cohort = read_phenotypes(files or fetch_phenotypes(self.source, url, say), self.sites)
        subjects = cohort.subjects
        paths = self._find_maps(subjects, say)
        names = sorted(maps.derivatives)
        places = {
            (subject.file_id, derivative): number * len(names) + names.index(derivative)
            for derivative in maps.derivatives
            for number, subject in enumerate(subjects)
        }
        missing = {place: NO_MAP for key, place in places.items() if key not in paths}
        for derivative in maps.derivatives:
            rows = [subject.row for subject in subjects if (subject.file_id, derivative) not in paths]
            if rows:
                say(f"warning: no {derivative} map of {len(rows)} of {len(subjects)} subjects: {row_list(rows)}")
        complete = [subject for subject in subjects if all((subject.file_id, d) in paths for d in maps.derivatives)]
        _check_classes(complete)
        keys = [(subject.file_id, derivative) for subject in complete for derivative in maps.derivatives]
        return Choice(
            items=[paths[key] for key in keys],
            places=[places[key] for key in keys],
            files=lambda path: [path],
            load=partial(read_one, grid=self.grid()),
            shape=self.grid().shape,
            dtype=np.float32,
            recipe={"data set": "abide", "size": self.size},
            cells=lambda place: (subjects[place // len(names)].row, names[place % len(names)]),
            columns=("table_row", "derivative"),
            missing=missing,
            release=_Release(cohort, complete, atlas),
        )

    def _find_maps(self, subjects: Sequence[Subject], say: Say) -> Files:
        """The maps that are there, after those that are not were asked for if the user wants that."""
        maps, ids = self.maps(), [subject.file_id for subject in subjects]
        files = find_maps(self.source, maps, ids)
        if self.download:
            wanted = [
                (subject, d) for d in maps.derivatives for subject in subjects if (subject.file_id, d) not in files
            ]
            fetch_maps(self.source, maps, wanted, self.url or URL, say)
            files = find_maps(self.source, maps, ids)
        if not files:
            raise nothing_found(self.source, maps, len(subjects))
        return files

    def incomplete(self, outcome: Outcome) -> str:
        """Which maps are not there, or can't be read."""
        failed = _unreadable(outcome)
        if not failed:
            absent = _failures(outcome)
            return f"a complete set of maps is required, {len(absent)} are missing: {described(absent)}."
        return too_many(failed, len(outcome.choice.items)) or (
            f"a complete set of maps is required, {len(failed)} can't be read: {described(failed)}."
        )

    def none_read(self, outcome: Outcome) -> str:
        """The same as where too many can't be read."""
        return self.incomplete(outcome)

    def left_out(self, outcome: Outcome, listed: int) -> list[str]:
        """What can't be read, and how many subjects that costs."""
        failed = _unreadable(outcome)
        message = too_many(failed, len(outcome.choice.items))
        if message:
            raise DataError(
                "too_many_unreadable",
                message,
                count=len(failed),
                total=len(outcome.choice.items),
                rows={row for row, _ in failed},
            )
        lines = [f"warning: {len(failed)} maps can't be read: {described(failed)}"] if failed else []
        count = len({row for row, _ in _failures(outcome)})
        return [*lines, f"warning: {count} subjects without all maps were left out: see {QUARANTINE}"]

    def drop(self, outcome: Outcome, say: Say) -> dict[int, str]:
        """Maps of subjects who have another one that can't be read."""
        owners = [place // len(self.derivatives) for place in outcome.kept]
        counts = Counter(owners)
        return {row: INCOMPLETE for row, owner in enumerate(owners) if counts[owner] < len(self.derivatives)}

    def datalist(self, outcome: Outcome, say: Say) -> Datalist:
        """The data list of the subjects whose maps were all read."""
        release: _Release = outcome.choice.release
        subjects = release.cohort.subjects
        used = [subjects[place // len(self.derivatives)] for place in outcome.kept[:: len(self.derivatives)]]
        _check_classes(used)
        reasons = release.cohort.left_out | {
            "a map is missing": len(subjects) - len(release.complete),
            "a map can't be read": len(release.complete) - len(used),
        }
        return self.make_datalist(
            CLASSES,
            RECORDS[0].modality,
            [_record(subject) for subject in used],
            exclusions=exclusions(reasons),
            channels=list(self.derivatives),
            pipeline=self.pipeline,
            strategy=self.strategy,
            affine=self.grid().affine.tolist(),
            space="MNI152",
            intensities="each map: mean 0 and standard deviation 1 over its voxels that are not 0, then resampled",
        )

    def finish(self, folder: Path, outcome: Outcome, datalist: Datalist) -> None:
        """The maps of a subject become its channels; the atlas is written beside them."""
        stack_rows(folder / datalist.image_array, len(self.derivatives))
        release: _Release = outcome.choice.release
        if release.atlas:
            datalist.extra["atlas"] = write_atlas(folder, release.atlas)


def _failures(outcome: Outcome) -> Failures:
    """Table row and derivative to what is wrong, of all maps that are left out."""
    cells = outcome.choice.cells
    failures: dict[tuple[int, str], str] = {}
    for place, reason in outcome.reasons.items():
        row, derivative = cells(place)
        failures[int(row), str(derivative)] = reason
    return failures


def _unreadable(outcome: Outcome) -> Failures:
    return {key: reason for key, reason in _failures(outcome).items() if reason != NO_MAP}


def _check_classes(subjects: Sequence[Subject]) -> None:
    gone = [name for label, name in enumerate(CLASSES) if label not in {subject.label for subject in subjects}]
    if gone:
        raise DataError(
            "class_without_images",
            f"no subject with all maps is left of the classes {', '.join(gone)}. Ask for fewer --derivatives, or add "
            "--download.",
            classes=gone,
        )


def _record(subject: Subject) -> CaseRecord:
    return {
        "label": subject.label,
        "subject_id": subject.subject_id,
        "site": subject.site,
        "centre": subject.centre,
        "sex": subject.sex,
        "age": subject.age,
    }
