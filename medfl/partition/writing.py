"""What a partition writes: a data list and a card for each site, and ``partition.json``."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import medfl
from medfl.data.arrays import FEATURE_MEAN, FEATURE_STD, open_array
from medfl.data.datalists import FILE, INTENT, Datalist, Record, write_datalist
from medfl.data.sites import CARD
from medfl.errors import DataError
from medfl.types import NO_SITES, PUBLIC

if TYPE_CHECKING:
    from medfl.partition.plan import PartitionPlan


POOLED = "pooled data set"
"""Where an exclusion was made, if it was made before the partition."""


@dataclass(frozen=True)
class Pool:
    """A pooled data set as it is written down for sites.

    Attributes:
        datalist: Its list; the facts in it are taken over.
        way: Path of its image array, relative to a site's folder.
        digest: SHA-256 of the array.
        path: Path of the array now.
        mask_way: Path of its array of masks; empty without masks.
        mask_digest: SHA-256 of that.
    """

    datalist: Datalist
    way: str
    digest: str
    path: Path
    mask_way: str = ""
    mask_digest: str = ""


@dataclass
class Notes:
    """What there is to say about a partition.

    Attributes:
        warnings: Sentences.
        unassigned: Class to number of training images that are at no site and not in the server's test set.
        allowed_leaks: Sentences on leaks that were allowed by name.
        exclusions: Site to what was left out there: ``reason`` and ``count``.
    """

    warnings: list[str] = field(default_factory=list)
    unassigned: dict[str, int] = field(default_factory=dict)
    allowed_leaks: list[str] = field(default_factory=list)
    exclusions: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


def write_sites(
    folder: Path,
    pool: Pool,
    splits: Mapping[str, dict[str, list[Record]]],
    plan: PartitionPlan,
    notes: Notes | None = None,
    public: Pool | None = None,
) -> dict[str, Datalist]:
    """Write the lists and cards of all sites, and ``partition.json``.

    Args:
        folder: Where to write.
        pool: What the sites' images are of.
        splits: Site, ``global`` or ``public`` to splits to records.
        plan: How they were made.
        notes: What else there is to say; by default nothing.
        public: What the public images are of; None means `pool`.

    Returns:
        Name to data list.
    """
    notes = notes or Notes()
    other = {} if public is None else {"public_data": public.datalist.name}
    scale = feature_scale(open_array(pool.path), splits)
    facts = {"data": pool.datalist.name, **_how(plan, splits), **other, **_said(notes)}
    written: dict[str, Datalist] = {}
    digests: dict[str, Any] = {}
    for name, site_splits in splits.items():
        place, origin = folder / name, public if name == PUBLIC and public is not None else pool
        place.mkdir()
        written[name] = replace(origin.datalist, splits=site_splits, image_array=origin.way, mask_array=origin.mask_way)
        if origin is pool:
            written[name].extra = written[name].extra | scale
        write_datalist(place, written[name])
        digests |= {
            f"{name}/{FILE}": hashlib.sha256((place / FILE).read_bytes()).hexdigest(),
            os.path.normpath(f"{name}/{origin.way}"): origin.digest,
        }
        if origin.mask_way:
            digests[os.path.normpath(f"{name}/{origin.mask_way}")] = origin.mask_digest
        mine = [{**entry, "where": name} for entry in notes.exclusions.get(name, [])]
        exclusions = {"array_sha256": origin.digest, "exclusions": [*_exclusions_before(origin.datalist), *mine]}
        _write_json(place / CARD, {"site": name, **card(written[name]), **exclusions, **facts})
    at_sites = [{**entry, "where": name} for name, entries in notes.exclusions.items() for entry in entries]
    ends = {"exclusions": [*_exclusions_before(pool.datalist), *at_sites], "files_sha256": digests}
    _write_json(folder / "partition.json", {**facts, **ends, "not_distributed": not_distributed(pool.datalist, plan)})
    return written


def feature_scale(array: np.ndarray, splits: Mapping[str, dict[str, list[Record]]]) -> dict[str, list[float]]:
    """Compute the mean and standard deviation of each column over the training rows of all sites.

    Test and validation rows take no part. A column that has one value in all training rows gets the standard deviation
    1, so that dividing by it is safe.

    Args:
        array: The pooled array; only vectors, of shape (N, F), have such a scale.
        splits: Maps each site, ``global`` and ``public`` to its splits and their records.

    Returns:
        `FEATURE_MEAN` and `FEATURE_STD` with F numbers each; empty for images and without training rows.
    """
    records = [record for name, split in splits.items() if name not in NO_SITES for record in split.get("training", [])]
    if array.ndim != 2 or not records:
        return {}
    top = float(np.iinfo(array.dtype).max) if array.dtype.kind == "u" else 1.0
    rows = array[sorted({int(record["image"]) for record in records})].astype(np.float64) / top
    deviations = np.where(np.ptp(rows, axis=0) == 0, 1.0, rows.std(axis=0))
    return {FEATURE_MEAN: rows.mean(axis=0).tolist(), FEATURE_STD: deviations.tolist()}


def card(datalist: Datalist) -> dict[str, Any]:
    """Facts about a site's data: counts, class balance, what DICOM files are for, licence, versions."""
    counts = datalist.counts()
    by_class = totals(datalist)
    total = max(sum(by_class), 1)
    records = [record for split in datalist.splits.values() for record in split]
    intents = Counter(record[INTENT] for record in records if INTENT in record)
    return {
        "counts": counts,
        "class_balance": {str(label): round(count / total, 4) for label, count in enumerate(by_class)},
        "labels": datalist.labels,
        **({INTENT: dict(sorted(intents.items()))} if intents else {}),
        "licence": datalist.licence,
        "versions": {"medfl": medfl.__version__, "numpy": np.__version__, "python": platform.python_version()},
    }


def totals(datalist: Datalist) -> list[int]:
    """Images of each class over all splits."""
    counts = datalist.counts().values()
    return [sum(split[str(label)] for split in counts) for label in range(datalist.num_classes)]


def not_distributed(source: Datalist, plan: PartitionPlan) -> dict[str, int]:
    """Splits of the pooled data set that are nowhere in the partition, to their sizes."""
    kept = {"training", "test"} if "official" in (plan.global_test, plan.test) else {"training"}
    kept |= {"validation"} if plan.public == "validation" else set()
    return {split: len(records) for split, records in source.splits.items() if records and split not in kept}


def _how(plan: PartitionPlan, splits: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a plan that had an effect."""
    keys = {
        "fraction": ("test_fraction",),
        "class_balanced": ("test_fraction",),
        "k_fold": ("folds", "fold"),
        "per_class": ("per_class",),
        "official": ("duplicates", "allow_leaks"),
        "validation": ("public", "public_test_fraction"),
    }
    chosen = [name for policy in (plan.global_test, plan.public) for name in keys.get(policy, ())]
    chosen += keys["official"] if plan.public != "none" else ()
    used = ["seed", "test", *keys.get(plan.test, ()), "val_fraction", "global_test", *chosen]
    column = {} if plan.column is None else {"column": plan.column}
    stratify = {"stratify": list(plan.stratify)} if plan.stratify else {}
    return {
        "scheme": plan.scheme,
        "options": dict(plan.options),
        **column,
        "sites": sum(name not in NO_SITES for name in splits),
        **{key: getattr(plan, key) for key in used},
        **stratify,
    }


def _said(notes: Notes) -> dict[str, Any]:
    return {"unassigned": notes.unassigned, "allowed_leaks": notes.allowed_leaks, "warnings": notes.warnings}


def _exclusions_before(source: Datalist) -> list[dict[str, Any]]:
    """What was left out of the pooled data set when it was prepared."""
    exclusions = source.extra.get("exclusions", [])
    if not isinstance(exclusions, list) or not all(isinstance(entry, dict) for entry in exclusions):
        raise DataError(
            "wrong_type",
            f"expected a list of objects in 'exclusions' of the pooled data set '{source.name}'. Prepare it again.",
            key="exclusions",
            dataset=source.name,
        )
    return [{**entry, "where": POOLED} for entry in exclusions]


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def warnings_before(source: Datalist) -> list[str]:
    """What the preparation of the pooled data set wants said, wherever its images go."""
    sentences = source.extra.get("warnings", [])
    return [str(sentence) for sentence in sentences] if isinstance(sentences, list) else []
