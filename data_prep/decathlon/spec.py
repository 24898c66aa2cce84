"""A task of the Medical Segmentation Decathlon in, a pooled data set of volumes and masks out.

All volumes come onto one grid (`medfl.data.transforms.frame.Frame`): turned to one orientation, at their own spacing
unless another one is asked for, scaled each by its own mean and deviation unless there is a window, padded to one size.
No labelled voxel is cut off. The spacing is the same for all and stands in the data list, so that distances are in
millimetres.

No name of a file is kept. A table may say what site a case is of, and which cases are of one patient; without one each
case counts as a patient of its own. All cases are in the training split, and `medfl partition` holds test sets out.

The files are described in `medfl_datasets.decathlon.files`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import numpy as np
from pydantic import BeforeValidator

from medfl.data.datalists import Datalist, Record
from medfl.data.table import Table, read_table, row_list
from medfl.errors import DataError, SettingsError
from medfl.ingest.choice import Choice, Outcome, exclusions
from medfl.ingest.labels import number_subjects
from medfl.ingest.masks import STRATA, about_empty, take_apart, with_masks
from medfl.ingest.options import Positional, read_edges
from medfl.ingest.pipeline import QUARANTINE
from medfl.ingest.spec import ImageSpec, folder_of
from medfl.utils.text import Say, first_names
from medfl_datasets.decathlon import RECORDS
from medfl_datasets.decathlon.files import LIST, NEAR, Case, Grid, Release, grid_of, read_case, read_release

if TYPE_CHECKING:
    from medfl.data.transforms.frame import Frame

CITATION = (
    "Antonelli et al., The Medical Segmentation Decathlon, Nature Communications 13:4128 (2022), "
    "doi:10.1038/s41467-022-30695-9"
)
"""What users of the ten tasks are asked to cite."""

MULTIPLE = 16
"""Edges of a size that nobody gave are multiples of it: networks want them, which halve an image four times."""


@dataclass(frozen=True)
class Task:
    """What is known of a task before its volumes are read.

    Attributes:
        release: Its files.
        facts: What the table says of each case.
        subjects: The patient of each case, made up.
        grids: Place of a case to its grid, of those whose heads can be read.
        spacing: Of all cases in millimetres.
    """

    release: Release
    facts: list[dict[str, str]]
    subjects: list[str]
    grids: dict[int, Grid]
    spacing: tuple[float, ...]


def _numbers(text: Any) -> Any:
    """Numbers of a text such as 1x1x2.5 or -100,240."""
    if not isinstance(text, str):
        return text
    words = [word for word in re.split(r"[x,\s]+", text.strip()) if word]
    try:
        return tuple(map(float, words))
    except ValueError:
        raise SettingsError(f"expected numbers such as 1x1x2.5 or -100,240, got '{text}'") from None


class Decathlon(ImageSpec):
    """A task of the Medical Segmentation Decathlon: volumes with masks in one orientation. Nothing is downloaded.

    Each volume is scaled to mean 0 and standard deviation 1, or by --window. Tasks whose volumes are too large for one
    array are for a bundle that loads its own files.
    """

    dataset = "decathlon"
    unreadable = "option skip_unreadable"
    item = "volume"
    terms = RECORDS[0].licence
    citation = CITATION

    source: Annotated[Path, Positional()]
    """The folder of a task, with its dataset.json."""
    size: Annotated[tuple[int, ...] | None, BeforeValidator(read_edges)] = None
    """Of the volumes in the array, DxHxW; by default the smallest multiples of 16 that hold all."""
    spacing: Annotated[tuple[float, ...] | None, BeforeValidator(_numbers)] = None
    """Resample all to these millimetres, as 1x1x2; by default they stay as they are, which must be alike."""
    window: Annotated[tuple[float, ...] | None, BeforeValidator(_numbers)] = None
    """Lowest and highest intensity that become 0 and 1, as -100,240; by default each volume has its own scale."""
    table: Path | None = None
    """CSV or TSV with a row for each case."""
    case_column: str = "case"
    """Column with the name of the image's file without its ending; it is not kept."""
    site_column: str | None = None
    """Column with the site; kept as 'site'."""
    group_column: str | None = None
    """Column with the patient; it is not kept."""
    name: str | None = None
    """Of the data set; by default that of --out."""

    @classmethod
    def locate(cls, top: Path, options: Mapping[str, Any]) -> dict[str, Path]:
        """The folder that the study names."""
        return {} if "source" in options else {"source": folder_of(top, cls.dataset)}

    def named_after(self, out: Path) -> Self:
        """The data set has the name of its folder, unless the user gives one."""
        return self.model_copy(update={"name": self.name or out.absolute().name})

    def title(self) -> str:
        """What the user named it."""
        return self.name or self.dataset

    def credits(self) -> list[str]:
        """The terms as the task states them."""
        release = read_release(self.source)
        whose = [f"The task names: {release.reference}"] if release.reference else []
        licence = f"{self.title()}: licence {release.licence or 'not stated'}"
        return [licence, *whose, f"Please cite, for the ten tasks: {CITATION}"]

    def find(self) -> Release:
        """What the task's list says."""
        return read_release(self.source)

    def choose(self, files: Release, say: Say) -> Choice:
        """All cases whose heads can be read; the heads tell the size."""
        if files.others:
            say(f"note: {files.others} volumes without masks are passed over")
        facts, subjects = self._table(files)
        if self.group_column is None:
            say("note: each case counts as a patient of its own (--table and --group-column would say otherwise)")
        grids, missing = _grids(files)
        if not grids:
            raise DataError(_to_mend(missing, len(files.cases)))
        spacing = self._spacing(grids)
        frame = self._frame(grids, spacing)
        say(f"note: volumes become {'x'.join(map(str, frame.size))} voxels of {_mm(spacing)} mm")
        return Choice(
            items=[files.cases[place] for place in grids],
            places=list(grids),
            files=Case.files,
            load=partial(read_case, frame=frame, structures=len(files.structures)),
            shape=(*frame.size, len(files.channels) + 1),
            dtype=np.float32,
            recipe={"data set": self.dataset, "frame": repr(frame), "structures": files.structures},
            cells=lambda place: (place + 1,),
            columns=("case_of_list",),
            missing=missing,
            release=Task(files, facts, subjects, grids, spacing),
        )

    def incomplete(self, outcome: Outcome) -> str:
        """Which cases of the list can't be read."""
        return _to_mend(outcome.reasons, outcome.choice.count())

    def datalist(self, outcome: Outcome, say: Say) -> Datalist:
        """The data list of what was read."""
        task: Task = outcome.choice.release
        records: list[Record] = [
            {"subject_id": task.subjects[place], **task.facts[place], **facts}
            for place, facts in zip(outcome.kept, outcome.facts, strict=True)
        ]
        made = self.make_datalist(
            STRATA,
            ", ".join(task.release.channels),
            records,
            licence=task.release.licence or "not stated",
            reference=task.release.reference,
            intensities=f"window {self.window} to [0, 1]" if self.window else "each channel of a volume: mean 0, SD 1",
            window=self.window,
            exclusions=exclusions(dict(Counter(outcome.reasons.values()).most_common())),
        )
        for line in about_empty(made):
            say(line)
        return with_masks(made, task.release.structures, task.spacing)

    def finish(self, folder: Path, outcome: Outcome, datalist: Datalist) -> None:
        """Take volumes and masks apart."""
        take_apart(folder)

    def _frame(self, grids: Mapping[int, Grid], spacing: Sequence[float]) -> Frame:
        from medfl.data.transforms.frame import Frame  # MONAI takes seconds to import

        for what, values, count in (("size", self.size, 3), ("spacing", self.spacing, 3), ("window", self.window, 2)):
            if values is not None and (len(values) != count or (what != "window" and min(values) <= 0)):
                raise SettingsError(f"expected {count} numbers for --{what}, above 0 if they are lengths, got {values}")
        if self.window is not None and self.window[0] >= self.window[1]:
            raise SettingsError(f"expected the lower end first in --window, got {self.window}.")
        shapes = np.array([grid.shape for grid in grids.values()])
        edges = np.array([grid.spacing for grid in grids.values()])
        largest = np.ceil(shapes * edges / np.array(spacing) - NEAR if self.spacing else shapes).max(axis=0)
        size = self.size or tuple(int(-(-edge // MULTIPLE) * MULTIPLE) for edge in largest)
        return Frame(size, self.spacing, None if self.window is None else (self.window[0], self.window[1]))

    def _spacing(self, grids: Mapping[int, Grid]) -> tuple[float, ...]:
        """The spacing that all have in the array."""
        if self.spacing is not None:
            return self.spacing
        edges = np.array([grid.spacing for grid in grids.values()])
        lowest, highest = edges.min(axis=0), edges.max(axis=0)
        if (highest - lowest > NEAR * highest).any():
            raise DataError(
                f"expected volumes of one spacing, got {_mm(lowest)} to {_mm(highest)} mm. Have them resampled: "
                f"--spacing {_mm(np.median(edges, axis=0))} is the median."
            )
        return tuple(float(round(edge, 4)) for edge in np.median(edges, axis=0))

    def _table(self, release: Release) -> tuple[list[dict[str, str]], list[str]]:
        """What the table says of each case, and its patient."""
        count = len(release.cases)
        if self.table is None:
            if self.site_column or self.group_column:
                raise SettingsError("--site-column and --group-column name columns of a table: give --table as well.")
            return [{} for _ in range(count)], number_subjects([str(place) for place in range(count)])
        table = read_table(self.table)
        table.require([name for name in (self.case_column, self.site_column, self.group_column) if name])
        rows = _rows(table, self.case_column, release)
        sites = table.column(self.site_column) if self.site_column else None
        groups = table.column(self.group_column) if self.group_column else list(map(str, table.numbers))
        facts = [{} if sites is None else {"site": sites[row]} for row in rows]
        return facts, number_subjects([groups[row] for row in rows])


def _rows(table: Table, column: str, release: Release) -> list[int]:
    """The row of each case in the table, by its place there."""
    rows: dict[str, int] = {}
    names = table.column(column)
    twice = [table.numbers[place] for place, name in enumerate(names) if rows.setdefault(name, place) != place]
    if twice:
        raise DataError(f"expected each case once in {table.path}, {row_list(twice)} name one again. Keep one row.")
    missing = [number for number, case in enumerate(release.cases, 1) if case.name not in rows]
    if missing:
        raise DataError(
            f"expected a row for each case in {table.path}, with the name of the image's file without its ending in "
            f"'{column}'; case {first_names(missing)} of {LIST} has none. Add it, or give another --case-column."
        )
    return [rows[case.name] for case in release.cases]


def _grids(release: Release) -> tuple[dict[int, Grid], dict[int, str]]:
    """The grid of each case, and why others have none."""
    grids: dict[int, Grid] = {}
    missing: dict[int, str] = {}
    for place, case in enumerate(release.cases):
        try:
            grids[place] = grid_of(case, len(release.channels))
        except DataError as error:
            missing[place] = str(error)
    return grids, missing


def _to_mend(reasons: Mapping[int, str], count: int) -> str:
    """What to say of cases that can't be read."""
    cases: dict[str, list[int]] = {}
    for place, reason in reasons.items():
        cases.setdefault(reason.rstrip("."), []).append(place + 1)
    listed = "; ".join(f"case {first_names(numbers)}: {reason}" for reason, numbers in cases.items())
    return (
        f"{len(reasons)} of {count} cases of {LIST} can't be used: {listed}. Mend these files, or leave them out with "
        f"--skip-unreadable; {QUARANTINE} then lists them."
    )


def _mm(edges: Sequence[float] | np.ndarray) -> str:
    return "x".join(f"{edge:.4g}" for edge in edges)
