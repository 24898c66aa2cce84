"""A hospital's own image files and a table of labels in, a pooled data set out.

The pooled data set holds nothing that says who a patient is: no names of files, no identifiers. Patients get running
numbers. What is kept is what the user names: labels, sites and other columns.

Images are read by the rules of `medfl.data.readers.images`. The array is uint8 if all files have 8 bits a channel; if
any file is deeper (DICOM in grey, NIfTI, 16 bits), it is float32 in [0, 1] for all. On request they are read as the
preparations of mammograms do it (`medfl.data.readers.mammogram_image`); the array is then uint16.
"""

from __future__ import annotations

import csv
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np

from medfl.data.datalists import SPLITS, Datalist, Record, write_datalist
from medfl.data.folders import check_free, written_whole
from medfl.data.readers.dicom_identity import CHECKS
from medfl.data.readers.dicom_intent import intent_records, tell_intents
from medfl.data.readers.images import Kind, look_at
from medfl.data.readers.mammogram_image import about_reading, check_reading
from medfl.data.readers.quiet import quiet_decoders
from medfl.data.table import read_table, row_list
from medfl.errors import DataError, SettingsError, did_you_mean
from medfl.ingest.array_file import keep_rows, new_array, tell_need
from medfl.ingest.image_folder import ImageFolder
from medfl.ingest.labels import Columns, Rows, read_rows
from medfl.ingest.own_form import Form, form_of
from medfl.utils.progress import progress
from medfl.utils.text import Say

QUARANTINE = "quarantine.csv"
"""The table rows that were left out, with reasons; it is written only if there are any."""

NO_GROUPS = (
    "warning: without --group-column each image counts as a patient of its own: "
    "images of one patient may then be at several sites and in several splits"
)
"""Said where the table does not name the patients."""

AHEAD = 4
"""Images for each thread that are read before the first of them is written: the memory stays flat."""

T = TypeVar("T")


def prepare(
    images: Path,
    table: Path,
    columns: Columns,
    size: Sequence[int],
    out: Path,
    *,
    name: str | None = None,
    licence: str = "not stated",
    channels: int | None = None,
    skip_unreadable: bool = False,
    deidentify_check: str = "strip",
    reading: Mapping[str, bool] | None = None,
    force: bool = False,
    say: Say = lambda _: None,
) -> Datalist:
    """Turn image files into a pooled data set.

    Args:
        images: The folder of the image files.
        table: CSV or TSV with a row for each image.
        columns: Which column says what.
        size: Of the images in the array: (H, W), (D, H, W), or one number for all edges, each >= 1.
        out: The folder to write; it is written whole or not at all.
        name: Of the data set; None means the name of `out`.
        licence: Terms of use, for the data list.
        channels: 1 or 3; None means 3 if any image is in colour, otherwise 1.
        skip_unreadable: Whether images that can't be read are left out and listed in `QUARANTINE`.
        deidentify_check: ``strip``: nothing is kept of what a DICOM file says of its patient; ``refuse``: a file that
            says anything that may tell who it is counts as one that can't be read.
        reading: How mammograms are read, entries of `medfl.data.readers.mammogram_image.READING`; None means by
            `medfl.data.readers.images`.
        force: Whether a data set that is there may be replaced.
        say: Gets licence, warnings, what is needed and progress, a line each.

    Returns:
        The data list that was written.

    Raises:
        DataError: If the table, a file, or what they say together is wrong, or `out` may not be written.
        SettingsError: If the columns, the size, the channels or the way to read are impossible.
    """
    if deidentify_check not in CHECKS:
        raise SettingsError(f"unknown deidentify check '{deidentify_check}'. {did_you_mean(deidentify_check, CHECKS)}")
    reading = None if reading is None else check_reading(reading)
    check_free(out, force, [images, table])
    name = name or out.absolute().name
    rows = read_rows(read_table(table), columns)
    files = ImageFolder(images).find(rows.images, rows.numbers)
    say(f"{name}: licence {licence}")
    if columns.group is None:
        say(NO_GROUPS)
    known, failed = _look(files, deidentify_check, say)
    if not known:
        raise _unreadable(failed, rows)
    numbers = {rows.numbers[place]: kind for place, kind in known.items()}
    form = form_of(numbers, size, channels, reading)
    warnings = tell_intents([kind.intent for kind in known.values()], say)
    with written_whole(out, force) as folder:
        array = folder / "images.npy"
        bad = _write_images(array, [files[place] for place in known], form, say)
        failed |= {place: bad[number] for number, place in enumerate(known) if number in bad}
        kept = _kept(rows, failed, skip_unreadable)
        if bad:
            keep_rows(array, range(len(kept)))
        if failed:
            _write_quarantine(folder / QUARANTINE, rows, failed, say)
        intents = intent_records([known[place].intent for place in kept])
        datalist = _datalist(name, licence, rows, kept, failed, intents)
        datalist.extra |= {"warnings": warnings} | ({} if reading is None else about_reading(reading))
        write_datalist(folder, datalist)
    return datalist


def _look(files: Sequence[Path], check: str, say: Say) -> tuple[dict[int, Kind], dict[int, str]]:
    """Place in `files` to what the file holds, or to the reason why it can't be read."""
    known: dict[int, Kind] = {}
    failed: dict[int, str] = {}
    for place, kind in enumerate(_each(partial(look_at, check=check), files, "looking at", say)):
        if isinstance(kind, DataError):
            failed[place] = str(kind)
        else:
            known[place] = kind
    return known, failed


def _each(function: Callable[[Path], T], files: Sequence[Path], what: str, say: Say) -> Iterator[T | DataError]:
    """Call a function for each file in several threads; results, or errors, come in the order of the files."""

    def safely(path: Path) -> T | DataError:
        try:
            return function(path)
        except DataError as error:
            return error

    count = os.cpu_count() or 1
    threads = ThreadPoolExecutor(count)
    waiting: deque[Future[T | DataError]] = deque()
    rest = iter(files)
    try:
        with quiet_decoders(), progress(what, len(files), "images", say) as show:
            for done in range(1, len(files) + 1):
                waiting += [threads.submit(safely, path) for path in islice(rest, AHEAD * count - len(waiting))]
                yield waiting.popleft().result()
                show(done)
    finally:
        threads.shutdown(cancel_futures=True)


def _write_images(target: Path, files: Sequence[Path], form: Form, say: Say) -> dict[int, str]:
    """Write the images that can be read one after another into an array of as many rows as there are files.

    Returns:
        Place in `files` to the reason why it could not be read.
    """
    shape = (len(files), *form.size, *((form.channels,) if form.channels > 1 else ()))
    tell_need(target, shape, form.dtype, 1, say)
    failed: dict[int, str] = {}
    with new_array(target, shape, form.dtype) as array:
        for place, image in enumerate(_each(form.read, files, "reading", say)):
            if isinstance(image, DataError):
                failed[place] = str(image)
            else:
                row = image if image.dtype == form.dtype else image / np.float32(255)
                array.write(place - len(failed), row)
        array.flush()
    return failed


def _unreadable(failed: Mapping[int, str], rows: Rows) -> DataError:
    found = "; ".join(
        f"{count} x {reason.rstrip('.')} "
        f"({row_list([rows.numbers[place] for place, why in failed.items() if why == reason])})"
        for reason, count in Counter(failed.values()).most_common()
    )
    return DataError(
        f"{len(failed)} of {len(rows.numbers)} images can't be read: {found}. Mend these files, or leave them out "
        f"with --skip-unreadable; {QUARANTINE} then lists them."
    )


def _kept(rows: Rows, failed: Mapping[int, str], skip_unreadable: bool) -> list[int]:
    """Places in `rows` whose images were read."""
    if failed and not skip_unreadable:
        raise _unreadable(failed, rows)
    kept = [place for place in range(len(rows.numbers)) if place not in failed]
    left = {rows.labels[place] for place in kept}
    gone = [f"'{name}'" for label, name in enumerate(rows.classes) if label not in left]
    if gone:
        raise DataError(f"no readable image is left of the classes {', '.join(gone)}. Mend the files of these classes.")
    return kept


def _datalist(
    name: str,
    licence: str,
    rows: Rows,
    kept: Sequence[int],
    failed: Mapping[int, str],
    intents: Sequence[Mapping[str, str]],
) -> Datalist:
    splits: dict[str, list[Record]] = {split: [] for split in SPLITS}
    for row, place in enumerate(kept):
        record: Record = {"image": row, "label": rows.labels[place], "subject_id": rows.subjects[place]}
        splits[rows.splits[place]].append(record | rows.others[place] | dict(intents[row]))
    reasons = Counter(failed.values()).most_common()
    return Datalist(
        name=name,
        image_array="images.npy",
        num_classes=len(rows.classes),
        labels={str(label): text for label, text in enumerate(rows.classes)},
        modality="not stated",
        licence=licence,
        splits=splits,
        extra={"exclusions": [{"reason": reason, "count": count} for reason, count in reasons]},
    )


def _write_quarantine(path: Path, rows: Rows, failed: Mapping[int, str], say: Say) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("table_row", "reason"))
        writer.writerows((rows.numbers[place], failed[place]) for place in sorted(failed))
    say(f"warning: {len(failed)} of {len(rows.numbers)} images can't be read and were left out: see {path.name}")
