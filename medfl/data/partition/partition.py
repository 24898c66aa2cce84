"""Split a pooled data set into sites and write their folders."""

from __future__ import annotations

import os
from pathlib import Path

from medfl.data.arrays import array_digest, check_finite, open_array
from medfl.data.datalists import DATALIST_FILE, Datalist, read_datalist
from medfl.data.features.feature_encoding import typed_columns
from medfl.data.folders import atomic_folder, check_output_folder
from medfl.data.leaks import check_rows, row_digests
from medfl.data.partition.assign import distribute
from medfl.data.partition.overlap import PublicPool
from medfl.data.partition.plan import NO_PUBLIC, TRAINING, VALIDATION, PartitionPlan
from medfl.data.partition.schemes import Scheme
from medfl.data.partition.writing import PoolReference, write_sites
from medfl.errors import DataError, SettingsError
from medfl.types import PathLike


def partition(
    pool: PathLike, out: PathLike, plan: PartitionPlan, scheme: Scheme, *, force: bool = False
) -> dict[str, Datalist]:
    """Assign the training split of a pooled data set to sites and write a folder for each site.

    A pooled data set is a folder with one image array and one data list, as ``medfl prep`` writes it.

    Args:
        pool: Folder of the pooled data set, as ``medfl prep`` wrote it.
        out: Folder to write; it is written completely or not at all.
        plan: Settings of the partition.
        scheme: Function that `plan.scheme` names.
        force: Whether an existing partition in `out` may be replaced.

    Returns:
        Maps each site to its data list; also ``global`` if the server has a test set, and ``public``.

    Raises:
        DataError: If the pooled data set is wrong, training images are also in the server's test set, or `out` may not
            be written.
        SettingsError: If the scheme does not accept an option, or the settings can't be fulfilled.
    """
    pool, out = Path(pool), Path(out)
    check_output_folder(out, force, [pool])
    source, array = _read_pool(pool)
    other = _read_public(plan, out, force)
    public = None if other is None else _public_pool(*other, array)
    splits, notes = distribute(source, row_digests(array), plan, scheme, public)
    with atomic_folder(out, force) as folder:
        public_reference = None if other is None else _pool_reference(*other, Path(plan.public), out)
        return write_sites(folder, _pool_reference(source, array, pool, out), splits, plan, notes, public_reference)


def _read_pool(folder: Path) -> tuple[Datalist, Path]:
    """Read the data list of a pooled data set and return it with the path of its image array.

    Raises:
        DataError: If the list is wrong, a row is outside the array, or a listed image has pixels that are not finite.
    """
    datalist = read_datalist(folder)
    array = folder / datalist.image_array
    images, where = open_array(array), f"pooled data set '{datalist.name}'"
    for split in datalist.splits:
        rows, _ = datalist.rows_and_labels(split, where)
        check_rows(rows, len(images), f"{where}, split '{split}'")
        try:
            check_finite(images, rows, allow_nan=images.ndim == 2 and typed_columns(datalist.extra) is not None)
        except DataError as error:
            raise error.reworded(f"{where}, split '{split}': {error}") from None
    return datalist, array


def _read_public(plan: PartitionPlan, out: Path, force: bool) -> tuple[Datalist, Path] | None:
    """Return the list and array path of public data in another folder; None if the plan names none."""
    if plan.public in (NO_PUBLIC, VALIDATION, TRAINING):
        return None
    folder = Path(plan.public)
    if not (folder / DATALIST_FILE).is_file():
        raise SettingsError(
            "unknown_choice",
            f"unknown '{plan.public}' for public: expected {NO_PUBLIC}, {VALIDATION}, {TRAINING}, or the folder of a "
            f"pooled data set, with its {DATALIST_FILE}.",
            what="public",
            choice=plan.public,
        )
    check_output_folder(out, force, [folder])
    return _read_pool(folder)


def _public_pool(datalist: Datalist, array: Path, pooled: Path) -> PublicPool:
    """Return public data with the hashes of their images."""
    return PublicPool(datalist.splits, row_digests(array), array_digest(array) == array_digest(pooled))


def _pool_reference(datalist: Datalist, array: Path, folder: Path, out: Path) -> PoolReference:
    """Return the reference to a pooled data set that sites in `out` store."""

    def relative(path: Path) -> str:
        # resolve links first, because '..' does not undo a link
        return Path(os.path.relpath(path.resolve(), out.resolve() / "site")).as_posix()

    masks = folder / datalist.mask_array if datalist.mask_array else None
    return PoolReference(
        datalist=datalist,
        relative_path=relative(array),
        digest=array_digest(array),
        path=array,
        relative_mask_path="" if masks is None else relative(masks),
        mask_digest="" if masks is None else array_digest(masks),
    )
