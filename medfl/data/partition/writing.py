"""Write a partition: a data list and a site card for each site, and ``partition.json``.

A site card is a JSON file for human readers, with counts, exclusions and settings.
"""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from medfl.data.arrays import FEATURE_MEAN, FEATURE_STD, open_array
from medfl.data.datalists import DATALIST_FILE, Datalist, write_datalist
from medfl.data.features.feature_encoding import typed_columns
from medfl.data.features.feature_scale import scale_features, sum_features
from medfl.data.features.record_features import feature_rows
from medfl.records.datalist import CaseRecord, Exclusion
from medfl.records.feature_columns import FeatureColumns
from medfl.records.partition import LocatedExclusion, Partition
from medfl.records.site_card import SiteCard
from medfl.types import NON_SITE_NAMES, PUBLIC
from medfl.utils.files import sha256_of
from medfl.version import __version__

if TYPE_CHECKING:
    from medfl.data.partition.plan import PartitionPlan


POOLED = "pooled data set"
"""Location that site cards state for images that ``medfl prep`` excluded, before the partition."""


@dataclass(frozen=True)
class PoolReference:
    """Reference to a pooled data set, as the lists of sites store it.

    Attributes:
        datalist: Data list of the pooled data set; sites inherit its metadata.
        relative_path: Path of the pooled image array, relative to a site's folder.
        digest: SHA-256 of the image array.
        path: Path of the image array, to open it.
        relative_mask_path: Path of the pooled mask array, relative to a site's folder; empty without masks.
        mask_digest: SHA-256 of the mask array; empty without masks.
    """

    datalist: Datalist
    relative_path: str
    digest: str
    path: Path
    relative_mask_path: str = ""
    mask_digest: str = ""


@dataclass
class PartitionNotes:
    """Warnings and counts that are collected while a partition is made.

    Attributes:
        warnings: Warnings, one sentence each.
        unassigned: Maps each class to its number of training images that are at no site and not in the server's test
            set.
        allowed_leaks: Sentences about leaks that were allowed by name.
        exclusions: Maps each site, and ``public``, to the exclusions of images there.
    """

    warnings: list[str] = field(default_factory=list)
    unassigned: dict[str, int] = field(default_factory=dict)
    allowed_leaks: list[str] = field(default_factory=list)
    exclusions: dict[str, list[Exclusion]] = field(default_factory=dict)


def write_sites(
    folder: Path,
    pool: PoolReference,
    splits: Mapping[str, dict[str, list[CaseRecord]]],
    plan: PartitionPlan,
    notes: PartitionNotes | None = None,
    public: PoolReference | None = None,
) -> dict[str, Datalist]:
    """Write the data lists and cards of all sites, and ``partition.json``.

    Args:
        folder: Temporary folder of `medfl.data.folders.atomic_folder`, so that files need not be written atomically.
        pool: Pooled data set of the sites' images.
        splits: Maps each site, ``global`` and ``public`` to its splits and their records.
        plan: Settings of the partition.
        notes: Warnings and counts; empty by default.
        public: Pooled data set of the public images; None means `pool`.

    Returns:
        Maps each site, ``global`` and ``public`` to its data list.
    """
    notes = notes or PartitionNotes()
    public_dataset = None if public is None else public.datalist.name
    settings = plan.effective_settings(sum(name not in NON_SITE_NAMES for name in splits))
    scale = feature_scale(open_array(pool.path), splits, typed_columns(pool.datalist.extra))
    written: dict[str, Datalist] = {}
    digests: dict[str, str] = {}
    for name, site_splits in splits.items():
        place, origin = folder / name, public if name == PUBLIC and public is not None else pool
        place.mkdir()
        written[name] = replace(
            origin.datalist, splits=site_splits, image_array=origin.relative_path, mask_array=origin.relative_mask_path
        )
        if origin is pool:
            written[name].extra = written[name].extra | scale
        write_datalist(place, written[name])
        digests |= {
            f"{name}/{DATALIST_FILE}": sha256_of(place / DATALIST_FILE),
            os.path.normpath(f"{name}/{origin.relative_path}"): origin.digest,
        }
        if origin.relative_mask_path:
            digests[os.path.normpath(f"{name}/{origin.relative_mask_path}")] = origin.mask_digest
        card = SiteCard(
            site=name,
            dataset=pool.datalist.name,
            public_dataset=public_dataset,
            licence=written[name].licence,
            labels=written[name].labels,
            counts=written[name].counts(),
            class_balance=class_balance(written[name]),
            presentation_intents=presentation_intents(written[name]),
            array_sha256=origin.digest,
            exclusions=(*_located(origin.datalist.exclusions, POOLED), *_located(notes.exclusions.get(name, ()), name)),
            settings=settings,
            unassigned=notes.unassigned,
            allowed_leaks=tuple(notes.allowed_leaks),
            warnings=tuple(notes.warnings),
            versions={"medfl": __version__, "numpy": np.__version__, "python": platform.python_version()},
        )
        (place / SiteCard.NAME).write_bytes(card.to_bytes())
    at_sites = [entry for name, entries in notes.exclusions.items() for entry in _located(entries, name)]
    record = Partition(
        dataset=pool.datalist.name,
        public_dataset=public_dataset,
        settings=settings,
        unassigned=notes.unassigned,
        allowed_leaks=tuple(notes.allowed_leaks),
        warnings=tuple(notes.warnings),
        exclusions=(*_located(pool.datalist.exclusions, POOLED), *at_sites),
        not_distributed=count_undistributed(pool.datalist, plan),
        sha256_by_file=digests,
    )
    (folder / Partition.NAME).write_bytes(record.to_bytes())
    return written


def feature_scale(
    array: np.ndarray,
    splits: Mapping[str, dict[str, list[CaseRecord]]],
    columns: FeatureColumns | None = None,
) -> dict[str, list[float]]:
    """Compute the mean and standard deviation of each feature over the training rows of all sites.

    Test and validation rows are not used. A feature with one value in all training rows gets the standard deviation 1,
    so that dividing by it is safe. With typed columns, the scale follows from sums of each site
    (`medfl.data.features.feature_scale`), which suppress features with few known values.

    Args:
        array: Pooled array. Only vectors, of shape (N, F), and images with features of table columns have such a scale.
        splits: Maps each site, ``global`` and ``public`` to its splits and their records.
        columns: Typed columns of the features; None if the data list has none.

    Returns:
        `FEATURE_MEAN` and `FEATURE_STD` with F numbers each; empty for images, or without training rows.

    Raises:
        DataError: If no site has enough known values of a number.
    """
    records = [
        record for name, split in splits.items() if name not in NON_SITE_NAMES for record in split.get("training", [])
    ]
    if not records or (array.ndim != 2 and columns is None):
        return {}
    if columns is not None:
        by_site = [
            feature_rows(columns, array, split["training"], f"site '{name}', split 'training'")
            for name, split in splits.items()
            if name not in NON_SITE_NAMES and split.get("training")
        ]
        scale = scale_features([sum_features(rows) for rows in by_site if rows is not None], columns)
        return {FEATURE_MEAN: scale.mean, FEATURE_STD: scale.std}
    top = float(np.iinfo(array.dtype).max) if array.dtype.kind == "u" else 1.0
    rows = array[sorted({int(record["image"]) for record in records})].astype(np.float64) / top
    deviations = np.where(np.ptp(rows, axis=0) == 0, 1.0, rows.std(axis=0))
    return {FEATURE_MEAN: rows.mean(axis=0).tolist(), FEATURE_STD: deviations.tolist()}


def class_balance(datalist: Datalist) -> dict[str, float]:
    """Return the share of each class in the images of all splits, rounded to four digits."""
    by_class = count_by_class(datalist)
    total = max(sum(by_class), 1)
    return {str(label): round(count / total, 4) for label, count in enumerate(by_class)}


def count_by_class(datalist: Datalist) -> list[int]:
    """Return the number of images of each class over all splits."""
    counts = datalist.counts().values()
    return [sum(split[str(label)] for split in counts) for label in range(datalist.num_classes)]


def count_classes_by_site(written: Mapping[str, Datalist]) -> tuple[dict[str, list[int]], list[str]]:
    """Return each site's number of images of each class, and the names of the classes.

    Args:
        written: Maps each site to its data list. The server's test set and public data are left out.
    """
    datalist = next(iter(written.values()))
    classes = [datalist.labels.get(str(label), str(label)) for label in range(datalist.num_classes)]
    return {name: count_by_class(records) for name, records in written.items() if name not in NON_SITE_NAMES}, classes


def count_undistributed(source: Datalist, plan: PartitionPlan) -> dict[str, int]:
    """Return the size of each pooled split that is not used in the partition."""
    kept = {"training", "test"} if "official" in (plan.server_test, plan.test) else {"training"}
    kept |= {"validation"} if plan.public == "validation" else set()
    kept |= set(source.splits) if plan.join_splits else set()
    return {split: len(records) for split, records in source.splits.items() if records and split not in kept}


def presentation_intents(datalist: Datalist) -> dict[str, int]:
    """Return the number of images by presentation intent (for processing or for display), without unknown intents."""
    records = [record for split in datalist.splits.values() for record in split]
    return dict(Counter(record["presentation_intent"] for record in records if "presentation_intent" in record))


def _located(exclusions: Iterable[Exclusion], where: str) -> list[LocatedExclusion]:
    return [LocatedExclusion(reason=entry.reason, count=entry.count, where=where) for entry in exclusions]
