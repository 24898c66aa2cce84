"""Detect leaks: patients or images that occur in two places that must not share any.

A place is a split of a site, the server's test set or public data. Two images count as identical if a network would
receive the same pixels: an 8-bit image equals the floating-point image that results from dividing it by 255.
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

LEAK_KINDS: tuple[LeakKind, ...] = ("subjects", "pixels")
"""All kinds of leaks, in the order of reports."""

CHUNK_BYTES = 16 << 20
"""Size, in bytes, of the pixel chunks that are hashed at a time."""

MAX_PAIRS_LISTED = 8
"""Maximum number of pairs of places that a message lists for each kind of leak."""


@dataclass(frozen=True)
class Leak:
    """Patients or images that two places share.

    Attributes:
        kind: ``subjects`` or ``pixels``.
        count: Number of shared subjects, or of distinct shared images.
        between: Names of the two places, for example ``("site-01/training", "global/test")``.
    """

    kind: LeakKind
    count: int
    between: tuple[str, str]


@dataclass(frozen=True)
class PlaceContents:
    """Subjects and images of one place, as keys that can be compared with other places.

    Attributes:
        subjects: One key for each subject; different subjects have different keys.
        pixels: One key for each image; keys are equal only if the pixels are equal.
    """

    subjects: set[Hashable]
    pixels: set[Hashable]


def row_digests(path: Path) -> tuple[bytes, ...]:
    """Return a hash of the pixels of each row of an array file; equal hashes mean equal pixels.

    The array is read in chunks, once per process.

    Args:
        path: A ``.npy`` file.

    Returns:
        16 bytes (BLAKE2b) for each row. Images with equal pixels in [0, 1] have equal hashes for every data type of
        the array.

    Raises:
        DataError: If the file is missing or can't be read.
    """
    return _row_digests(path.resolve(), array_digest(path))


def image_digests(images: np.ndarray) -> list[bytes]:
    """Return the hash of each image of an array (N, ...), as `row_digests` computes it."""
    return [hashlib.blake2b(pixels.data, digest_size=16).digest() for pixels in _normalized_images(images)]


def find_leaks(
    dataset_dir: Path, names: Sequence[str], public: str | None = None, open_test: bool = True
) -> list[Leak]:
    """Find patients and images that sites, splits, the server's test set and public data share.

    Subjects are compared among lists whose image arrays have the same content: these lists come from one pooled data
    set, in which a ``subject_id`` is unique. Sites that were prepared separately may use the same running numbers for
    different people. Their subjects are compared within each site only, and their images with all places. Records
    without a ``subject_id`` are compared by pixels only. Copies of an image within one split of one site are no leak.

    Args:
        dataset_dir: Partitioned data set: contains one folder for each site.
        names: Names of the participating sites.
        public: Folder name of the public data in `dataset_dir`; None if there are none.
        open_test: Whether test images are compared too.

    Returns:
        One leak for each kind and pair of places, in the order of the places.

    Raises:
        DataError: If a data list or an array is missing or damaged.
        SettingsError: If `public` is also a site or the server's test set.
    """
    holdings: dict[str, PlaceContents] = {}
    for name in _folder_names(dataset_dir, names, public):
        if name == GLOBAL and not open_test:
            continue
        datalist = read_datalist(dataset_dir / name)
        datalist = datalist if open_test else datalist.without_test()
        contents = contents_by_split(dataset_dir / name, datalist)
        holdings |= {f"{name}/{split}": content for split, content in contents.items()}
    return leaks_between(holdings)


def leaks_between(holdings: Mapping[str, PlaceContents]) -> list[Leak]:
    """Return the patients and images that places share.

    Args:
        holdings: Maps the name of each place to its contents.

    Returns:
        One leak for each kind and pair of places, in the order of the places.
    """
    places = list(holdings)
    return [
        Leak(kind, count, (places[first], places[other]))
        for kind in LEAK_KINDS
        for first, other, count in _count_overlaps([getattr(holding, kind) for holding in holdings.values()])
    ]


def check_leaks(
    dataset_dir: Path,
    names: Sequence[str],
    public: str | None = None,
    allow: Sequence[str] = (),
    open_test: bool = True,
) -> list[str]:
    """Raise if there are leaks, except leaks of the allowed kinds.

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
        SettingsError: If `allow` contains an unknown kind, or as in `find_leaks`.
    """
    check_kinds(allow)
    return raise_leaks(find_leaks(dataset_dir, names, public, open_test), allow)


def raise_leaks(leaks: Sequence[Leak], allow: Sequence[str] = ()) -> list[str]:
    """Raise if there are leaks of a kind that is not allowed; arguments and errors as in `check_leaks`.

    Returns:
        A sentence for each allowed leak, for the report.
    """
    refused = [leak for leak in leaks if leak.kind not in allow]
    if refused:
        kinds = [kind for kind in LEAK_KINDS if any(leak.kind == kind for leak in refused)]
        raise DataError(
            "data_leak",
            "patients or images occur in two places that must not share any:\n"
            + "\n".join(line for kind in kinds for line in _lines_of_kind(kind, refused))
            + "\nMake the sites again with `medfl partition`, which keeps a patient's images and identical images "
            f'together; or allow this by name (a run takes --allow-leaks "{kinds}"), and the report will say so.',
            kinds=kinds,
            leaks=[[leak.kind, leak.count, *leak.between] for leak in refused],
        )
    return [_sentence(leak) for leak in leaks]


def check_kinds(allow: Sequence[str]) -> None:
    """Raise if a name is no kind of leak.

    Raises:
        SettingsError: If `allow` contains an unknown kind.
    """
    for name in allow:
        if name not in LEAK_KINDS:
            raise SettingsError(
                "unknown_choice",
                f"unknown kind of leak '{name}' to allow. {did_you_mean(name, LEAK_KINDS)}",
                what="kind of leak",
                choice=name,
            )


def check_rows(rows: np.ndarray, images: int, where: str) -> None:
    """Raise if a row is outside the array.

    Args:
        rows: Row numbers from a data list, shape (n,).
        images: Number of rows of the array.
        where: Owner of the list, for the message.

    Raises:
        DataError: If a row is negative or not below `images`.
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


def _folder_names(dataset_dir: Path, names: Sequence[str], public: str | None) -> list[str]:
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


def contents_by_split(folder: Path, datalist: Datalist) -> dict[str, PlaceContents]:
    """Return the contents of each split that has records, by the name of the split.

    The key of a subject contains the digest of the image array, because a ``subject_id`` is unique in one pooled data
    set only.

    Args:
        folder: Folder of a site, of the server's test set or of public data.
        datalist: Data list of the folder, with the splits to read.

    Raises:
        DataError: If a row is outside the array, or the array is missing or damaged.
    """
    array, name = (folder / datalist.image_array).resolve(), folder.name
    hashes, pool = row_digests(array), array_digest(array)
    contents = {}
    for split, records in datalist.splits.items():
        rows, _ = datalist.rows_and_labels(split, f"site '{name}'")
        if len(rows):
            check_rows(rows, len(hashes), f"site '{name}', split '{split}'")
            known = set(subjects_of(records)) - {None}
            subjects: set[Hashable] = {(pool, subject) for subject in known}
            contents[split] = PlaceContents(subjects, {hashes[row] for row in rows.tolist()})
    return contents


def _count_overlaps(contents: Sequence[set[Hashable]]) -> Iterator[tuple[int, int, int]]:
    """Yield (first, other, count) for each pair of sets that share elements."""
    owners: defaultdict[Hashable, list[int]] = defaultdict(list)
    for number, content in enumerate(contents):
        for key in content:
            owners[key].append(number)
    shared = [numbers for numbers in owners.values() if len(numbers) > 1]
    involved = sorted({number for numbers in shared for number in numbers})
    column = {number: place for place, number in enumerate(involved)}
    counts = np.zeros((len(involved), len(involved)), dtype=np.int64)
    for start in range(0, len(shared), 4096):  # one matrix product counts all pairs
        block = np.zeros((len(shared[start : start + 4096]), len(involved)), dtype=np.float32)
        for row, numbers in enumerate(shared[start : start + 4096]):
            block[row, [column[number] for number in numbers]] = 1
        counts += (block.T @ block).astype(np.int64)
    for first, other in zip(*np.nonzero(np.triu(counts, 1)), strict=True):
        yield involved[first], involved[other], int(counts[first, other])


def _lines_of_kind(kind: LeakKind, leaks: Sequence[Leak]) -> Iterator[str]:
    of_kind = sorted((leak for leak in leaks if leak.kind == kind), key=lambda leak: -leak.count)
    for leak in of_kind[:MAX_PAIRS_LISTED]:
        yield f"  {_sentence(leak)}"
    if len(of_kind) > MAX_PAIRS_LISTED:
        yield f"  {kind}: and {len(of_kind) - MAX_PAIRS_LISTED} more pairs of places"


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
        digests += image_digests(chunk)
    return tuple(digests)


def _normalized_images(images: np.ndarray) -> Iterator[np.ndarray]:
    """Yield each image as a contiguous array. Equal images have equal bytes for every stored type."""
    if images.dtype == np.uint16:
        for image in np.ascontiguousarray(images):
            eight, rest = np.divmod(image, np.uint16(257))  # 257 = 65535 / 255
            yield image if rest.any() else eight.astype(np.uint8)
        return
    if images.dtype.kind != "f":
        yield from np.ascontiguousarray(images)
        return
    rounding = 255 * max(np.finfo(images.dtype).eps, np.finfo(np.float32).eps)
    with np.errstate(over="ignore", invalid="ignore"):  # rows that no list names may contain any value
        values = np.ascontiguousarray(images, dtype=np.float32) + 0.0  # turns -0.0 into 0.0
        levels = np.rint(values * 255)
        fits = (np.abs(values * 255 - levels) <= rounding) & (levels >= 0) & (levels <= 255)
    eight_bits = fits.reshape(len(images), -1).all(axis=1)
    for image, level, is_eight_bits in zip(values, levels, eight_bits, strict=True):
        yield level.astype(np.uint8) if is_eight_bits else image
