"""Carry a partition out: from a pooled data set and the positions of each site to one folder for each site.

Nothing is copied: every site's list names the pooled array. `partition.json` beside the sites says how they were made.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import medfl
from medfl import streams
from medfl.data.arrays import array_digest, open_array
from medfl.data.datalists import Datalist, Record, read_datalist, write_datalist
from medfl.data.folders import check_free, written_whole
from medfl.data.sites import CARD, GLOBAL
from medfl.errors import DataError, SettingsError, did_you_mean

Scheme = Callable[..., list[np.ndarray]]
"""Maps labels (n,), a number of sites, options and a generator ``rng`` to the positions of each site."""


@dataclass(frozen=True)
class Plan:
    """How a pooled data set becomes sites.

    Attributes:
        scheme: Name of the partition.
        sites: Number of sites, >= 1.
        seed: Seed of all draws, >= 0.
        options: Options of the scheme.
        test_fraction: Share of a site's images that become its own test set, in [0, 1).
        val_fraction: Share that becomes its validation set, in [0, 1); the sum of both is below 1.
        global_test: Whether the pooled test split becomes the server's test set.
    """

    scheme: str
    sites: int
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    test_fraction: float = 0.2
    val_fraction: float = 0.0
    global_test: bool = True

    def __post_init__(self) -> None:
        fractions = (self.test_fraction, self.val_fraction)
        if min(fractions) < 0 or sum(fractions) >= 1:
            raise SettingsError(
                f"expected test and validation fractions >= 0 with a sum below 1, got {fractions[0]} and {fractions[1]}"
            )
        if self.seed < 0:
            raise SettingsError(f"expected a seed >= 0, got {self.seed}")

    def names(self) -> list[str]:
        """The names of the sites, zero-padded so that they sort as numbers do."""
        width = max(2, len(str(self.sites)))
        return [f"site-{number:0{width}d}" for number in range(1, self.sites + 1)]


def holdout(labels: np.ndarray, fraction: float, rng: np.random.Generator, keep: int = 1) -> np.ndarray:
    """Choose a stratified share of images.

    Each class gives its share, rounded down; the classes with the largest remainders give one more (ties by chance)
    until the total is `fraction` of all, rounded to the nearest.

    Args:
        labels: Label of each image, shape (n,).
        fraction: Share to choose, in [0, 1).
        rng: Source of randomness.
        keep: Images that must remain, where there are that many.

    Returns:
        Mask of the chosen images, shape (n,), bool.
    """
    classes, inverse, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    total = max(0, min(math.floor(len(labels) * fraction + 0.5), len(labels) - keep))
    exact = sizes * (total / max(len(labels), 1))
    take = np.floor(exact + 1e-9).astype(np.int64)
    order = np.lexsort((rng.random(len(classes)), -np.round(exact - take, 9)))
    take[order[: total - take.sum()]] += 1
    chosen = np.zeros(len(labels), dtype=bool)
    for number, count in enumerate(take):
        chosen[rng.permutation(np.flatnonzero(inverse == number))[:count]] = True
    return chosen


def local_splits(records: Sequence[Record], plan: Plan, name: str) -> dict[str, list[Record]]:
    """Split one site's records into training, validation and test; keyed by (seed, site), whatever others have.

    Args:
        records: The site's records.
        plan: The plan.
        name: The site's name.
    """
    labels = np.array([record["label"] for record in records], dtype=np.int64)
    rng = np.random.default_rng(streams.seed_of(plan.seed, name, "holdout"))
    test = holdout(labels, plan.test_fraction, rng)
    rest = np.flatnonzero(~test)
    share = min(plan.val_fraction * len(labels) / max(len(rest), 1), 1.0)
    val = np.zeros_like(test)
    val[rest[holdout(labels[rest], share, rng)]] = True
    masks = {"training": ~test & ~val, "validation": val, "test": test}
    return {split: [records[row] for row in np.flatnonzero(mask).tolist()] for split, mask in masks.items()}


def partition(pool: Path, out: Path, plan: Plan, scheme: Scheme, *, force: bool = False) -> dict[str, Datalist]:
    """Distribute the training split of a pooled data set over sites and write their folders.

    Args:
        pool: The pooled data set, as written by ``medfl prep``.
        out: The folder to write; it is written whole or not at all.
        plan: How.
        scheme: The function of `plan.scheme`.
        force: Whether a partition that is there may be replaced.

    Returns:
        Name to data list of each site, and ``global`` where the server has a test set.

    Raises:
        DataError: If the pooled data set is wrong, or `out` may not be written.
        SettingsError: If the scheme does not take an option, or can't do what is asked.
    """
    check_free(out, force)
    if out.absolute() == pool.absolute() or out.absolute() in pool.absolute().parents:
        raise SettingsError(f"--out {out} would replace the pooled data set {pool}. Give another folder.")
    source = read_datalist(pool)
    array = pool / source.image_array
    _check_rows(source, len(open_array(array)))
    _, labels = source.rows_and_labels("training", f"pooled data set '{source.name}'")
    rng = np.random.default_rng(streams.seed_of(plan.seed, "partition", plan.scheme))
    parts = scheme(labels, plan.sites, **_accepted(scheme, plan), rng=rng)
    _check_parts(parts, len(labels), plan)
    records = source.splits["training"]
    splits = {
        name: local_splits([records[row] for row in rows], plan, name)
        for name, rows in zip(plan.names(), parts, strict=True)
    }
    if plan.global_test and source.splits["test"]:
        splits[GLOBAL] = {"test": source.splits["test"]}
    way = Path(os.path.relpath(array.absolute(), out.absolute() / "site")).as_posix()
    with written_whole(out, force) as folder:
        return write_sites(folder, source, splits, plan, way, array_digest(array))


def write_sites(
    folder: Path, source: Datalist, splits: Mapping[str, dict[str, list[Record]]], plan: Plan, way: str, digest: str
) -> dict[str, Datalist]:
    """Write the lists and cards of all sites, and ``partition.json``.

    Args:
        folder: Where to write.
        source: The pooled list; its facts are taken over.
        splits: Site, or ``global``, to splits to records.
        plan: How they were made.
        way: Path of the image array, relative to a site's folder.
        digest: SHA-256 of the image array.

    Returns:
        Name to data list.
    """
    facts = {"data": source.name, "array_sha256": digest, **_how(plan)}
    written, digests = {}, {}
    for name, site_splits in splits.items():
        place = folder / name
        place.mkdir()
        written[name] = replace(source, splits=site_splits, image_array=way)
        write_datalist(place, written[name])
        digests[name] = hashlib.sha256((place / "datalist.json").read_bytes()).hexdigest()
        _write_json(place / CARD, {"site": name, **card(written[name]), **facts})
    left_out = {split: len(source.splits.get(split, [])) for split in _left_out(source, plan, splits)}
    _write_json(folder / "partition.json", {**facts, "datalists_sha256": digests, "not_distributed": left_out})
    return written


def card(datalist: Datalist) -> dict[str, Any]:
    """Facts about a site's data: counts, class balance, versions, exclusions."""
    counts = datalist.counts()
    by_class = {label: sum(split[label] for split in counts.values()) for label in counts["training"]}
    total = max(sum(by_class.values()), 1)
    return {
        "counts": counts,
        "class_balance": {label: round(count / total, 4) for label, count in by_class.items()},
        "labels": datalist.labels,
        "licence": datalist.licence,
        "exclusions": [],
        "versions": {"medfl": medfl.__version__, "numpy": np.__version__, "python": platform.python_version()},
    }


def _how(plan: Plan) -> dict[str, Any]:
    return {"scheme": plan.scheme, "options": dict(plan.options)} | {
        key: getattr(plan, key) for key in ("sites", "seed", "test_fraction", "val_fraction", "global_test")
    }


def _left_out(source: Datalist, plan: Plan, splits: Mapping[str, Any]) -> list[str]:
    kept = {"training", "test"} if GLOBAL in splits else {"training"}
    return [split for split, records in source.splits.items() if records and split not in kept]


def _accepted(scheme: Scheme, plan: Plan) -> dict[str, Any]:
    """The options, if the scheme takes them."""
    known = [name for name in inspect.signature(scheme).parameters if name not in ("labels", "sites", "rng")]
    for name in plan.options:
        if name not in known:
            raise SettingsError(f"partition '{plan.scheme}' has no option '{name}'. {did_you_mean(name, known)}")
    return dict(plan.options)


def _check_rows(source: Datalist, images: int) -> None:
    for split in source.splits:
        rows, _ = source.rows_and_labels(split, f"pooled data set '{source.name}'")
        if len(rows) and not 0 <= rows.min() <= rows.max() < images:
            raise DataError(
                f"expected rows in 0..{images - 1} in split '{split}' of the pooled data set '{source.name}', got "
                f"{rows.min()}..{rows.max()}. The list and the array do not belong together: prepare them again."
            )


def _check_parts(parts: Sequence[np.ndarray], images: int, plan: Plan) -> None:
    together = np.sort(np.concatenate([np.asarray(part, dtype=np.int64) for part in parts]))
    if len(parts) != plan.sites or not np.array_equal(together, np.arange(images)):
        raise DataError(
            f"partition '{plan.scheme}' must put each of {images} images at exactly one of {plan.sites} sites; it "
            f"made {len(parts)} sites with {len(together)} images, {len(np.unique(together))} of them distinct. "
            "Its author can mend it."
        )


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
