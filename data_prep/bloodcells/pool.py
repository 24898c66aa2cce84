"""Releases of white blood cells in, one pooled data set out: the part that all of them share.

Images are read by the rules of `medfl.data.readers.images` as RGB of 8 bits and resized with antialiasing; alpha is
left out, grey is repeated. One that is deeper, is smaller than `MIN_EDGE` or can't be read is left out, and listed in
``quarantine.csv``. No release says which cells are of one patient, so each image is a subject of its own; copies of a
file are one subject.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from medfl.data.datalists import SPLITS, Datalist, Record, write_datalist
from medfl.data.folders import check_free, written_whole
from medfl.errors import DataError, SettingsError
from medfl.ingest.array_file import keep_rows
from medfl.ingest.labels import number_subjects
from medfl.ingest.pipeline import QUARANTINE, ingest, work_folder, write_quarantine
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
class How:
    """What is made of a release.

    Attributes:
        size: Height and width of the images in pixels, >= 1.
        test_share: Share of the images of each class of a release in the test set, 0 <= share < 1, rounded up to
            whole images; 0 leaves it to `medfl partition`.
        seed: Decides which images are in the test set.
        keep_copies: Whether byte-identical copies are kept; they are then one subject, and in training.
        workers: Processes that read, >= 1; None means one for each core.
        force: Whether a data set that is there may be replaced.
    """

    size: int = 224
    test_share: float = 0.2
    seed: int = 0
    keep_copies: bool = False
    workers: int | None = None
    force: bool = False

    def __post_init__(self) -> None:
        if self.size < 1:
            raise SettingsError(f"expected a size >= 1, got {self.size}")
        if not 0 <= self.test_share < 1:
            raise SettingsError(f"expected 0 <= test share < 1, got {self.test_share}")


class Read(NamedTuple):
    """An image that was read.

    Attributes:
        cell: What it is.
        digest: A hash of the bytes of its file.
    """

    cell: Cell
    digest: str


def pool_cells(
    name: str,
    folders: Sequence[tuple[Release, Path]],
    labels: LabelMap,
    out: Path,
    how: How,
    *,
    complete: bool,
    say: Say = lambda _: None,
) -> Datalist:
    """Turn releases into one pooled data set.

    Args:
        name: Of the data set.
        folders: Each release with its folder, at least one.
        labels: The class of each kind of cell.
        out: The folder to write; it is written whole or not at all.
        how: Sizes and shares.
        complete: Whether a class without an image is refused; otherwise there is a warning.
        say: Gets licences, citations, warnings and progress, a line each.

    Returns:
        The data list that was written. Each record has the `source` and the kind of `cell` that the release says.

    Raises:
        DataError: If a release is wrong, no image is left, or `out` may not be written.
        SettingsError: If the label map does not fit the releases.
    """
    labels.check([release for release, _ in folders])
    check_free(out, how.force, [folder for _, folder in folders])
    releases = [release for release, _ in folders]
    for release in releases:
        say(f"{release.name}: licence {release.licence}")
        say(f"Please cite: {release.citation}")
    listings = [release.find(folder) for release, folder in folders]
    deviations = _told(releases, listings, say)
    cells, left_out = _choose(listings, labels, say)
    with written_whole(out, how.force) as folder:
        read, broken = _read(cells, folder / "images.npy", work_folder(out), how, say)
        quarantined = [entry for listing in listings for entry in listing.quarantined] + broken
        write_quarantine(folder / QUARANTINE, ("image", "reason"), quarantined, say)
        left_out += Counter(reason for _, reason in quarantined)
        kept, copies = _without_copies(read, folder / "images.npy", labels, how, say)
        _check_classes(kept, labels, complete, say)
        datalist = _datalist(name, releases, kept, labels, how)
        datalist.extra |= {
            "deviations": deviations,
            "copies": "kept" if how.keep_copies else "left out",
            "exclusions": [{"reason": why, "count": count} for why, count in (left_out + copies).items()],
        }
        write_datalist(folder, datalist)
    return datalist


def _told(releases: Sequence[Release], listings: Sequence[Listing], say: Say) -> list[str]:
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
        raise DataError("no image has a class. Give another folder, or another label map.")
    return chosen, left_out + sum((listing.passed_over for listing in listings), Counter())


def _read(
    cells: Sequence[Cell], target: Path, work: Path, how: How, say: Say
) -> tuple[list[Read], list[tuple[str, str]]]:
    """Fill the array; what was read, row by row, and name and reason of what could not be."""
    found = ingest(
        [cell.path for cell in cells],
        partial(read_cell, size=how.size),
        lambda path: [path],
        target,
        (how.size, how.size, 3),
        np.uint8,
        work=work,
        recipe={"data set": "blood cells", "size": how.size},
        workers=how.workers,
        say=say,
    )
    broken = [(_name(cells[place]), reason) for place, reason in found.failed.items()]
    return [Read(cells[place], found.facts[place]["digest"]) for place in found.kept], broken


def _name(cell: Cell) -> str:
    return f"{cell.source}/{cell.path.parent.name}/{cell.path.name}"


def _without_copies(
    read: Sequence[Read], array: Path, labels: LabelMap, how: How, say: Say
) -> tuple[list[Read], Counter[str]]:
    """Take copies out of the array, unless they are to be kept; what stays, and what goes with reasons."""
    copies = find_copies([_label(one.cell, labels) for one in read], [one.digest for one in read])
    counts = Counter(copies.values())
    told = ", ".join(f"{count} x {reason}" for reason, count in counts.items()) or "there are none"
    if how.keep_copies:
        say(f"note: {len(read)} images, copies of files are kept: {told}")
        return list(read), Counter()
    say(f"note: {len(read)} images before, {len(read) - len(copies)} after copies of files were left out: {told}")
    rows = [row for row in range(len(read)) if row not in copies]
    if copies and rows:
        keep_rows(array, rows)
    return [read[row] for row in rows], counts


def _check_classes(kept: Sequence[Read], labels: LabelMap, complete: bool, say: Say) -> None:
    there = {_class(one.cell, labels) for one in kept}
    gone = [name for name in labels.classes if name not in there]
    if gone and (complete or not there):
        raise DataError(f"no readable image is left of the classes {', '.join(gone)}. Unpack the release again.")
    if gone:
        say(f"warning: there is no image of the classes {', '.join(gone)}; their numbers stay free")


def _class(cell: Cell, labels: LabelMap) -> str:
    name = labels.sources[cell.source][cell.code]
    assert name is not None, "cells without a class are left out before they are read"
    return name


def _label(cell: Cell, labels: LabelMap) -> int:
    return labels.classes.index(_class(cell, labels))


def _datalist(name: str, releases: Sequence[Release], kept: Sequence[Read], labels: LabelMap, how: How) -> Datalist:
    """The data list; row n of the array is the n-th cell."""
    subjects = number_subjects([one.digest for one in kept])
    strata = [f"{one.cell.source} {_class(one.cell, labels)}" for one in kept]
    tested = choose_test(strata, subjects, how.test_share, how.seed)
    splits: dict[str, list[Record]] = {split: [] for split in SPLITS}
    for row, (cell, _) in enumerate(kept):
        record: Record = {"image": row, "label": _label(cell, labels), "subject_id": subjects[row]}
        about = {"source": cell.source, "cell": cell.code, **cell.about}
        splits["test" if tested[row] else "training"].append(record | about)
    return Datalist(
        name=name,
        image_array="images.npy",
        num_classes=len(labels.classes),
        labels={str(label): text for label, text in enumerate(labels.classes)},
        modality="blood smear, light microscopy",
        licence="; ".join(f"{release.name}: {release.licence}" for release in releases),
        splits=splits,
        extra={"citation": "; ".join(release.citation for release in releases)},
    )
