"""Spec of ABIDE I: options, choice of maps and data list of the prepared data set.

A map is an fMRI volume with one value for each brain voxel. A derivative is a kind of map, such as ``reho`` (regional
homogeneity). A pipeline is the software that computed the maps, and a strategy its choice of filters.

`medfl prep` turns a release (the files that the publisher distributes) into a prepared data set. It calls the methods
of the spec in this order: `find` (find the files), `plan_reading` (plan what to read), `rows_to_drop` (select rows to
remove after reading), `datalist` (describe the other rows) and `finish` (change the array or add files).

Prepared data set: ``images.npy`` (N, X, Y, Z, channels), float32, with a row for each subject and a channel for each
derivative. Each record has ``label``, ``subject_id``, ``site``, ``centre``, ``sex`` and ``age``. If an atlas is given,
it is written on the grid of the images, with the list of its regions. All subjects are in the training split.
`medfl_datasets.abide.tables` selects the subjects, `medfl_datasets.abide.files` finds the maps.

A subject needs all requested derivatives. Subjects with a missing or unreadable map are excluded and listed in
``quarantine.csv`` by table row and derivative. Too many unreadable maps indicate a broken download and stop the
command. Maps are read one by one, so that an interruption costs no subject; at the end the maps of a subject are
combined into one row of the array.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from pydantic import model_validator

from medfl.data.datalists import Datalist
from medfl.data.ingest.array_file import stack_rows
from medfl.data.ingest.options import Words, check_mirror
from medfl.data.ingest.pipeline import QUARANTINE
from medfl.data.ingest.read_plan import ReadOutcome, ReadPlan, exclusions
from medfl.data.ingest.spec import ImageSpec, folder_with
from medfl.data.readers.volumes import SpatialGrid, common_grid
from medfl.data.table import row_list
from medfl.errors import DataError
from medfl.records.datalist import CaseRecord
from medfl.utils.text import Say
from medfl_datasets.abide import RECORDS
from medfl_datasets.abide.atlas import PlacedAtlas, place_atlas, write_atlas
from medfl_datasets.abide.download import URL, fetch_maps, fetch_phenotypes
from medfl_datasets.abide.files import DEFAULT_DERIVATIVES, MapSelection, find_maps, no_maps_error
from medfl_datasets.abide.map_reading import NO_MAP, MapFailures, describe_failures, read_one_map, too_many_unreadable
from medfl_datasets.abide.tables import CLASSES, FEDASD, PHENOTYPE_FILE, AbideCohort, Subject, read_phenotypes

CITATION = (
    "Di Martino et al., The autism brain imaging data exchange, Molecular Psychiatry 19, 659 (2014); "
    "Craddock et al., The Neuro Bureau Preprocessing Initiative, Frontiers in Neuroinformatics 7 (2013)"
)
"""Publications that users of the data are asked to cite."""

INCOMPLETE = "another map of the subject can't be read"
"""Exclusion reason of a map that was read, but whose subject has another map that can't be read."""

_TOPS = ("", "ABIDE_Initiative", "ABIDE_pcp")
"""Folders below the source folder that may contain the phenotypic file."""

MapFiles = Mapping[tuple[str, str], Path]
"""Type of a mapping from (file id of a subject, derivative) to the file of the map."""


@dataclass(frozen=True)
class _AbideRelease:
    """Content of the release.

    Attributes:
        cohort: Subjects that the phenotypic file selects.
        complete: Subjects that have all maps.
        atlas: Atlas on the grid of the images; None if none is given.
    """

    cohort: AbideCohort
    complete: list[Subject]
    atlas: PlacedAtlas | None


class Abide(ImageSpec):
    """ABIDE I: maps of functional MRI with autism or without, as the Preprocessed Connectomes Project (PCP) has them.

    871 subjects passed PCP's quality control. Subjects with a missing map are left out and listed in quarantine.csv.

    Source: Di Martino et al., Molecular Psychiatry 19, 659 (2014); Craddock et al., Frontiers in Neuroinformatics 7
    (2013). Licence: CC BY-NC-SA 3.0, non-commercial research.
    """

    dataset = "abide"
    """Name of the data set, as users type it."""
    unreadable = "option require_complete"
    """Treatment of missing or unreadable images: exclude them, unless the user sets ``require_complete``."""
    item = "map"
    """Name of one item that is read, in the singular, for messages."""
    terms = RECORDS[0].licence
    """Terms of use, which the user sees before reading starts and the data list states."""
    citation = CITATION
    """Publications to cite, which the user sees before reading starts and the data list states."""

    source: Path
    """The folder of the release: it contains PCP's folder Outputs, nilearn's folder ABIDE_pcp, or all files."""
    derivatives: Words = DEFAULT_DERIVATIVES
    """Derivatives (kinds of fMRI maps, such as reho) to use as channels, separated by commas."""
    size: int = 48
    """Voxels along each edge of an image."""
    sites: str = FEDASD
    """Sites of the federation: fedasd for the four regions that the method FedASD uses, or a column of the phenotypic
    file, such as SITE_ID."""
    pipeline: str = "cpac"
    """Software with which PCP computed the maps: ccs, cpac, dparsf or niak."""
    strategy: str = "filt_noglobal"
    """Preprocessing of the maps: filt_global, filt_noglobal, nofilt_global or nofilt_noglobal (with or without a
    band-pass filter, with or without regression of the global signal)."""
    atlas: Path | None = None
    """Brain atlas to resample to the grid of the images: a NIfTI file with region codes as voxels, in MNI152 space."""
    phenotypes: Path | None = None
    """The phenotypic file, if it is not in --source."""
    download: bool = False
    """Download files that are not in --source."""
    url: str | None = None
    """Address of a mirror's folder that contains Outputs."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Raise SettingsError if options are invalid."""
        check_mirror(self.url, self.download)
        self.maps()
        self.grid()
        return self

    @classmethod
    def locate(cls, top: Path, options: Mapping[str, Any]) -> dict[str, Path]:
        """Find the release for a study (a file that lists data sets, methods and seeds) that names no path to it.

        Args:
            top: Source folder of the study, which contains the downloaded releases.
            options: Options of the data set in the study file.

        Returns:
            ``{"source": folder}``. The folder is ``abide`` in `top` if that contains the phenotypic file, otherwise
            `top` itself. Empty if the study names a source.

        Raises:
            DataError: If neither folder contains the phenotypic file.
        """
        return {} if "source" in options else {"source": folder_with(top, cls.dataset, PHENOTYPE_FILE)}

    def maps(self) -> MapSelection:
        """Return the selection of maps (derivatives, pipeline and strategy) that the options state."""
        return MapSelection(self.derivatives, self.pipeline, self.strategy)

    def grid(self) -> SpatialGrid:
        """Return the grid (number, size and position of the voxels, in MNI152 space) of the images."""
        return common_grid(self.size)

    def find(self) -> Path | None:
        """Find the phenotypic file, which lists the subjects; return None if it has to be downloaded."""
        if self.phenotypes is not None:
            if not self.phenotypes.is_file():
                raise DataError(
                    "missing_file",
                    f"expected the phenotypic file {self.phenotypes}, found none. Give another --phenotypes.",
                    path=self.phenotypes,
                )
            return self.phenotypes
        path = next((path for top in _TOPS if (path := self.source / top / PHENOTYPE_FILE).is_file()), None)
        if path is None and not self.download:
            raise DataError(
                "missing_file",
                f"expected the phenotypic file {self.source / PHENOTYPE_FILE}, found none. Add --download, or give "
                "the file as --phenotypes.",
                path=self.source / PHENOTYPE_FILE,
            )
        return path

    def plan_reading(self, files: Path | None, say: Say) -> ReadPlan:
        """Plan to read the maps of subjects who have all derivatives; with `download`, download missing maps first.

        The index of a map is the subject's index times the number of derivatives, plus the derivative's alphabetical
        index.
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
        return ReadPlan(
            items=[paths[key] for key in keys],
            places=[places[key] for key in keys],
            files=lambda path: [path],
            load=partial(read_one_map, grid=self.grid()),
            shape=self.grid().shape,
            dtype=np.float32,
            recipe={"data set": "abide", "size": self.size},
            cells=lambda place: (subjects[place // len(names)].row, names[place % len(names)]),
            columns=("table_row", "derivative"),
            missing=missing,
            release=_AbideRelease(cohort, complete, atlas),
        )

    def _find_maps(self, subjects: Sequence[Subject], say: Say) -> MapFiles:
        """Find the maps; with `download`, download missing maps first. Raise DataError if there is none."""
        maps, ids = self.maps(), [subject.file_id for subject in subjects]
        files = find_maps(self.source, maps, ids)
        if self.download:
            wanted = [
                (subject, d) for d in maps.derivatives for subject in subjects if (subject.file_id, d) not in files
            ]
            fetch_maps(self.source, maps, wanted, self.url or URL, say)
            files = find_maps(self.source, maps, ids)
        if not files:
            raise no_maps_error(self.source, maps, len(subjects))
        return files

    def incomplete_message(self, outcome: ReadOutcome) -> str:
        """Return the error message if the user requires all maps, but some are missing or unreadable."""
        failed = _unreadable(outcome)
        if not failed:
            absent = _failures(outcome)
            return f"a complete set of maps is required, {len(absent)} are missing: {describe_failures(absent)}."
        return too_many_unreadable(failed, len(outcome.plan.items)) or (
            f"a complete set of maps is required, {len(failed)} can't be read: {describe_failures(failed)}."
        )

    def none_read_message(self, outcome: ReadOutcome) -> str:
        """Return the error message if no map can be read."""
        return self.incomplete_message(outcome)

    def exclusion_warnings(self, outcome: ReadOutcome, listed: int) -> list[str]:
        """Return warnings for the user about unreadable maps and excluded subjects.

        Args:
            outcome: Outcome of reading the maps.
            listed: Number of lines in ``quarantine.csv``.

        Raises:
            DataError: If too many maps can't be read.
        """
        failed = _unreadable(outcome)
        message = too_many_unreadable(failed, len(outcome.plan.items))
        if message:
            raise DataError(
                "too_many_unreadable",
                message,
                count=len(failed),
                total=len(outcome.plan.items),
                rows={row for row, _ in failed},
            )
        lines = [f"warning: {len(failed)} maps can't be read: {describe_failures(failed)}"] if failed else []
        count = len({row for row, _ in _failures(outcome)})
        return [*lines, f"warning: {count} subjects without all maps were left out: see {QUARANTINE}"]

    def rows_to_drop(self, outcome: ReadOutcome, say: Say) -> dict[int, str]:
        """Select maps to remove from the array after reading: readable maps of subjects with an unreadable map.

        Returns:
            Mapping from the row of each map to remove to the reason `INCOMPLETE`.
        """
        owners = [place // len(self.derivatives) for place in outcome.kept]
        counts = Counter(owners)
        return {row: INCOMPLETE for row, owner in enumerate(owners) if counts[owner] < len(self.derivatives)}

    def datalist(self, outcome: ReadOutcome, say: Say) -> Datalist:
        """Build the data list: a record for each subject whose maps were all read."""
        release: _AbideRelease = outcome.plan.release
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

    def finish(self, folder: Path, outcome: ReadOutcome, datalist: Datalist) -> None:
        """Combine the maps of each subject into the channels of one row, in place, and write the atlas."""
        stack_rows(folder / datalist.image_array, len(self.derivatives))
        release: _AbideRelease = outcome.plan.release
        if release.atlas:
            datalist.extra["atlas"] = write_atlas(folder, release.atlas)


def _failures(outcome: ReadOutcome) -> MapFailures:
    """Return the reason of each excluded map, by table row and derivative."""
    cells = outcome.plan.cells
    failures: dict[tuple[int, str], str] = {}
    for place, reason in outcome.reasons.items():
        row, derivative = cells(place)
        failures[int(row), str(derivative)] = reason
    return failures


def _unreadable(outcome: ReadOutcome) -> MapFailures:
    """Return the excluded maps that exist but can't be read."""
    return {key: reason for key, reason in _failures(outcome).items() if reason != NO_MAP}


def _check_classes(subjects: Sequence[Subject]) -> None:
    """Raise DataError if a class has no subject."""
    empty_classes = [name for label, name in enumerate(CLASSES) if label not in {subject.label for subject in subjects}]
    if empty_classes:
        raise DataError(
            "class_without_images",
            f"no subject with all maps is left of the classes {', '.join(empty_classes)}. Ask for fewer "
            "--derivatives, or add --download.",
            classes=empty_classes,
        )


def _record(subject: Subject) -> CaseRecord:
    """Build the record of a subject."""
    return {
        "label": subject.label,
        "subject_id": subject.subject_id,
        "site": subject.site,
        "centre": subject.centre,
        "sex": subject.sex,
        "age": subject.age,
    }
