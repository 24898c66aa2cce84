"""Choice of procedures, and the tests that they name: BCa intervals, seeds crossed with patients, splits."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from make_runs import make_run
from scipy import stats

from medfl.engine.runs.records import read_run
from medfl.objectives import Multiclass
from medfl_report.claims import check_claim, correct_claims
from medfl_report.compare import compare
from medfl_report.groups import UNKNOWN_RATIO, group_runs, split_ratio
from medfl_report.patient_tests import PatientTest, SiteModels, compare_methods, compare_models
from medfl_report.statistics import (
    mean_bootstrap,
    paired_t,
    resample_differences,
    resample_patients,
    runs_test,
    seeds_and_patients_test,
)
from medfl_report.statistics.procedures import (
    CORRECTED_T,
    EXACT_EXCHANGE,
    PATIENT_BOOTSTRAP,
    PROCEDURES,
    RANDOM_EXCHANGE,
    SEEDS_ALONE,
    SEEDS_AND_PATIENTS,
    TOO_FEW,
    TOO_FEW_SEEDS,
    choose_for_models,
    choose_over_runs,
    procedures_markdown,
)


def mean_score(predictions, targets, weights):
    return (predictions * weights).sum(0) / weights.sum(0)


def skewed(size, seed=0):
    return np.random.default_rng(seed).exponential(size=size)


# ---- choice


@pytest.mark.parametrize(
    ("patients", "procedure"),
    [
        ([5], TOO_FEW),
        ([3, 2], TOO_FEW),
        ([6], EXACT_EXCHANGE),
        ([5, 5], EXACT_EXCHANGE),
        ([11], RANDOM_EXCHANGE),
        ([199], RANDOM_EXCHANGE),
        ([200], PATIENT_BOOTSTRAP),
        ([200, 49], RANDOM_EXCHANGE),
        ([50] * 4, PATIENT_BOOTSTRAP),
    ],
)
def test_the_number_of_patients_chooses_the_test_of_models(patients, procedure):
    assert choose_for_models(patients) is procedure


@pytest.mark.parametrize(
    ("runs", "own_splits", "patients", "procedure"),
    [
        (2, False, True, TOO_FEW_SEEDS),
        (2, True, False, TOO_FEW_SEEDS),
        (3, False, True, SEEDS_AND_PATIENTS),
        (3, False, False, SEEDS_ALONE),
        (3, True, True, CORRECTED_T),
    ],
)
def test_runs_and_splits_choose_the_test_of_methods(runs, own_splits, patients, procedure):
    assert choose_over_runs(runs, own_splits, patients) is procedure
    assert procedure in PROCEDURES


def test_the_page_has_the_table_of_procedures():
    page = (Path(__file__).parents[2] / "docs" / "statistics.md").read_text(encoding="utf-8")
    assert procedures_markdown() in page, "run: python benchmarks/claim_rates.py --page docs/statistics.md"


# ---- bootstrap


def test_the_bca_interval_of_a_skewed_mean_is_scipys():
    values = skewed(40)
    ours = resample_patients(mean_score, torch.from_numpy(values)[:, None], torch.zeros(40), resamples=9000)
    theirs = stats.bootstrap((values,), np.mean, method="BCa", n_resamples=9000, rng=np.random.default_rng(1))
    interval, expected = ours.interval(), theirs.confidence_interval
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high), abs=0.03)
    centred = values - values.mean()
    skewness = (centred**3).sum() / (centred**2).sum() ** 1.5 / 6
    assert ours.acceleration == pytest.approx(skewness), "of a mean, the jackknife gives the sample's skewness"
    assert ours.variance == pytest.approx(values.var(ddof=1) / 40)


def test_images_of_a_patient_are_left_out_together():
    """Four copies of each patient's image: the jackknife, too, sees 30 patients."""
    values = skewed(30)
    single = resample_patients(mean_score, torch.from_numpy(values)[:, None], torch.zeros(30))
    copies = torch.from_numpy(values.repeat(4))[:, None]
    several = resample_patients(mean_score, copies, torch.zeros(120), patients=torch.arange(30).repeat_interleave(4))
    assert several.patients == 30
    assert (several.variance, several.acceleration) == pytest.approx((single.variance, single.acceleration))


def test_groups_of_patients_estimate_the_same_variance(monkeypatch):
    values = torch.from_numpy(skewed(1200))[:, None]
    grouped = resample_patients(mean_score, values, torch.zeros(1200), resamples=100)
    assert len(grouped.influences) == 400
    assert grouped.variance == pytest.approx(float(values.var()) / 1200, rel=0.2)


def test_the_p_value_is_at_least_that_of_students_t():
    differences = np.random.default_rng(3).normal(0.12, 1, size=300)
    pairs = [(torch.from_numpy(differences)[:, None], torch.zeros(300, 1))]
    resampled = resample_differences(mean_score, pairs, torch.zeros(300))
    expected = stats.ttest_1samp(differences, 0).pvalue
    assert expected <= resampled.p + 1e-12
    assert resampled.p == pytest.approx(expected, abs=0.02)
    far = resample_differences(mean_score, [(pairs[0][0] + 9, pairs[0][1])], torch.zeros(300))
    assert far.p == pytest.approx(stats.ttest_1samp(differences + 9, 0).pvalue)
    same = resample_differences(mean_score, [(pairs[0][0], pairs[0][0])], torch.zeros(300))
    assert same.p == 1.0


def test_without_resamples_there_is_only_the_jackknife():
    values = torch.from_numpy(skewed(300))[:, None]
    full, alone = (resample_patients(mean_score, values, torch.zeros(300), resamples=number) for number in (100, 0))
    assert len(alone.values) == 0
    assert alone.observed == full.observed
    assert np.array_equal(alone.influences, full.influences)
    assert alone.jackknife_p == full.jackknife_p == pytest.approx(stats.ttest_1samp(values[:, 0], 0).pvalue)


def test_the_mean_of_sites_adds_variances_with_their_weights():
    parts = [
        resample_patients(mean_score, torch.from_numpy(skewed(50, seed))[:, None], torch.zeros(50), seed=seed)
        for seed in (0, 1)
    ]
    mean = mean_bootstrap([(0.25, parts[0]), (0.75, parts[1])])
    assert mean.patients == 100
    assert mean.observed == pytest.approx(0.25 * parts[0].observed + 0.75 * parts[1].observed)
    assert mean.variance == pytest.approx(parts[0].variance / 16 + parts[1].variance * 9 / 16, rel=0.02)
    assert np.nanvar(mean.values) == pytest.approx(mean.variance, rel=0.15)


@pytest.mark.parametrize("size", [60, 300])
def test_exchange_and_bootstrap_know_the_variance_from_patients(size):
    rng = np.random.default_rng(size)
    labels = torch.from_numpy(rng.integers(2, size=size))
    models = [torch.from_numpy(rng.normal(size=size) + labels.numpy())[:, None] for _ in range(2)]
    pair = tuple(torch.cat([-logits, logits], dim=1).softmax(dim=1) for logits in models)
    score = partial(Multiclass(2).weighted_score, "accuracy")
    test = compare_models([(1.0, SiteModels(score, (pair,), labels, None, (0, 0), order_only=False))])
    gaps = [(side.argmax(1) == labels).double() for side in pair]
    assert test.variance == pytest.approx(float((gaps[0] - gaps[1]).var()) / size, rel=0.05)


# ---- runs


def test_seeds_and_patients_by_hand():
    """Each part alone is Student's t; together the squares of the half-widths add up."""
    differences = [0.1, 0.14, 0.06]
    alone, t = paired_t(differences), stats.t.isf(0.025, 199)
    assert seeds_and_patients_test(differences, 0.0, 200).interval.high == pytest.approx(alone.high)
    both = seeds_and_patients_test(differences, 0.03**2, 200)
    assert both.interval.high - 0.1 == pytest.approx(math.hypot(alone.high - 0.1, t * 0.03))
    assert both.p > runs_test(differences).p
    assert seeds_and_patients_test(differences, 0.0, 200).p == pytest.approx(runs_test(differences).p)
    touching = seeds_and_patients_test(differences, 0.03**2, 200, level=1 - both.p)
    assert touching.interval.low == pytest.approx(0, abs=1e-9)
    assert seeds_and_patients_test([0.1, 0.1], 0.01, 200).interval is None


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_few_claims_over_seeds_and_patients_are_false(seeds, ratio):
    rng, trials = np.random.default_rng([seeds, int(10 * ratio)]), 3000
    claims = 0
    for _ in range(trials):
        differences = rng.normal() + math.sqrt(ratio * seeds) * rng.normal(size=seeds)
        claims += seeds_and_patients_test(differences.tolist(), rng.chisquare(199) / 199, 200).p <= 0.05
    assert claims <= 0.05 * trials + 3.3 * math.sqrt(0.05 * 0.95 * trials)


def test_the_corrected_t_by_hand():
    """Ten splits with a tenth of the patients as test set: the variance has the factor 1/10 + 1/9."""
    differences = [0.01 * place for place in range(10)]
    plain, corrected = stats.ttest_1samp(differences, 0), runs_test(differences, ratio=1 / 9)
    statistic = plain.statistic * math.sqrt((1 / 10) / (1 / 10 + 1 / 9))
    assert corrected.p == pytest.approx(2 * stats.t.sf(statistic, 9))


def test_data_of_each_seed_are_splits_that_overlap(tmp_path):
    """Images of a run: 40 to test at each of three sites, and as many others as the run says."""
    same = [read_run(make_run(tmp_path / f"same{seed}", "fedavg", seed)) for seed in range(3)]
    apart = [read_run(make_run(tmp_path / f"own{seed}", "fedavg", seed, data=f"d{seed}")) for seed in range(3)]
    assert split_ratio(same) is None
    counts = apart[0].holdings.sites.values()
    tested, others = (
        sum(sum(numbers) for splits in counts for name, numbers in splits.items() if (name == "test") is is_test)
        for is_test in (True, False)
    )
    assert split_ratio(apart) == pytest.approx(tested / others if others else UNKNOWN_RATIO)
    folds = [read_run(make_run(tmp_path / f"f{k}", "fedavg", data=f"f{k}", fold=k, folds=5)) for k in range(5)]
    assert split_ratio(folds) == 0.25


def test_the_variance_from_patients_widens_the_interval_of_seeds():
    differences, patients = [0.1, 0.11, 0.12], PatientTest(0.2, 40, variance=0.08**2)
    method = compare_methods(differences, None, patients)
    assert method.over_runs.interval.low < 0 < paired_t(differences).low
    assert method.p == max(method.over_runs.p, 0.2)
    assert math.isnan(compare_methods([0.1, 0.12], None, patients).p), "two runs allow no claim"
    assert compare_methods(differences, 0.25, patients).over_runs == runs_test(differences, 0.25)


def test_a_page_of_claims_is_one_family(tmp_path):
    """Each of eight methods is better with p of about 0.02; of the eight together, none remains."""
    runs = [read_run(make_run(tmp_path / f"local{seed}", "local", seed, bundles=False)) for seed in range(3)]
    for method in ("fedprox", "fedavg", "fedadam", "fedbn", "ditto", "moon", "fedper", "fedrep"):
        for seed, gain in enumerate((0.04, 0.05, 0.07)):
            base = {site: runs[seed].score(site, "accuracy") + gain for site in runs[seed].sites}
            folder = make_run(tmp_path / f"{method}{seed}", method, seed, bundles=False, scores={"accuracy": base})
            runs.append(read_run(folder))
    pair = compare([run for run in runs if run.method in ("local", "fedavg")], ["accuracy"]).set_index("label")
    assert pair.loc["fedavg", "effect"] == "better (seeds only)"
    table = compare(runs, ["accuracy"]).set_index("label")
    assert table.loc["fedavg", "p_claim"] == pair.loc["fedavg", "p_claim"] < 0.05 < table.loc["fedavg", "p_holm"]
    assert (table["effect"].drop("local") == "n.s.").all()
    groups = group_runs(runs)
    claims = [check_claim(groups, "local_test", group.label, "local") for group in groups[1:]]
    assert {claim.effect for claim in claims} == {"holds (seeds only)"}
    assert {claim.effect for claim in correct_claims(claims)} == {"n.s."}
