"""Split a pooled data set into sites, and write them."""

from __future__ import annotations

import os
from pathlib import Path

from medfl.data.arrays import array_digest, check_finite, open_array
from medfl.data.datalists import FILE, Datalist, read_datalist
from medfl.data.folders import check_free, written_whole
from medfl.data.leaks import check_rows, row_digests
from medfl.data.partition.assign import distribute
from medfl.data.partition.overlap import PublicPool
from medfl.data.partition.plan import NO_PUBLIC, VALIDATION, PartitionPlan
from medfl.data.partition.schemes import Scheme
from medfl.data.partition.writing import Pool, write_sites
from medfl.errors import DataError, SettingsError
from medfl.types import PathLike


def partition(
    pool: PathLike, out: PathLike, plan: PartitionPlan, scheme: Scheme, *, force: bool = False
) -> dict[str, Datalist]:
    """Distribute the training split of a pooled data set over sites and write their folders.

    Args:
        pool: The pooled data set, as written by ``medfl prep``.
        out: The folder to write; it is written whole or not at all.
        plan: How.
        scheme: The function of `plan.scheme`.
        force: Whether a partition that is there may be replaced.

    Returns:
        Name to data list of each site, ``global`` where the server has a test set, and ``public``.

    Raises:
        DataError: If the pooled data set is wrong, training images are in the server's test set as well, or `out` may
            not be written.
        SettingsError: If the scheme does not take an option, or can't do what is asked.
    """
    pool, out = Path(pool), Path(out)
    check_free(out, force, [pool])
    source, array = _read(pool)
    other = _public(plan, out, force)
    public = None if other is None else _comparable(*other, array)
    splits, notes = distribute(source, row_digests(array), plan, scheme, public)
    with written_whole(out, force) as folder:
        shown = None if other is None else _pool(*other, Path(plan.public), out)
        return write_sites(folder, _pool(source, array, pool, out), splits, plan, notes, shown)


def _read(folder: Path) -> tuple[Datalist, Path]:
    """The list of a pooled data set and its image array, whose pixels are finite where the list names them."""
    datalist = read_datalist(folder)
    array = folder / datalist.image_array
    images, where = open_array(array), f"pooled data set '{datalist.name}'"
    for split in datalist.splits:
        rows, _ = datalist.rows_and_labels(split, where)
        check_rows(rows, len(images), f"{where}, split '{split}'")
        try:
            check_finite(images, rows)
        except DataError as error:
            raise error.reworded(f"{where}, split '{split}': {error}") from None
    return datalist, array


def _public(plan: PartitionPlan, out: Path, force: bool) -> tuple[Datalist, Path] | None:
    """The public data of another data set, if the plan names one."""
    if plan.public in (NO_PUBLIC, VALIDATION):
        return None
    folder = Path(plan.public)
    if not (folder / FILE).is_file():
        raise SettingsError(
            "unknown_choice",
            f"unknown '{plan.public}' for public: expected {NO_PUBLIC}, {VALIDATION}, or the folder of a pooled data "
            f"set, with its {FILE}.",
            what="public",
            choice=plan.public,
        )
    check_free(out, force, [folder])
    return _read(folder)


def _comparable(datalist: Datalist, array: Path, pooled: Path) -> PublicPool:
    """Public data with the hashes of their images."""
    return PublicPool(datalist.splits, row_digests(array), array_digest(array) == array_digest(pooled))


def _pool(datalist: Datalist, array: Path, folder: Path, out: Path) -> Pool:
    """A pooled data set in a folder as sites in `out` name it."""

    def way(path: Path) -> str:
        return Path(os.path.relpath(path.resolve(), out.resolve() / "site")).as_posix()  # '..' goes back over no link

    if not datalist.mask_array:
        return Pool(datalist, way(array), array_digest(array), array)
    masks = folder / datalist.mask_array
    return Pool(datalist, way(array), array_digest(array), array, way(masks), array_digest(masks))
