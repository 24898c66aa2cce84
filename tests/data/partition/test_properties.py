"""Test properties of all partitions with random pools: units stay together, no image is lost, a seed decides."""

from __future__ import annotations

import dataclasses
from itertools import combinations

import numpy as np
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from medfl.data.datalists import Datalist
from medfl.data.partition.assign import distribute
from medfl.data.partition.by_column import by_site
from medfl.data.partition.class_skew import dirichlet_class, label_k
from medfl.data.partition.iid import iid
from medfl.data.partition.plan import PartitionPlan
from medfl.errors import SettingsError

SCHEMES = {scheme.__name__: scheme for scheme in (iid, dirichlet_class, label_k, by_site)}
CLASSES = 3

numbers = st.integers(0, 2**32 - 1)


@st.composite
def pools(draw) -> tuple[Datalist, list[bytes]]:
    """Draw a pool with groups, unknown patients, copies and a column, and the hash of each row.

    Patients and copies also extend into the test split, as in real releases.
    """
    rng = np.random.default_rng(draw(numbers))
    training, test = draw(st.integers(20, 70)), draw(st.integers(0, 15))
    total = training + test
    hashes = np.arange(total)
    copies = rng.integers(0, total, (draw(st.integers(0, 12)), 2))
    hashes[copies[:, 0]] = hashes[copies[:, 1]]
    patients = rng.integers(0, draw(st.integers(total, 4 * total)), total)
    records = [
        {"image": row, "label": int(rng.integers(CLASSES)), "ward": "ABC"[int(rng.integers(3))]} for row in range(total)
    ]
    for record, patient in zip(records, patients.tolist(), strict=True):
        if rng.random() < 0.8:
            record["subject_id"] = f"p{patient}"
    rng.shuffle(records)
    splits = {"training": records[:training], "validation": [], "test": records[training:]}
    return Datalist("toy", "images.npy", CLASSES, splits=splits), [b"%d" % value for value in hashes]


@st.composite
def plans(draw) -> PartitionPlan:
    scheme = draw(st.sampled_from(sorted(SCHEMES)))
    column = "ward" if scheme == "by_site" else None
    return PartitionPlan(
        scheme,
        None if column else draw(st.integers(1, 5)),
        seed=draw(numbers),
        options={"k": 1} if scheme == "label_k" else {},
        column=column,
        test=draw(st.sampled_from(["fraction", "k_fold", "none"])),
        test_fraction=draw(st.sampled_from([0.0, 0.2, 0.6])),
        folds=(folds := draw(st.integers(2, 4))),
        fold=draw(st.integers(0, folds - 1)),
        val_fraction=draw(st.sampled_from([0.0, 0.1, 0.3])),
        server_test=draw(st.sampled_from(["official", "per_class", "remainder", "none"])),
        per_class=draw(st.integers(1, 4)),
        duplicates="drop",
    )


def keys_of(records: list[dict], hashes: list[bytes]) -> set[tuple[str, object]]:
    """Return the patients and pixels of records, which must not be in two places."""
    subjects = {("subject", record["subject_id"]) for record in records if "subject_id" in record}
    return subjects | {("pixels", hashes[record["image"]]) for record in records}


@settings(max_examples=250, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(pools(), plans())
def test_units_stay_on_one_side_nothing_is_lost_and_a_seed_decides(pool, plan):
    source, hashes = pool
    try:
        sites, notes = distribute(source, hashes, plan, SCHEMES[plan.scheme])
    except SettingsError:  # too few units for the folds, for the images of each class, or for a remainder
        assume(False)
    event(f"{plan.scheme}, {plan.test}, {plan.server_test}")
    places = {(name, split): records for name, splits in sites.items() for split, records in splits.items()}
    for first, other in combinations(places, 2):
        assert not keys_of(places[first], hashes) & keys_of(places[other], hashes), f"{first} and {other} share a unit"

    dealt = sorted(record["image"] for records in places.values() for record in records)
    assert len(dealt) == len(set(dealt)), "an image is in two places"
    everything = {record["image"] for record in source.splits["training"]}
    if plan.server_test == "official":
        everything |= {record["image"] for record in source.splits["test"]}
    assert set(dealt) <= everything
    dropped = sum(entry.count for entries in notes.exclusions.values() for entry in entries)
    assert len(dealt) + sum(notes.unassigned.values()) + dropped == len(everything), "an image is lost"

    again, same_notes = distribute(source, hashes, plan, SCHEMES[plan.scheme])
    assert again == sites
    assert same_notes == notes


@settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(pools(), plans())
def test_folds_test_every_unit_of_a_site_once(pool, plan):
    source, hashes = pool
    tested: dict[str, list[int]] = {}
    held: dict[str, set[int]] = {}
    for fold in range(plan.folds):
        step = dataclasses.replace(plan, test="k_fold", fold=fold)
        try:
            sites, _ = distribute(source, hashes, step, SCHEMES[plan.scheme])
        except SettingsError:
            assume(False)
        for name in sites.keys() - {"global"}:
            tested.setdefault(name, []).extend(record["image"] for record in sites[name]["test"])
            held[name] = {record["image"] for part in sites[name].values() for record in part}
    for name, rows in tested.items():
        assert sorted(rows) == sorted(held[name])
