"""Prepare the user's own table as a pooled data set of vectors (``medfl prep table``).

The pooled data set contains the features, the target, and running numbers of patients. Missing numbers stay NaN in the
array; a run replaces them by the mean of the training rows (`medfl.data.arrays.ArrayDataset`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from medfl.data.arrays import FEATURES
from medfl.data.datalists import SPLITS, Datalist, write_datalist
from medfl.data.features.feature_encoding import COLUMNS, encode_rows
from medfl.data.folders import atomic_folder
from medfl.data.ingest.array_file import new_array
from medfl.data.ingest.checkpoint import ARRAY_FILE
from medfl.data.ingest.columns.feature_options import FeatureOptions, describe_features
from medfl.data.ingest.columns.labels import LabelledRows, read_rows
from medfl.data.ingest.columns.target_option import KINDS, spellings_text
from medfl.data.ingest.columns.target_values import NO_TARGET, describe_targets, with_objective
from medfl.data.ingest.options import Positional
from medfl.data.ingest.read_plan import exclusions
from medfl.data.ingest.spec import WholeSpec
from medfl.data.table import CsvTable, read_table
from medfl.errors import SettingsError
from medfl.records.datalist import CaseRecord, make_record
from medfl.records.feature_columns import FeatureColumns
from medfl.utils.text import Say

NO_GROUPS_WARNING = "warning: without --group-column each row counts as a patient of its own"
"""Warning if the table has no patient column."""


class TableSpec(FeatureOptions, WholeSpec):
    """Your own table of numbers and categories, such as clinical data. Names, dates and record numbers are refused.

    --target states what is learned: class:outcome, multilabel:effusion,nodule (yes, no, or empty where a finding was
    not assessed), number:age[years], or survival:months[months],death. Without --number and --category, all other
    columns are features, and their cells decide their type. A category becomes one feature for each of its values with
    at least 5 rows, and one for all others. Missing values are flagged by a feature; a run replaces missing numbers by
    the mean of the training rows.

    Sites that prepare their tables apart share the file columns.json: the first site writes it into its folder --out,
    and the other sites give it with --columns.

    Example: medfl prep table clinical.csv --target class:outcome --number "age[years],psa" --category sex,stage
    --group-column patient --site-column hospital --out data/clinical
    """

    dataset = "table"
    """Name of the data set, as users type it after ``medfl prep``."""
    parallel = False
    """Whether several processes can read, so that the command has the option ``--workers``."""
    item = "row"
    """Name of one item that is read, in the singular, for messages."""

    table: Annotated[Path, Positional()]
    """CSV or TSV file with one row for each case."""
    target: str
    """What is learned, and its columns: KIND:COLUMN,... with the kinds class, multilabel, number and survival."""
    ignore_column: tuple[str, ...] | None = None
    """Column that is no feature; may be repeated. Needed only without --number and --category."""

    @classmethod
    def locate(cls, top: Path, options: Mapping[str, Any]) -> dict[str, Path]:
        """Return the paths that a study does not name: none, because a study names the table itself."""
        return {}

    def check_release(self) -> object:
        """Check the table by reading it."""
        return self.read()

    def read(self) -> tuple[LabelledRows, FeatureColumns, CsvTable]:
        """Read the table: return its rows, its typed columns, and the table without rows that are left out.

        Raises:
            DataError: If the table, a target or a feature is not as expected.
            SettingsError: If the target is a mask, or --columns is given beside other columns.
        """
        options = self.table_columns(image=None, target=self.target)
        rows = read_rows(read_table(self.table), options)
        if rows.targets.kind == "mask":
            raise SettingsError(
                "unsupported_target",
                f"a table has no masks. {spellings_text([kind for kind in KINDS if kind != 'mask'])}",
                setting="target",
                kind="mask",
            )
        columns = self.feature_columns(rows, image=None, target=self.target, ignored=self.ignore_column or ())
        return rows, columns, rows.table

    def make(self, out: Path, *, force: bool, workers: int | None, require_complete: bool, say: Say) -> Datalist:
        """Write the pooled data set; arguments as in `medfl.data.ingest.prepare.prepare`."""
        title = self.name or out.absolute().name
        say(self.credit(title))
        if self.group_column is None:
            say(NO_GROUPS_WARNING)
        rows, columns, table = self.read()
        features = encode_rows(table, columns, tuple(self.missing or ()))
        for line in (*describe_features(columns, features), *describe_targets(rows.targets, rows.targets.entries)):
            say(line)
        if rows.left_out:
            say(f"note: {rows.left_out} rows are left out: {NO_TARGET}")
        for sentence in rows.targets.warnings:
            say(f"note: {sentence}")
        datalist = with_objective(
            Datalist(
                name=title,
                image_array=ARRAY_FILE,
                num_classes=len(rows.targets.groups),
                labels={str(number): name for number, name in enumerate(rows.targets.groups)},
                modality="table",
                licence=self.licence,
                splits=_records(rows),
                extra={
                    FEATURES: columns.features,
                    COLUMNS: [column.to_json() for column in columns.columns],
                    **rows.targets.extra,
                },
                exclusions=exclusions({NO_TARGET: rows.left_out}),
                warnings=tuple(rows.targets.warnings),
            ),
            rows.targets.objective,
        )
        with atomic_folder(out, force) as folder:
            with new_array(folder / ARRAY_FILE, features.shape, features.dtype) as array:
                array.write(0, features)
                array.flush()
            columns.write(folder / FeatureColumns.NAME)
            write_datalist(folder, datalist)
        return datalist


def _records(rows: LabelledRows) -> dict[str, list[CaseRecord]]:
    """Return the records of each split; the n-th row of the table has row n of the array."""
    splits: dict[str, list[CaseRecord]] = {split: [] for split in SPLITS}
    for row, split in enumerate(rows.splits):
        entry = rows.targets.entries[row]
        splits[split].append(make_record({"image": row, **entry, "subject_id": rows.subjects[row], **rows.others[row]}))
    return splits
