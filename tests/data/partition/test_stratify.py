"""Test folds and fractions that are stratified by labels and a column of the data list, such as the scanning centre."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pools import partition_of, rows_of, write_pool
from refusals import refused
from typer.testing import CliRunner

from medfl.cli.main import app
from medfl.data.datalists import read_datalist
from medfl.data.partition.by_column import by_site
from medfl.data.partition.holdouts import split_site_records
from medfl.data.partition.iid import iid
from medfl.data.partition.partition import partition
from medfl.data.partition.plan import PartitionPlan
from medfl.data.partition.shares import holdout
from medfl.data.partition.units import strata_by_columns
from medfl.errors import DataError, SettingsError
from medfl.records.datalist import CaseRecord
from medfl_datasets.abide.tables import PHENOTYPE_FILE, read_phenotypes

CLASSES = 3

QUICK = settings(
    max_examples=60, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), database=None
)


@st.composite
def cohorts(draw) -> list[CaseRecord]:
    """Draw subjects of centres of different sizes.

    Some centres have fewer subjects than there are folds; some subjects have several images.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    subjects, centres = draw(st.integers(8, 80)), draw(st.integers(1, 12))
    skew = rng.dirichlet(np.ones(centres))
    several = draw(st.booleans())
    records = [
        {"label": int(rng.integers(CLASSES)), "subject_id": f"p{who}", "centre": f"c{rng.choice(centres, p=skew)}"}
        for who in range(subjects)
    ]
    images = [dict(record) for record in records for _ in range(int(rng.integers(1, 4)) if several else 1)]
    rng.shuffle(images)
    return [{"image": row, **record} for row, record in enumerate(images)]


def folds_of(records: list[CaseRecord], folds: int, columns: tuple[str, ...] = ("centre",)) -> list[dict]:
    """Return the splits of each fold."""
    plan = PartitionPlan("iid", 1, test="k_fold", folds=folds, val_fraction=0.1, stratify=columns)
    strata = strata_by_columns(records, columns)
    plans = [dataclasses.replace(plan, fold=fold) for fold in range(folds)]
    return [split_site_records(records, fold_plan, "site-01", strata=strata) for fold_plan in plans]


def subjects(records: list[CaseRecord], *keys: str) -> Counter:
    """Count subjects by their entries under some keys."""
    people = {record["subject_id"]: tuple(record[key] for key in keys) for record in records}
    return Counter(people.values())


def spread(folds: list[dict], *keys: str) -> int:
    """Return the largest difference between folds in the number of tested subjects with the same entries."""
    counts = [subjects(splits["test"], *keys) for splits in folds]
    return max(int(np.ptp([count[kind] for count in counts])) for kind in set().union(*counts))


@QUICK
@given(cohorts(), st.integers(2, 5))
def test_folds_are_as_alike_as_counts_allow(records, folds):
    all_splits = folds_of(records, folds)
    tested = sorted(record["image"] for splits in all_splits for record in splits["test"])
    assert tested == list(range(len(records))), "every image is tested exactly once"
    for splits in all_splits:
        people = [{record["subject_id"] for record in part} for part in splits.values()]
        assert sum(map(len, people)) == len(set.union(*people)), "no subject is on two sides"
    assert spread(all_splits) <= 1, "folds are equally large"
    assert spread(all_splits, "label") <= 1
    assert spread(all_splits, "label", "centre") <= 1, "of each class, a centre's subjects are spread evenly"
    assert spread(all_splits, "centre") <= CLASSES


@QUICK
@given(cohorts(), st.sampled_from([0.1, 0.2, 0.5]), st.integers(0, 99))
def test_a_share_takes_of_each_class_its_share_at_each_centre(records, fraction, seed):
    labels, strata = np.array([record["label"] for record in records]), strata_by_columns(records, ["centre"])
    chosen = holdout(labels, fraction, np.random.default_rng(seed), strata=strata)
    assert chosen.sum() == np.floor(len(records) * fraction + 0.5)
    for label in np.unique(labels):
        mine = labels == label
        taken = chosen[mine].sum()
        assert abs(taken - mine.sum() * fraction) <= 1
        for stratum in np.unique(strata[mine]):
            cell = mine & (strata == stratum)
            assert abs(chosen[cell].sum() - cell.sum() * taken / mine.sum()) < 1


def test_without_columns_a_centre_may_well_be_in_one_fold_only():
    """This is the reason for the option: labels alone do not spread the centres."""
    records = [
        {"image": row, "label": row % 2, "subject_id": f"p{row}", "centre": f"c{row // 10}"} for row in range(100)
    ]
    plans = [PartitionPlan("iid", 1, test="k_fold", folds=5, fold=fold) for fold in range(5)]
    assert spread([split_site_records(records, plan, "site-01") for plan in plans], "centre") > 2
    assert spread(folds_of(records, 5), "centre") == 0, "ten subjects of each centre, five of each class"


def test_the_centres_of_the_real_abide_are_in_every_fold():
    """871 subjects of 17 centres in four regions; by labels alone a centre's folds differ by up to 14 subjects."""
    path = Path(os.environ.get("MEDFL_DATA", ".")) / "abide" / PHENOTYPE_FILE
    if "MEDFL_DATA" not in os.environ or not path.is_file():
        pytest.skip(f"needs the real abide/{PHENOTYPE_FILE} in the folder that MEDFL_DATA names")
    people = read_phenotypes(path).subjects
    for region in sorted({person.site for person in people}):
        records = [
            {"image": row, "label": person.label, "subject_id": person.subject_id, "centre": person.centre}
            for row, person in enumerate(person for person in people if person.site == region)
        ]
        all_splits = folds_of(records, 5)
        assert spread(all_splits) <= 1
        assert spread(all_splits, "label") <= 1
        assert spread(all_splits, "label", "centre") <= 1
        assert all(set(subjects(splits["test"], "centre")) == set(subjects(records, "centre")) for splits in all_splits)


def test_the_same_seed_gives_the_same_folds_and_another_site_others():
    rng = np.random.default_rng(0)
    records = [{"image": row, "label": row % 2, "centre": f"c{rng.integers(4)}"} for row in range(40)]
    strata = strata_by_columns(records, ["centre"])
    plan = PartitionPlan("iid", 1, test="k_fold", stratify=("centre",))
    first, again, other = (
        split_site_records(records, plan, name, strata=strata)["test"] for name in ("site-01", "site-01", "site-02")
    )
    assert first == again != other


def test_several_columns_count_in_combination():
    entries = [("A", 1), ("A", 2), ("B", 1), ("A", 1), ("B", 1)]
    records = [{"image": row, "centre": centre, "sex": sex} for row, (centre, sex) in enumerate(entries)]
    assert strata_by_columns(records, ["centre", "sex"]).tolist() == [0, 1, 2, 0, 2]
    assert strata_by_columns(records, ["centre"]).tolist() == [0, 0, 1, 0, 1]
    assert strata_by_columns([], ["centre"]).tolist() == []


# ---- in a partition


def wards(splits: dict) -> None:
    for number, record in enumerate(splits["training"]):
        record["hospital"] = "ab"[number % 2]
        record["ward"] = f"w{number // 2 % 5}"


def test_a_partition_stratifies_each_site_and_says_so(tmp_path):
    pool = write_pool(tmp_path / "P", wards)
    plan = PartitionPlan("by_site", column="hospital", test="k_fold", folds=2, stratify=("ward",), server_test="none")
    partition(pool, tmp_path / "D", plan, by_site)
    for site in rows_of(tmp_path / "D"):
        counts = Counter(record["ward"] for record in read_datalist(tmp_path / "D" / site).splits["test"])
        assert sorted(counts) == ["w0", "w1", "w2", "w3", "w4"]
        assert max(counts.values()) - min(counts.values()) <= CLASSES
    assert partition_of(tmp_path / "D").settings.stratify == ("ward",)
    partition(pool, tmp_path / "E", PartitionPlan("iid", 2), iid)
    assert partition_of(tmp_path / "E").settings.stratify == ()


def test_both_folds_of_a_partition_have_alike_counts_of_each_class_in_each_ward(tmp_path):
    pool = write_pool(tmp_path / "P", wards)
    counts = []
    for fold in (0, 1):
        plan = PartitionPlan("iid", 1, test="k_fold", folds=2, fold=fold, stratify=("ward",), server_test="none")
        partition(pool, tmp_path / f"D{fold}", plan, iid)
        tested = read_datalist(tmp_path / f"D{fold}" / "site-01").splits["test"]
        counts.append(Counter((record["label"], record["ward"]) for record in tested))
    first, other = counts
    assert (first + other).total() == 100
    assert max(abs(first[kind] - other[kind]) for kind in first + other) <= 1


def test_a_study_that_stratifies_takes_no_partition_that_does_not(tmp_path):
    pytest.importorskip("medfl_studies")
    from medfl_studies.checks import find_plan_difference

    pool = write_pool(tmp_path / "P", wards)
    plain, by_ward = PartitionPlan("iid", 2, test="k_fold"), PartitionPlan("iid", 2, test="k_fold", stratify=("ward",))
    for name, plan, other in (("D", plain, by_ward), ("E", by_ward, plain)):
        partition(pool, tmp_path / name, plan, iid)
        settings = partition_of(tmp_path / name).settings
        assert find_plan_difference(plan, settings) is None
        assert (find_plan_difference(other, settings) or "").startswith("stratify was")


def test_the_command_stratifies_by_the_columns_that_it_is_given(tmp_path):
    pool = write_pool(tmp_path / "P", wards)
    words = ["partition", str(pool), "--out", str(tmp_path / "D"), "--sites", "2", "--stratify", "ward"]
    done = CliRunner().invoke(app, [*words, "--stratify", "hospital"])
    assert done.exit_code == 0, done.output
    assert partition_of(tmp_path / "D").settings.stratify == ("ward", "hospital")


def test_a_column_that_is_not_there_or_not_whole_is_refused(tmp_path):
    pool = write_pool(tmp_path / "P", wards)
    with refused(DataError, "missing_column", column="wrad"):
        partition(pool, tmp_path / "D", PartitionPlan("iid", 2, stratify=("wrad",)), iid)
    assert not (tmp_path / "D").exists()

    def blank(splits):
        wards(splits)
        splits["training"][3]["ward"] = " "

    with refused(DataError, "missing_value", column="ward", count=1, total=100):
        partition(write_pool(tmp_path / "Q", blank), tmp_path / "D", PartitionPlan("iid", 2, stratify=("ward",)), iid)
    with refused(SettingsError, "wrong_setting_type", setting="stratify", found="centre"):
        PartitionPlan("iid", 2, stratify="centre")
