"""Leaks: the same patient, or the same image, in two places that must not share any.

The places are the splits of all sites, the server's test set and public data. Images are the same when a network would
get the same pixels: an image of 8 bits equals the floating one that was made of it by dividing by 255.
"""

from __future__ import annotations

import functools
import hashlib
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from medfl.data.arrays import array_digest, open_array
from medfl.data.datalists import Datalist, read_datalist, subjects_of
from medfl.errors import DataError, SettingsError, did_you_mean
from medfl.types import GLOBAL, LeakKind

KINDS: tuple[LeakKind, ...] = ("subjects", "pixels")
"""All kinds, in the order of reports."""

CHUNK_BYTES = 16 << 20
"""Pixels in memory at a time."""

MAX_PAIRS = 8
"""Pairs of places that a message names for each kind."""


@dataclass(frozen=True)
class Leak:
    """What two places have in common.

    Attributes:
        kind: ``subjects`` or ``pixels``.
        count: How many subjects, or different images.
        between: The two places, for example ``("site-01/training", "global/test")``.
    """

    kind: LeakKind
    count: int
    between: tuple[str, str]


@dataclass(frozen=True)
class Holding:
    """What a place holds.

    Attributes:
        subjects: Its subjects, each by something that no other subject has.
        pixels: Of each image something that another one has only if the pixels are the same.
    """

    subjects: set[Hashable]
    pixels: set[Hashable]


def row_digests(path: Path) -> tuple[bytes, ...]:
    """A hash of the pixels of each row of an array file; equal hashes mean equal pixels.

    Each array is read once per process, in chunks.

    Args:
        path: A ``.npy`` file.

    Returns:
        16 bytes (BLAKE2b) for each row, equal for equal pixels in [0, 1] whatever the type of the array.

    Raises:
        DataError: If the file is missing or can't be read.
    """
    return _row_digests(path.resolve(), array_digest(path))


def find_leaks(
    dataset_dir: Path, names: Sequence[str], public: str | None = None, open_test: bool = True
) -> list[Leak]:
    """Find what sites, splits, the server's test set and public data have in common.

    Subjects are compared among lists whose image arrays have the same content, because they come from one pool, where a
    ``subject_id`` is unique. Sites that were prepared apart may use the same running numbers for different people:
    there, subjects are compared within each site only, and images everywhere. Records without a ``subject_id`` are
    compared by their pixels only. An image that occurs several times in one split of one site is no leak.

    Args:
        dataset_dir: The folder that holds one folder for each site.
        names: The sites that take part.
        public: The folder of public data beside the sites, if there is one.
        open_test: Whether test images are compared, too.

    Returns:
        One leak for each kind and pair of places, in the order of the places.

    Raises:
        DataError: If a data list or an array is missing or damaged.
        SettingsError: If a site, or the server's test set, is the public data as well.
    """
    holdings: dict[str, Holding] = {}
    for name in _folders(dataset_dir, names, public):
        if name == GLOBAL and not open_test:
            continue
        datalist = read_datalist(dataset_dir / name)
        datalist = datalist if open_test else datalist.without_test()
        array = (dataset_dir / name / datalist.image_array).resolve()
        holdings |= {f"{name}/{split}": holding for split, holding in _contents(datalist, array, name)}
    return leaks_between(holdings)


def leaks_between(holdings: Mapping[str, Holding]) -> list[Leak]:
    """What places have in common.

    Args:
        holdings: Name of a place to what it holds.

    Returns:
        One leak for each kind and pair of places, in the order of the places.
    """
    places = list(holdings)
    return [
        Leak(kind, count, (places[first], places[other]))
        for kind in KINDS
        for first, other, count in _overlaps([getattr(holding, kind) for holding in holdings.values()])
    ]


def check_leaks(
    dataset_dir: Path,
    names: Sequence[str],
    public: str | None = None,
    allow: Sequence[str] = (),
    open_test: bool = True,
) -> list[str]:
    """Refuse data with leaks, except those that are allowed by name.

    Args:
        dataset_dir: As in `find_leaks`.
        names: As in `find_leaks`.
        public: As in `find_leaks`.
        allow: Kinds of leaks that are allowed: ``subjects``, ``pixels``.
        open_test: As in `find_leaks`.

    Returns:
        A sentence for each pair of places with an allowed leak, for the report.

    Raises:
        DataError: If there is a leak that is not allowed, or as in `find_leaks`.
        SettingsError: If `allow` names no kind of leak, or as in `find_leaks`.
    """
    check_kinds(allow)
    return refuse_leaks(find_leaks(dataset_dir, names, public, open_test), allow)


def refuse_leaks(leaks: Sequence[Leak], allow: Sequence[str] = ()) -> list[str]:
    """Refuse leaks, except those that are allowed by name; arguments and errors as in `check_leaks`."""
    refused = [leak for leak in leaks if leak.kind not in allow]
    if refused:
        kinds = [kind for kind in KINDS if any(leak.kind == kind for leak in refused)]
        raise DataError(
            "data_leak",
            "the same patients or images are in places that must not share any:\n"
            + "\n".join(line for kind in kinds for line in _lines(kind, refused))
            + "\nMake the sites again with `medfl partition`, which keeps a patient's images and identical images "
            f'together; or allow this by name (a run takes --allow_leaks "{kinds}"), and the report will say so.',
            kinds=kinds,
            leaks=[[leak.kind, leak.count, *leak.between] for leak in refused],
        )
    return [_sentence(leak) for leak in leaks]


def check_kinds(allow: Sequence[str]) -> None:
    """Refuse names that are no kind of leak.

    Raises:
        SettingsError: If there is one.
    """
    for name in allow:
        if name not in KINDS:
            raise SettingsError(
                "unknown_choice",
                f"unknown kind of leak '{name}' to allow. {did_you_mean(name, KINDS)}",
                what="kind of leak",
                choice=name,
            )


def check_rows(rows: np.ndarray, images: int, where: str) -> None:
    """Refuse rows that an array does not have.

    Args:
        rows: Rows of a data list, shape (n,).
        images: Rows of its array.
        where: What they belong to, for the message.

    Raises:
        DataError: If there are any.
    """
    if len(rows) and not 0 <= rows.min() <= rows.max() < images:
        raise DataError(
            "row_outside_array",
            f"expected rows in 0..{images - 1} at {where}, got {rows.min()}..{rows.max()}. The list and the array do "
            "not belong together: prepare the data set again.",
            where=where,
            maximum=images - 1,
            found=[int(rows.min()), int(rows.max())],
        )


def _folders(dataset_dir: Path, names: Sequence[str], public: str | None) -> list[str]:
    if public is not None and public in (*names, GLOBAL):
        what = "the server's test set" if public == GLOBAL else "a site"
        raise SettingsError(
            "public_data_conflict",
            f"the folder '{public}' is {what}, so it can't be public data. Name another folder.",
            name=public,
            conflict=what,
        )
    folders = sorted(set(names))
    if (dataset_dir / GLOBAL).is_dir():
        folders.append(GLOBAL)
    return folders if public is None else [*folders, public]


def _contents(datalist: Datalist, array: Path, name: str) -> Iterator[tuple[str, Holding]]:
    """Each split that has records, with what it holds."""
    hashes, pool = row_digests(array), array_digest(array)
    for split, records in datalist.splits.items():
        rows, _ = datalist.rows_and_labels(split, f"site '{name}'")
        if not len(rows):
            continue
        check_rows(rows, len(hashes), f"site '{name}', split '{split}'")
        known = set(subjects_of(records)) - {None}
        yield split, Holding({(pool, subject) for subject in known}, {hashes[row] for row in rows.tolist()})


def _overlaps(contents: Sequence[set[Hashable]]) -> Iterator[tuple[int, int, int]]:
    """Pairs of sets with something in common, and how much."""
    owners: defaultdict[Hashable, list[int]] = defaultdict(list)
    for number, content in enumerate(contents):
        for key in content:
            owners[key].append(number)
    shared = [numbers for numbers in owners.values() if len(numbers) > 1]
    involved = sorted({number for numbers in shared for number in numbers})
    column = {number: place for place, number in enumerate(involved)}
    counts = np.zeros((len(involved), len(involved)), dtype=np.int64)
    for start in range(0, len(shared), 4096):  # a product of matrices counts all pairs at once
        block = np.zeros((len(shared[start : start + 4096]), len(involved)), dtype=np.float32)
        for row, numbers in enumerate(shared[start : start + 4096]):
            block[row, [column[number] for number in numbers]] = 1
        counts += (block.T @ block).astype(np.int64)
    for first, other in zip(*np.nonzero(np.triu(counts, 1)), strict=True):
        yield involved[first], involved[other], int(counts[first, other])


def _lines(kind: LeakKind, leaks: Sequence[Leak]) -> Iterator[str]:
    mine = sorted((leak for leak in leaks if leak.kind == kind), key=lambda leak: -leak.count)
    for leak in mine[:MAX_PAIRS]:
        yield f"  {_sentence(leak)}"
    if len(mine) > MAX_PAIRS:
        yield f"  {kind}: and {len(mine) - MAX_PAIRS} more pairs of places"


def _sentence(leak: Leak) -> str:
    what = " identical image" + "s" * (leak.count > 1) if leak.kind == "pixels" else ""
    return f"{leak.kind}: {leak.count}{what} in both {leak.between[0]} and {leak.between[1]}"


@functools.lru_cache(maxsize=32)
def _row_digests(path: Path, digest: str) -> tuple[bytes, ...]:
    images = open_array(path)
    size = max(1, int(np.prod(images.shape[1:])) * images.dtype.itemsize)
    step = max(1, CHUNK_BYTES // size)
    digests: list[bytes] = []
    for start in range(0, len(images), step):
        chunk = images[start : start + step]
        digests += [hashlib.blake2b(pixels.data, digest_size=16).digest() for pixels in _comparable(chunk)]
    return tuple(digests)


def _comparable(images: np.ndarray) -> Iterator[np.ndarray]:
    """The pixels of each image, contiguous, in a type that does not depend on how they were saved."""
    if images.dtype == np.uint16:
        for image in np.ascontiguousarray(images):
            eight, rest = np.divmod(image, np.uint16(257))  # 65535 / 255
            yield image if rest.any() else eight.astype(np.uint8)
        return
    if images.dtype.kind != "f":
        yield from np.ascontiguousarray(images)
        return
    rounding = 255 * max(np.finfo(images.dtype).eps, np.finfo(np.float32).eps)
    with np.errstate(over="ignore", invalid="ignore"):  # a row that no list names may hold anything
        values = np.ascontiguousarray(images, dtype=np.float32) + 0.0  # makes -0.0 to 0.0
        levels = np.rint(values * 255)
        fits = (np.abs(values * 255 - levels) <= rounding) & (levels >= 0) & (levels <= 255)
    eight_bits = fits.reshape(len(images), -1).all(axis=1)
    for image, level, is_eight_bits in zip(values, levels, eight_bits, strict=True):
        yield level.astype(np.uint8) if is_eight_bits else image
