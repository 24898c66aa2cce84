"""Tables of a store: ``images.csv`` for the preparation of a data set, and ``review.csv`` for a person.

Both are computed from the journal. Decisions that a person has entered into ``review.csv`` are kept.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from medfl.errors import DataError
from medfl.utils.files import write_atomic
from medfl_pacs.image_store import IMAGES, ImageStore
from medfl_pacs.store_records import InstanceRecord, SeriesRecord

IMAGES_TABLE, REVIEW_TABLE = "images.csv", "review.csv"
"""Names of the tables in the store."""

REVIEW_COLUMNS = ("patient", "study", "series", "instance", "file", "modality", "signs", "decision")
"""Columns of ``review.csv``. A person writes ``keep`` or ``delete`` into the last one."""

DECISIONS = ("keep", "delete")
"""Possible decisions; an empty field is none."""


def write_tables(store: ImageStore) -> None:
    """Write both tables of a store.

    Raises:
        DataError: If ``review.csv`` exists and can't be read.
        StoreError: If a table can't be written.
    """
    series = sorted(store.journal.series.values(), key=lambda record: (record.patient, record.study, record.series))
    usable = [record for record in series if record.images and record.place == IMAGES]
    write_atomic(store.folder / IMAGES_TABLE, _csv(tuple(SeriesRecord.model_fields), map(_image_row, usable)))
    entered = read_decisions(store.folder / REVIEW_TABLE)
    rows = [
        _review_row(store, record, instance, entered)
        for record in series
        for instance in review_instances(store, record)
    ]
    write_atomic(store.folder / REVIEW_TABLE, _csv(REVIEW_COLUMNS, rows))


def review_instances(store: ImageStore, series: SeriesRecord) -> Iterator[InstanceRecord]:
    """Yield the instances of a series that a person must look at: with signs of burned-in text, or refused."""
    for record in store.journal.instances.get(series.series, {}).values():
        if record.status == "refused" or (record.status == "stored" and record.signs):
            yield record


def read_decisions(path: Path) -> dict[tuple[str, str], str]:
    """Read the decisions in ``review.csv``, also if a spreadsheet has saved it with semicolons.

    Args:
        path: Path of the table; it may not exist.

    Returns:
        Maps an instance and the text of its findings to ``keep``, ``delete`` or an empty text. A decision about other
        findings, such as a refusal before the image could be retrieved, does not apply.

    Raises:
        DataError: If the table has no columns ``instance``, ``signs`` and ``decision``, or a decision is unknown.
    """
    if not path.exists():
        return {}
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError):
        raise DataError(
            "unreadable_review", f"'{path}' can't be read as a table in UTF-8. Save it as CSV.", path=path
        ) from None
    head = text.partition("\n")[0]
    rows = csv.DictReader(io.StringIO(text), delimiter=";" if ";" in head else "\t" if "\t" in head else ",")
    if not {"instance", "signs", "decision"} <= set(rows.fieldnames or ()):
        raise DataError(
            "unreadable_review",
            f"'{path}' has no columns 'instance', 'signs' and 'decision'. Delete the file; the next command writes it "
            "again.",
            path=path,
        )
    decisions: dict[tuple[str, str], str] = {}
    for number, row in enumerate(rows, 2):
        decision = (row["decision"] or "").strip().lower()
        if decision not in ("", *DECISIONS):
            raise DataError(
                "unknown_decision",
                f"'{path}', row {number}: expected 'keep', 'delete' or nothing as decision. Correct the row.",
                path=path,
                row=number,
            )
        decisions[(row["instance"] or "").strip(), (row["signs"] or "").strip()] = decision
    return decisions


def _review_row(
    store: ImageStore, series: SeriesRecord, instance: InstanceRecord, entered: Mapping[tuple[str, str], str]
) -> tuple[str, ...]:
    """Return the row of ``review.csv`` for an instance."""
    path = store.find_file(instance)
    return (
        series.patient,
        series.study,
        series.series,
        instance.instance,
        "" if path is None else path.relative_to(store.folder).as_posix(),
        series.modality,
        instance.findings_text,
        entered.get((instance.instance, instance.findings_text)) or ("keep" if store.is_kept(instance) else ""),
    )


def _image_row(record: SeriesRecord) -> tuple[str, ...]:
    """Return the row of ``images.csv`` for a series."""
    values = record.to_json()
    return tuple("" if values[name] is None else str(values[name]) for name in SeriesRecord.model_fields)


def _csv(columns: Sequence[str], rows: object) -> bytes:
    """Return the content of a table."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)  # type: ignore[arg-type]
    return buffer.getvalue().encode("utf-8")
