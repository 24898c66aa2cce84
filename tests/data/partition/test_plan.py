"""Test partitions from a pooled data set to site folders: assignment, written files and completeness."""

from __future__ import annotations

import math

import numpy as np
import pytest
from pools import card_of, partition_of, rows_of, write_pool
from refusals import refused

from medfl.data.datalists import read_datalist
from medfl.data.leaks import find_leaks
from medfl.data.partition.by_column import by_site
from medfl.data.partition.class_skew import label_k
from medfl.data.partition.iid import iid
from medfl.data.partition.partition import partition
from medfl.data.partition.plan import PartitionPlan
from medfl.data.sites import load_global, load_sites, site_names
from medfl.errors import DataError, PluginError, SettingsError
from medfl.objectives import Multiclass
from medfl.records.datalist import Exclusion
from medfl.records.partition import LocatedExclusion

# ---- what is written


def test_a_partition_reads_back_with_every_image_once(pool, tmp_path):
    partition(pool, tmp_path / "D", PartitionPlan("iid", 7, val_fraction=0.1), iid)
    sites = load_sites(tmp_path / "D", Multiclass(3))
    assert list(sites) == [f"site-{number:02d}" for number in range(1, 8)]
    assert sorted(sum(rows_of(tmp_path / "D").values(), [])) == list(range(100))
    pooled = load_global(tmp_path / "D", Multiclass(3))
    assert pooled is not None
    assert len(pooled.test) == 20
    made = partition_of(tmp_path / "D")
    assert made.not_distributed == {"validation": 10}, "what stays out is written down"
    assert made.warnings == ("the 10 validation images of the pooled data set are at no site",)
    assert (made.settings.scheme, made.settings.seed, made.settings.sites) == ("iid", 0, 7)
    assert (made.settings.test, made.settings.test_fraction, made.settings.server_test) == ("fraction", 0.2, "official")
    assert made.settings.folds is None, "only settings that had an effect"
    card = card_of(tmp_path / "D", "site-03")
    assert sum(card.counts["training"].values()) == len(sites["site-03"].train)
    assert sum(card.class_balance.values()) == pytest.approx(1, abs=1e-3)
    assert (card.site, card.dataset, card.licence) == ("site-03", "toy", "CC0 1.0")
    assert (card.settings, card.warnings) == (made.settings, made.warnings)


def test_no_image_is_copied_and_the_two_folders_may_move_together(pool, tmp_path):
    partition(pool, tmp_path / "deep" / "D", PartitionPlan("iid", 2), iid)
    assert not list((tmp_path / "deep").rglob("*.npy"))
    before = load_sites(tmp_path / "deep" / "D", Multiclass(3))["site-01"].digest
    target = tmp_path / "elsewhere"
    target.mkdir()
    for name in ("P", "deep"):
        (tmp_path / name).rename(target / name)
    assert load_sites(target / "deep" / "D", Multiclass(3))["site-01"].digest == before


def test_sites_find_their_images_over_links(pool, tmp_path):
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "near").symlink_to(tmp_path / "far" / "away")
    (tmp_path / "linked").symlink_to(pool)
    for number, folder in enumerate((pool, tmp_path / "linked")):
        partition(folder, tmp_path / "near" / f"D{number}", PartitionPlan("iid", 2), iid)
        assert (
            sum(len(site.train) for site in load_sites(tmp_path / "near" / f"D{number}", Multiclass(3)).values()) == 80
        )


def test_a_seed_decides_every_byte(pool, tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        partition(pool, tmp_path / name, PartitionPlan("iid", 3, seed), iid)
    files = ("site-01/datalist.json", "site-01/site_card.json", "partition.json")
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert (tmp_path / "a" / files[0]).read_bytes() != (tmp_path / "c" / files[0]).read_bytes()


def test_a_hundred_sites_sort_as_numbers():
    names = PartitionPlan("iid", 100).names()
    assert (names[0], names[-1]) == ("site-001", "site-100")
    assert names == sorted(names)


def test_what_prep_left_out_is_on_every_card(tmp_path):
    pool = write_pool(tmp_path / "P", exclusions=(Exclusion(reason="unreadable", count=4),))
    partition(pool, tmp_path / "D", PartitionPlan("iid", 2), iid)
    expected = (LocatedExclusion(reason="unreadable", count=4, where="pooled data set"),)
    assert card_of(tmp_path / "D", "site-02").exclusions == expected
    assert partition_of(tmp_path / "D").exclusions == expected


# ---- schemes


def test_a_scheme_that_doubles_images_is_caught(pool, tmp_path):
    def doubles(labels, sites, *, rng):
        return [np.arange(10), np.arange(5, 20)]

    counts = {"images": 100, "positions": 25, "distinct": 20, "sites": 2}
    with refused(DataError, "invalid_positions", scheme="doubles", inside=True, **counts):
        partition(pool, tmp_path / "D", PartitionPlan("doubles", 2), doubles)
    assert not (tmp_path / "D").exists()


@pytest.mark.parametrize(
    ("result", "code", "fields"),
    [
        ([np.arange(100)], "wrong_site_count", {"expected": 2, "found": 1}),
        ([np.arange(50), np.arange(50, 101)], "invalid_positions", {"inside": False}),
        ({"a": np.arange(50), "b/c": np.arange(50, 100)}, "invalid_site_name", {"sites": ["a", "b/c"]}),
        ({"a": np.arange(50), "Global": np.arange(50, 100)}, "invalid_site_name", {"sites": ["Global", "a"]}),
        ({"a": np.arange(50), "server": np.arange(50, 100)}, "invalid_site_name", {"sites": ["a", "server"]}),
    ],
)
def test_a_scheme_that_breaks_the_rules_is_caught(pool, tmp_path, result, code, fields):
    def odd(labels, sites, *, rng):
        return result

    with refused(DataError, code, scheme="odd", **fields):
        partition(pool, tmp_path / "D", PartitionPlan("odd", 2), odd)


def test_options_become_what_the_scheme_declares(pool, tmp_path):
    def picky(labels, sites, *, size: int, fair: bool = True, rng) -> list[np.ndarray]:
        assert (size, fair) == (3, False)
        return iid(labels, sites, rng=rng)

    partition(pool, tmp_path / "D", PartitionPlan("picky", 2, options={"size": "3", "fair": "false"}), picky)
    with refused(SettingsError, "wrong_setting_type", scheme="picky", setting="size", found="three"):
        partition(pool, tmp_path / "E", PartitionPlan("picky", 2, options={"size": "three"}), picky)
    with refused(SettingsError, "missing_setting", scheme="picky", setting="size"):
        partition(pool, tmp_path / "E", PartitionPlan("picky", 2), picky)


def test_types_that_do_not_exist_are_the_plugins_fault(pool, tmp_path):
    def broken(labels, sites, *, size: Nowhere = 1, rng):  # noqa: F821
        return []

    with refused(PluginError, "unresolved_types", scheme="broken") as caught:
        partition(pool, tmp_path / "D", PartitionPlan("broken", 2), broken)
    assert "Nowhere" in caught.value.fields["reason"]


def test_what_a_scheme_leaves_is_counted_by_class(pool, tmp_path):
    partition(pool, tmp_path / "D", PartitionPlan("label_k", 2, options={"k": 1}), label_k)
    made = partition_of(tmp_path / "D")
    assert made.unassigned == {"2": 33}
    assert "the scheme left 33 training images at no site: 33 of class 2" in made.warnings
    assert card_of(tmp_path / "D", "site-01").unassigned == {"2": 33}


def test_sites_by_a_column(tmp_path):
    places = ["Nord", "Süd", "West"]

    def change(splits):
        for number, record in enumerate(splits["training"]):
            record["hospital"] = places[number % 7 % 3]

    pool = write_pool(tmp_path / "P", change)
    partition(pool, tmp_path / "D", PartitionPlan("by_site", column="hospital", server_test="none"), by_site)
    rows_by_site = rows_of(tmp_path / "D")
    assert list(rows_by_site) == ["Nord", "Sud", "West"]
    assert rows_by_site["Sud"] == [row for row in range(100) if row % 7 % 3 == 1]
    made = partition_of(tmp_path / "D")
    assert (made.settings.column, made.settings.sites) == ("hospital", 3)


def test_a_patient_at_two_sites_goes_to_one_with_a_warning(tmp_path):
    def change(splits):
        for number, record in enumerate(splits["training"]):
            record["hospital"] = "a" if number < 50 else "b"
        for number in (0, 1, 99):
            splits["training"][number]["subject_id"] = "one"

    pool = write_pool(tmp_path / "P", change)
    partition(pool, tmp_path / "D", PartitionPlan("by_site", column="hospital"), by_site)
    assert rows_of(tmp_path / "D")["a"] == [*range(50), 99]
    expected = "1 image at another site than the column 'hospital' states, because"
    assert any(line.startswith(expected) for line in partition_of(tmp_path / "D").warnings)


@pytest.mark.parametrize(
    ("plan", "scheme", "code", "fields"),
    [
        (PartitionPlan("by_site"), by_site, "missing_setting", {"setting": "column"}),
        (PartitionPlan("iid", 2, column="sex"), iid, "unsupported_setting", {"setting": "column", "found": "sex"}),
        (PartitionPlan("iid"), iid, "missing_setting", {"setting": "sites"}),
    ],
)
def test_a_column_goes_with_a_scheme_that_needs_one(pool, tmp_path, plan, scheme, code, fields):
    with refused(SettingsError, code, scheme=plan.scheme, **fields):
        partition(pool, tmp_path / "D", plan, scheme)


# ---- groups


def test_patients_and_identical_images_stay_together_everywhere(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (130, 4, 4), dtype=np.uint8)
    images[10:40] = images[40:70]

    def change(splits):
        for number, record in enumerate(splits["training"]):
            record["subject_id"] = f"p{number // 3}"

    pool = write_pool(tmp_path / "P", change, images)
    for policy in ({"val_fraction": 0.2}, {"test": "k_fold", "folds": 3, "server_test": "per_class", "per_class": 5}):
        partition(pool, tmp_path / "D", PartitionPlan("iid", 4, **policy), iid, force=True)
        rows_by_site = rows_of(tmp_path / "D")
        held = [record["image"] for record in read_datalist(tmp_path / "D" / "global").splits["test"]]
        everything = sorted(sum(rows_by_site.values(), []) + [row for row in held if row < 100])
        assert everything == list(range(100)), "nothing is lost"
        assert find_leaks(tmp_path / "D", site_names(tmp_path / "D")) == []


def test_identical_images_with_different_labels_are_noted(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (130, 4, 4), dtype=np.uint8)
    images[3], images[4] = images[0], images[1]  # labels 0 and 0, 1 and 1
    images[8] = images[6]  # labels 2 and 0
    partition(write_pool(tmp_path / "P", images=images), tmp_path / "D", PartitionPlan("iid", 2), iid)
    assert "2 training images are identical to others that have another label" in partition_of(tmp_path / "D").warnings


# ---- wrong plans

OUT_OF_RANGE = "setting_out_of_range"
FRACTIONS = ["test_fraction", "val_fraction"]


@pytest.mark.parametrize(
    ("change", "code", "fields"),
    [
        ({"options": {"alhpa": 1}}, "unknown_setting", {"scheme": "iid", "setting": "alhpa"}),
        ({"test_fraction": 0.6, "val_fraction": 0.4}, OUT_OF_RANGE, {"settings": FRACTIONS, "found": [0.6, 0.4]}),
        ({"test_fraction": -0.1}, OUT_OF_RANGE, {"settings": FRACTIONS, "found": [-0.1, 0.0]}),
        ({"test_fraction": math.nan}, OUT_OF_RANGE, {"settings": FRACTIONS, "found": [math.nan, 0.0]}),
        (
            {"test": "k_fold", "folds": 2, "val_fraction": 0.5},
            OUT_OF_RANGE,
            {"settings": FRACTIONS, "found": [0.5, 0.5]},
        ),
        ({"seed": -1}, OUT_OF_RANGE, {"setting": "seed", "minimum": 0, "found": -1}),
        ({"sites": 101}, "too_few_images", {"sites": 101, "found": 100}),
        ({"sites": 0}, OUT_OF_RANGE, {"setting": "sites", "minimum": 1, "found": 0}),
        ({"test": "kfold"}, "unknown_choice", {"what": "test", "choice": "kfold"}),
        ({"server_test": "oficial"}, "unknown_choice", {"what": "server_test", "choice": "oficial"}),
        ({"duplicates": "keep"}, "unknown_choice", {"what": "duplicates", "choice": "keep"}),
        ({"allow_leaks": ("pixel",)}, "unknown_choice", {"what": "kind of leak", "choice": "pixel"}),
        ({"test": "k_fold", "folds": 1}, OUT_OF_RANGE, {"setting": "fold", "fold": 0, "folds": 1}),
        ({"test": "k_fold", "fold": 5}, OUT_OF_RANGE, {"setting": "fold", "fold": 5, "folds": 5}),
        ({"per_class": 0}, OUT_OF_RANGE, {"setting": "per_class", "minimum": 1, "found": 0}),
        ({"server_test": "per_class", "per_class": 33}, "too_few_images", {"label": 1, "count": 33, "found": 33}),
        ({"test": "k_fold", "folds": 60}, "too_few_images", {"site": "site-01", "folds": 60, "found": 50}),
    ],
)
def test_wrong_plans_are_refused(pool, tmp_path, change, code, fields):
    with refused(SettingsError, code, **fields):
        partition(pool, tmp_path / "D", PartitionPlan(**{"scheme": "iid", "sites": 2, **change}), iid)
    assert not (tmp_path / "D").exists()


def test_a_misspelt_choice_is_refused_with_the_nearest_one():
    with refused(SettingsError, "unknown_choice") as caught:
        PartitionPlan("iid", 2, test="kfold")
    assert "Did you mean 'k_fold'?" in str(caught.value)


def test_a_list_that_does_not_fit_its_array_is_refused(tmp_path):
    pool = write_pool(tmp_path / "P", images=np.zeros((60, 4, 4), np.uint8))
    with refused(DataError, "row_outside_array", where="pooled data set 'toy', split 'training'", maximum=59):
        partition(pool, tmp_path / "D", PartitionPlan("iid", 2), iid)


def test_the_pooled_data_set_is_never_replaced(pool, tmp_path):
    (tmp_path / "link").symlink_to(pool)
    for out in (pool, tmp_path, pool / ".." / "P", tmp_path / "link"):
        with refused(DataError, "output_contains_input", path=str(out), input=str(pool)):
            partition(pool, out, PartitionPlan("iid", 2), iid, force=True)
    assert (pool / "images.npy").exists()


def test_a_pool_without_training_images_is_refused(tmp_path):
    pool = write_pool(tmp_path / "P", lambda splits: splits.pop("training"))
    for plan, scheme in ((PartitionPlan("iid", 2), iid), (PartitionPlan("by_site", column="ward"), by_site)):
        with refused(DataError, "no_images", dataset="toy", split="training"):
            partition(pool, tmp_path / "D", plan, scheme)
