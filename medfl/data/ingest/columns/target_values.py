"""Read the targets of a table's rows: classes, findings, numbers, survival times, and the names of mask files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from medfl.data.datalists import Datalist
from medfl.data.ingest.columns.cells import missing_cells, read_answers, read_numbers
from medfl.data.ingest.columns.class_names import check_class_count, order_classes
from medfl.data.ingest.columns.identifier_guard import refuse_identifiers
from medfl.data.ingest.columns.target_option import ColumnWithUnit, TargetOption, infer_kind
from medfl.data.ingest.masks import MASK_STRATA
from medfl.data.table import CsvTable, row_list
from medfl.data.targets import TARGET_KEY, TARGET_NAMES_KEY
from medfl.errors import DataError
from medfl.utils.text import first_names

NO_TARGET = "the target is missing in the table"
"""Reason for leaving out a row without a target."""


@dataclass(frozen=True)
class TargetValues:
    """Targets of the rows of a table.

    Attributes:
        kind: Kind of the target, one of `medfl.data.ingest.columns.target_option.KINDS`.
        entries: Target entry of each row's record: ``label`` or ``target``; empty for masks.
        groups: Names of the classes, or of the groups in which cases are counted (`Objective.stratum_names`).
        objective: Entry ``objective`` of the data list; None for classes.
        extra: Further entries of the data list, with the names of findings or numbers.
        masks: Mask file of each row, as in the table; empty without masks.
        warnings: Sentences for the user and the data list about findings that were not assessed.
    """

    kind: str
    entries: list[dict[str, Any]]
    groups: tuple[str, ...]
    objective: dict[str, Any] | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    masks: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class TargetRows:
    """Rows of a table that have a target, with the targets.

    Attributes:
        table: The table without the rows whose target is missing.
        values: Targets of its rows.
        left_out: Number of rows whose target is missing.
    """

    table: CsvTable
    values: TargetValues
    left_out: int = 0


def read_targets(
    table: CsvTable,
    option: TargetOption,
    *,
    group_column: str | None = None,
    missing: Sequence[str] = (),
    skip_missing: bool = False,
) -> TargetRows:
    """Read the targets of a table.

    Args:
        table: Table with one row for each case.
        option: Kind and columns of the target.
        group_column: Column with the patient; None if there is none.
        missing: Further words that mark a missing value.
        skip_missing: Whether rows without a target are left out; otherwise they are refused.

    Raises:
        DataError: If a column is missing or looks like an identifier, the kind is not clear, a target is missing, or a
            cell does not fit the kind.
    """
    option = infer_kind(option, table, missing)
    columns = option.columns(table)
    kept = _rows_with_target(table, option.kind, columns, missing, skip_missing)
    for column in columns if option.kind != "mask" else ():
        _check_column(kept, column.name, option.kind, group_column, missing)
    values = _READERS[option.kind](kept, columns, missing)
    return TargetRows(kept, values, len(table.rows) - len(kept.rows))


def _rows_with_target(
    table: CsvTable, kind: str, columns: Sequence[ColumnWithUnit], missing: Sequence[str], skip_missing: bool
) -> CsvTable:
    """Return the table without the rows whose target is missing: all findings of a multilabel target, else any value.

    Raises:
        DataError: If a target is missing and `skip_missing` is False, or no row has a target.
    """
    absent = [missing_cells(table.column(column.name, filled=False), missing) for column in columns]
    is_without = [(all if kind == "multilabel" else any)(row) for row in zip(*absent, strict=True)]
    rows = [number for number, is_absent in zip(table.numbers, is_without, strict=True) if is_absent]
    name, names = columns[0].name, ", ".join(f"'{column.name}'" for column in columns)
    if rows and (not skip_missing or len(rows) == len(table.rows)):
        raise DataError(
            "missing_value",
            f"expected a target in every row of {table.path}, {len(rows)} of {len(table.rows)} have none in {names}: "
            f"{row_list(rows)}. Fill them in, or leave these rows out with "
            "--skip-missing-target.",
            path=table.path,
            column=name,
            columns=[column.name for column in columns],
            rows=rows,
        )
    return table.without(rows)


def _check_column(table: CsvTable, name: str, kind: str, group_column: str | None, missing: Sequence[str]) -> None:
    """Raise if a target column looks like an identifier."""
    cells = table.column(name, filled=False)
    known = [place for place, is_absent in enumerate(missing_cells(cells, missing)) if not is_absent]
    groups = None if group_column is None else table.column(group_column)
    refuse_identifiers(
        name,
        [cells[place] for place in known],
        None if groups is None or kind != "class" else [groups[place] for place in known],
        " for --target",
    )
    if kind == "class":
        check_class_count(name, len({cells[place] for place in known}), len(known))


def _read_classes(table: CsvTable, columns: Sequence[ColumnWithUnit], missing: Sequence[str]) -> TargetValues:
    labels = table.column(columns[0].name)
    classes = order_classes(labels)
    numbers = {name: number for number, name in enumerate(classes)}
    return TargetValues("class", [{"label": numbers[label]} for label in labels], tuple(classes))


def _read_findings(table: CsvTable, columns: Sequence[ColumnWithUnit], missing: Sequence[str]) -> TargetValues:
    names = [column.title for column in columns]
    answers = [
        read_answers(column.name, table.column(column.name, filled=False), table.numbers, missing) for column in columns
    ]
    constant = [name for name, column in zip(names, answers, strict=True) if len({*column} - {None}) < 2]
    if constant:
        listed = ", ".join(f"'{name}'" for name in constant)
        raise DataError(
            "constant_finding",
            f"expected cases with and without each finding, all cases of {listed} are alike. Add cases, or leave these "
            "findings out of --target.",
            columns=constant,
        )
    not_assessed = {name: count for name, column in zip(names, answers, strict=True) if (count := column.count(None))}
    return TargetValues(
        "multilabel",
        [{TARGET_KEY: list(row)} for row in zip(*answers, strict=True)],
        ("no finding", *names),
        {"name": "multilabel", "num_labels": len(names)},
        {TARGET_NAMES_KEY: names},
        warnings=[
            f"'{name}' was not assessed in {count} of {len(table.rows)} cases: they take no part in its training and "
            "scores"
            for name, count in not_assessed.items()
        ],
    )


def _read_numbers(table: CsvTable, columns: Sequence[ColumnWithUnit], missing: Sequence[str]) -> TargetValues:
    values = [read_numbers(column.name, table.column(column.name), table.numbers, missing) for column in columns]
    constant = [column.name for column, numbers in zip(columns, values, strict=True) if len(set(numbers)) < 2]
    if constant:
        raise DataError(
            "constant_target",
            f"expected different numbers in the column '{constant[0]}', all are equal. Give another --target.",
            columns=constant,
        )
    return TargetValues(
        "number",
        [{TARGET_KEY: list(row)} for row in zip(*values, strict=True)],
        (),
        {"name": "regression", "dimensions": len(columns)},
        {TARGET_NAMES_KEY: [column.title for column in columns]},
    )


def _read_survival(table: CsvTable, columns: Sequence[ColumnWithUnit], missing: Sequence[str]) -> TargetValues:
    time, event = columns
    times = read_numbers(time.name, table.column(time.name), table.numbers, missing)
    events = read_answers(event.name, table.column(event.name), table.numbers, missing)
    wrong = [row for row, value in zip(table.numbers, times, strict=True) if value is not None and value <= 0]
    if wrong:
        raise DataError(
            "invalid_time",
            f"expected times above 0 in the column '{time.name}', {len(wrong)} of {len(times)} are not: "
            f"{row_list(wrong)}. Correct them, or delete these rows.",
            column=time.name,
            rows=wrong,
        )
    if 1.0 not in events:
        raise DataError(
            "no_event",
            f"expected at least one event (1) in the column '{event.name}', all {len(events)} times are censored (0). "
            "A risk can't be learned without events.",
            column=event.name,
            total=len(events),
        )
    return TargetValues(
        "survival",
        [{TARGET_KEY: [value, happened]} for value, happened in zip(times, events, strict=True)],
        (f"no {event.name}", event.name),
        {"name": "survival"},
        {TARGET_NAMES_KEY: [f"risk of {event.name} ({time.title})"]},
    )


def _read_masks(table: CsvTable, columns: Sequence[ColumnWithUnit], missing: Sequence[str]) -> TargetValues:
    return mask_targets(table.column(columns[0].name))


def mask_targets(masks: Sequence[str]) -> TargetValues:
    """Return the targets of rows with mask files.

    Args:
        masks: Path of the mask of each row.
    """
    return TargetValues("mask", [{} for _ in masks], MASK_STRATA, masks=list(masks))


_READERS: Mapping[str, Callable[[CsvTable, Sequence[ColumnWithUnit], Sequence[str]], TargetValues]] = {
    "class": _read_classes,
    "multilabel": _read_findings,
    "number": _read_numbers,
    "survival": _read_survival,
    "mask": _read_masks,
}
"""Maps each kind of target to the function that reads it."""


def with_objective(datalist: Datalist, objective: dict[str, Any] | None) -> Datalist:
    """Return a data list with an objective and its groups; the list unchanged if cases have classes (None).

    Args:
        datalist: Data list of the cases.
        objective: Entry ``objective`` of the data list.
    """
    if objective is None:
        return datalist
    changed = replace(datalist, objective=objective)
    groups = changed.goal.stratum_names
    labels = datalist.labels or {str(number): name for number, name in enumerate(groups)}
    return replace(changed, num_classes=len(groups), labels=labels)


def describe_targets(values: TargetValues, entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return lines with the number of cases of each class, finding or event among records.

    Args:
        values: Targets of a table.
        entries: Records of the cases to count.
    """
    names = values.extra.get(TARGET_NAMES_KEY, [])
    if values.kind == "multilabel":
        columns = list(zip(*(entry[TARGET_KEY] for entry in entries), strict=True))
        return [
            f"{name}: {column.count(1.0)} present, {column.count(0.0)} absent, {column.count(None)} not assessed"
            for name, column in zip(names, columns, strict=True)
        ]
    if values.kind == "number":
        return [f"number to predict: {first_names(names)}"]
    return []
