"""Spec of tasks of the Medical Segmentation Decathlon: options, cases and metadata of the prepared data set.

`medfl prep` turns a release (the files that the publisher distributes) into a prepared data set. It calls the methods
of the spec in this order: `find` (find the files) and `volumes` (list the cases to read, with their metadata). The base
class does the rest.

All volumes are put on one grid (`medfl.data.transforms.frame.Frame`): turned to one orientation and padded to one size
without cutting off a labelled voxel. They keep their spacing unless another is requested. Each is scaled by its own
mean and standard deviation unless a window is given. All volumes have the same spacing, which the data list states, so
that distances are in millimetres.

Prepared data set: arrays of volumes and masks; each record has ``subject_id`` and, with a table, ``site``. No file name
is kept. The optional table names the site and the patient of each case; without it each case counts as a patient of its
own. All cases are in the training split; `medfl partition` holds out test sets.

The files are described in `medfl_datasets.decathlon.files`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from medfl.data.ingest.options import Positional
from medfl.data.ingest.spec import study_folder
from medfl.data.ingest.volume_spec import VolumeListing, VolumeSpec
from medfl.data.table import CsvTable, read_table, row_list
from medfl.errors import DataError, SettingsError
from medfl.utils.text import Say, first_names
from medfl_datasets.decathlon import RECORDS
from medfl_datasets.decathlon.files import TASK_FILE, DecathlonTask, read_release

CITATION = (
    "Antonelli et al., The Medical Segmentation Decathlon, Nature Communications 13:4128 (2022), "
    "doi:10.1038/s41467-022-30695-9"
)
"""Publication that users of the ten tasks are asked to cite."""


class Decathlon(VolumeSpec):
    """A task of the Medical Segmentation Decathlon: volumes with masks in one orientation. Nothing is downloaded.

    Each volume is scaled to mean 0 and standard deviation 1, or by --window. Tasks whose volumes are too large for one
    array need a bundle that loads its own files.

    Source: Antonelli et al., Nature Communications 13:4128 (2022). Licence: as stated in dataset.json; the ten tasks
    have CC BY-SA 4.0.
    """

    dataset = "decathlon"
    """Name of the data set, as users type it."""
    terms = RECORDS[0].licence
    """Terms of use of the ten official tasks. Users and the data list see the licence in ``dataset.json`` instead."""
    citation = CITATION
    """Publications to cite, which the user sees before reading starts and the data list states."""
    listing = TASK_FILE
    """Name of the file that lists the cases, for messages."""
    numbered = "case"
    """Word that precedes case numbers in messages; also the name of their column in ``quarantine.csv``."""

    source: Annotated[Path, Positional()]
    """The folder of a task, with its dataset.json."""
    table: Path | None = None
    """CSV or TSV table with a row for each case, which states its site or patient."""
    case_column: str = "case"
    """Column of the table with the name of the image's file without its ending; it is not kept."""
    site_column: str | None = None
    """Column of the table with the site; kept as 'site'."""
    group_column: str | None = None
    """Column of the table with the patient; it is not kept."""
    name: str | None = None
    """Name of the data set; by default the name of the output folder."""

    @classmethod
    def locate(cls, top: Path, options: Mapping[str, Any]) -> dict[str, Path]:
        """Find the release for a study (a file that lists data sets, methods and seeds) that names no path to it.

        Args:
            top: Source folder of the study, which contains the downloaded releases.
            options: Options of the data set in the study file.

        Returns:
            ``{"source": folder}``. The folder is ``decathlon`` in `top`. Empty if the study names a source.

        Raises:
            DataError: If the folder does not exist.
        """
        return {} if "source" in options else {"source": study_folder(top, cls.dataset)}

    def named_after(self, out: Path) -> Self:
        """Return a copy of the spec whose `name` is the name of the output folder, unless the user gave a name."""
        return self.model_copy(update={"name": self.name or out.absolute().name})

    def title(self) -> str:
        """Return the name of the prepared data set."""
        return self.name or self.dataset

    def credits(self) -> list[str]:
        """Return the lines that the user sees first: licence and reference of the task, citation of the ten tasks."""
        release = read_release(self.source)
        reference = [f"The task names: {release.reference}"] if release.reference else []
        licence = f"{self.title()}: licence {release.licence or 'not stated'}"
        return [licence, *reference, f"Please cite, for the ten tasks: {CITATION}"]

    def find(self) -> DecathlonTask:
        """Read the task's list of cases, ``dataset.json``."""
        return read_release(self.source)

    def volumes(self, files: DecathlonTask, say: Say) -> VolumeListing:
        """List the cases to read, with the site and patient of each from the table."""
        if files.others:
            say(f"note: {files.others} volumes without masks are skipped")
        facts, patients = self._read_table(files)
        if self.group_column is None:
            say("note: each case counts as a patient of its own (--table and --group-column name the patients)")
        return VolumeListing(
            files.cases,
            list(range(1, len(files.cases) + 1)),
            patients,
            facts,
            files.structures,
            files.channels,
            licence=files.licence or "not stated",
            extra={"reference": files.reference},
        )

    def _read_table(self, release: DecathlonTask) -> tuple[list[dict[str, str]], list[str]]:
        """Read the optional table.

        Returns:
            For each case its metadata (``site``, if there is a column for it) and the name of its patient.
        """
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
        rows = _rows_by_case(table, self.case_column, release)
        sites = table.column(self.site_column) if self.site_column else None
        groups = table.column(self.group_column) if self.group_column else list(map(str, table.numbers))
        facts = [{} if sites is None else {"site": sites[row]} for row in rows]
        return facts, [groups[row] for row in rows]


def _rows_by_case(table: CsvTable, column: str, release: DecathlonTask) -> list[int]:
    """Return the index of each case's row in the table; raise DataError if a case has no row or several."""
    rows: dict[str, int] = {}
    names = table.column(column)
    duplicates = [table.numbers[place] for place, name in enumerate(names) if rows.setdefault(name, place) != place]
    if duplicates:
        raise DataError(
            "duplicate_row",
            f"expected each case once in {table.path}, {row_list(duplicates)} name one again. Keep one row.",
            path=table.path,
            rows=duplicates,
        )
    missing = [number for number, case in enumerate(release.cases, 1) if case.name not in rows]
    if missing:
        raise DataError(
            "missing_row",
            f"expected a row for each case in {table.path}, with the name of the image's file without its ending in "
            f"'{column}'; case {first_names(missing)} of {TASK_FILE} has none. Add it, or give another --case-column.",
            path=table.path,
            column=column,
            cases=missing,
        )
    return [rows[case.name] for case in release.cases]
