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

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from medfl.ingest.options import Positional
from medfl.ingest.spec import folder_of

from medfl.data.table import Table, read_table, row_list
from medfl.errors import DataError, SettingsError
from medfl.ingest.volume_spec import Volumes, VolumeSpec
from medfl.utils.text import Say, first_names
from medfl_datasets.decathlon import RECORDS
from medfl_datasets.decathlon.files import LIST, Release, read_release

CITATION = (
    "Antonelli et al., The Medical Segmentation Decathlon, Nature Communications 13:4128 (2022), "
    "doi:10.1038/s41467-022-30695-9"
)
"""What users of the ten tasks are asked to cite."""


class Decathlon(VolumeSpec):
    """A task of the Medical Segmentation Decathlon: volumes with masks in one orientation. Nothing is downloaded.

    Each volume is scaled to mean 0 and standard deviation 1, or by --window. Tasks whose volumes are too large for one
    array are for a bundle that loads its own files.
    """

    dataset = "decathlon"
    terms = RECORDS[0].licence
    citation = CITATION
    listing = LIST
    numbered = "case"

    source: Annotated[Path, Positional()]
    """The folder of a task, with its dataset.json."""
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

    def volumes(self, files: Release, say: Say) -> Volumes:
        """What the list and the table say."""
        if files.others:
            say(f"note: {files.others} volumes without masks are passed over")
        facts, patients = self._table(files)
        if self.group_column is None:
            say("note: each case counts as a patient of its own (--table and --group-column would say otherwise)")
        return Volumes(
            files.cases,
            list(range(1, len(files.cases) + 1)),
            patients,
            facts,
            files.structures,
            files.channels,
            licence=files.licence or "not stated",
            extra={"reference": files.reference},
        )

    def _table(self, release: Release) -> tuple[list[dict[str, str]], list[str]]:
        """What the table says of each case, and its patient, by name."""
        count = len(release.cases)
        if self.table is None:
            if self.site_column or self.group_column:
                raise SettingsError(
                    "missing_setting",
                    "--site-column and --group-column name columns of a table: give --table as well.",
                    setting="table",
                )
            return [{} for _ in range(count)], list(map(str, range(count)))
        table = read_table(self.table)
        table.require([name for name in (self.case_column, self.site_column, self.group_column) if name])
        rows = _rows(table, self.case_column, release)
        sites = table.column(self.site_column) if self.site_column else None
        groups = table.column(self.group_column) if self.group_column else list(map(str, table.numbers))
        facts = [{} if sites is None else {"site": sites[row]} for row in rows]
        return facts, [groups[row] for row in rows]


def _rows(table: Table, column: str, release: Release) -> list[int]:
    """The row of each case in the table, by its place there."""
    rows: dict[str, int] = {}
    names = table.column(column)
    twice = [table.numbers[place] for place, name in enumerate(names) if rows.setdefault(name, place) != place]
    if twice:
        raise DataError(
            "duplicate_row",
            f"expected each case once in {table.path}, {row_list(twice)} name one again. Keep one row.",
            path=table.path,
            rows=twice,
        )
    missing = [number for number, case in enumerate(release.cases, 1) if case.name not in rows]
    if missing:
        raise DataError(
            "missing_row",
            f"expected a row for each case in {table.path}, with the name of the image's file without its ending in "
            f"'{column}'; case {first_names(missing)} of {LIST} has none. Add it, or give another --case-column.",
            path=table.path,
            column=column,
            cases=missing,
        )
    return [rows[case.name] for case in release.cases]
