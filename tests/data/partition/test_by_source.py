"""Test the partition scheme `by_source`: several small sites from each data set."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pools import partition_of, rows_of, write_pool
from refusals import refused

from medfl.data.datalists import read_datalist
from medfl.data.partition.by_column import by_source
from medfl.data.partition.partition import partition
from medfl.data.partition.plan import PartitionPlan
from medfl.errors import DataError, SettingsError
from medfl.plugins import load_plugins

OUT_OF_RANGE = "setting_out_of_range"
BLOOD = {
    "Matek": (79, 424, 3937, 1789, 8593, 78),
    "Acevedo": (1218, 3117, 1214, 1420, 3279, 1551, 2348),
    "Bodzas": (1023, 1017, 3046, 2040, 3300, 510),
}
"""Maps each source to the number of images of each of its classes."""


def pooled(sources: dict[str, tuple[int, ...]]) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and sources in a random order."""
    pairs = [(label, name) for name, sizes in sources.items() for label, n in enumerate(sizes) for _ in range(n)]
    order = np.random.default_rng(0).permutation(len(pairs))
    return np.array([pair[0] for pair in pairs])[order], np.array([pair[1] for pair in pairs])[order]


def drawn(sources, seed=0, **options):
    labels, values = pooled(sources)
    return labels, values, by_source(labels, values=values, rng=np.random.default_rng(seed), **options)


def check(labels, values, parts, classes, per_class):
    """Check that all ranges hold, sites are disjoint, and each site has images of a single source only."""
    together = np.concatenate(list(parts.values()))
    assert len(np.unique(together)) == len(together)
    for name, part in parts.items():
        assert np.array_equal(part, np.sort(part))
        assert set(values[part]) == {name.rsplit("-", 1)[0]}
        _, counts = np.unique(labels[part], return_counts=True)
        assert classes[0] <= len(counts) <= classes[1]
        assert per_class[0] <= counts.min() <= counts.max() <= per_class[1]


@pytest.mark.parametrize("seed", range(5))
def test_five_sites_of_each_of_three_sources(seed):
    """FedSDC's setting NIID-2; Matek's basophils and erythroblasts suffice for three of its five sites each."""
    labels, values, parts = drawn(BLOOD, seed)
    assert list(parts) == [f"{name}-{number:02d}" for name in ("Acevedo", "Bodzas", "Matek") for number in range(1, 6)]
    check(labels, values, parts, (5, 6), (20, 60))
    again = drawn(BLOOD, seed)[2]
    assert all(np.array_equal(parts[name], again[name]) for name in parts)
    assert not all(np.array_equal(parts[name], part) for name, part in drawn(BLOOD, seed + 99)[2].items())


def test_numbers_are_uniform_where_there_are_enough_images():
    labels, values = pooled({"A": (400,) * 8})
    generator, classes, counts = np.random.default_rng(0), [], []
    for _ in range(120):
        for part in by_source(labels, values=values, rng=generator).values():
            sizes = np.bincount(labels[part], minlength=8)
            classes.append(sizes > 0)
            counts += sizes[sizes > 0].tolist()
    assert np.mean(np.sum(classes, axis=1)) == pytest.approx(5.5, abs=0.1)  # 600 draws of 5 or 6
    assert np.mean(classes, axis=0) == pytest.approx(np.full(8, 5.5 / 8), abs=0.085)  # 4.5 standard errors
    assert (min(counts), max(counts)) == (20, 60)
    assert np.mean(counts) == pytest.approx(40, abs=1)  # 3300 draws from 20 to 60: standard error 0.2
    assert np.std(counts) == pytest.approx(np.sqrt((41**2 - 1) / 12), rel=0.05)


def test_no_site_and_no_image_comes_first():
    """Two classes of 100 images suffice for all five sites, but not for 60 images each."""
    labels, values = pooled({"A": (100, 100)})
    options = {"min_classes": 2, "max_classes": 2, "min_per_class": 10, "max_per_class": 60}
    generator = np.random.default_rng(0)
    draws = [by_source(labels, values=values, rng=generator, **options) for _ in range(400)]
    sizes = np.array([[len(part) for part in parts.values()] for parts in draws])
    assert sizes.mean(axis=0) == pytest.approx(np.full(5, sizes.mean()), rel=0.12)
    drawn_often = np.bincount(np.concatenate([part for parts in draws for part in parts.values()]), minlength=200)
    share = sizes.sum() / (400 * 200)
    assert np.abs(drawn_often / 400 - share).max() < 4.5 * np.sqrt(share * (1 - share) / 400)


@settings(max_examples=100, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=6),
    *(st.integers(1, 4), st.integers(1, 4), st.integers(0, 3), st.integers(1, 6), st.integers(0, 6)),
    st.integers(0, 2**32 - 1),
)
def test_ranges_hold_whenever_they_can(sizes, sites, low, more, least, above, seed):
    """A source gives `sites` sites `low` classes each if its portions of `least` images suffice; otherwise an error.

    Portions suffice if assigning them to the sites in turn, class by class, gives each site enough.
    """
    options = {"sites_per_source": sites, "min_classes": low, "max_classes": low + more}
    options |= {"min_per_class": least, "max_per_class": least + above}
    portions = sum(min(size // least, sites) for size in sizes)
    if portions < sites * low:
        with refused(SettingsError, "too_few_images", source="A", expected=sites * low, found=portions):
            drawn({"A": tuple(sizes)}, seed, **options)
    else:
        check(*drawn({"A": tuple(sizes)}, seed, **options), (low, low + more), (least, least + above))


@pytest.mark.parametrize(
    ("options", "code", "fields"),
    [
        ({"sites_per_source": 20}, "too_few_images", {"source": "Matek", "expected": 100}),
        (
            {"min_classes": 7, "max_classes": 7},
            "too_few_images",
            {"source": "Bodzas", "expected": 35, "found": 30},
        ),
        ({"min_classes": 7}, OUT_OF_RANGE, {"settings": ["min_classes", "max_classes"], "found": [7, 6]}),
        ({"min_per_class": 61}, OUT_OF_RANGE, {"settings": ["min_per_class", "max_per_class"], "found": [61, 60]}),
        ({"min_per_class": 0}, OUT_OF_RANGE, {"settings": ["min_per_class", "max_per_class"], "found": [0, 60]}),
        ({"sites_per_source": 0}, OUT_OF_RANGE, {"setting": "sites_per_source", "minimum": 1, "found": 0}),
        ({"sites": 12}, OUT_OF_RANGE, {"setting": "sites", "expected": 15, "found": 12}),
    ],
)
def test_what_can_not_be_done_is_refused(options, code, fields):
    with refused(SettingsError, code, **fields):
        drawn(BLOOD, **options)
    with refused(DataError, "missing_value", count=1, total=2):
        by_source(np.zeros(2), values=np.array(["a", ""]), rng=np.random.default_rng(0))


def test_the_rest_is_the_servers_test_set(tmp_path):
    def change(splits):
        for number, record in enumerate(splits["training"]):
            record["source"] = ("one", "two")[number % 2]

    pool = write_pool(tmp_path / "P", change)
    options = {"sites_per_source": "2", "min_classes": "1", "max_classes": "2"}
    options |= {"min_per_class": "3", "max_per_class": "5"}
    plan = PartitionPlan("by_source", options=options, column="source", test="none", server_test="remainder")
    partition(pool, tmp_path / "D", plan, load_plugins().partition("by_source"))
    rows = rows_of(tmp_path / "D")
    assert list(rows) == ["one-01", "one-02", "two-01", "two-02"]
    assert all(row % 2 == (name[:3] == "two") for name, held in rows.items() for row in held)
    assert all(3 <= len(held) <= 10 for held in rows.values())
    tested = {record["image"] for record in read_datalist(tmp_path / "D" / "global").splits["test"]}
    assert tested == set(range(100)) - set(sum(rows.values(), []))
    made = partition_of(tmp_path / "D")
    assert (made.settings.column, made.settings.options, made.unassigned) == ("source", options, {})
