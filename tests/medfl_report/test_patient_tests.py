"""ExchangeDistribution tests: closed forms, invariances, and what comparisons make of them."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from make_runs import make_run
from scipy.stats import binomtest, permutation_test

from medfl.engine.runs.records import read_run
from medfl.metrics import survival
from medfl.objectives import Multiclass, Survival
from medfl_report.claims import check_claim
from medfl_report.compare import compare
from medfl_report.groups import group_runs
from medfl_report.patient_tests import MethodTest, PatientTest
from medfl_report.predictions import read_prediction_sets
from medfl_report.site_comparison import BETTER, NO_CLEAR_DIFFERENCE, TOO_FEW_PATIENTS, compare_sites, pair_up
from medfl_report.statistics import (
    ExchangeDistribution,
    Interval,
    RunsTest,
    can_decide,
    combine_p,
    exchange_models,
    mean_exchange,
    resample_differences,
    standardise,
)
from medfl_report.statistics import exchange as exchanges


def answers(right: list[int]) -> torch.Tensor:
    """Probabilities of two classes that are right (1) or wrong (0) for images of class 0."""
    return torch.tensor([[0.9, 0.1] if is_right else [0.1, 0.9] for is_right in right], dtype=torch.float64)


def accuracy(a, b, patients=None, **options):
    labels = torch.zeros(len(a), dtype=torch.int64)
    score = partial(Multiclass(2).weighted_score, "accuracy")
    return exchange_models(score, [(answers(a), answers(b))], labels, patients, **options)


def random_models(classes=3, images=9, seed=0):
    rng = np.random.default_rng(seed)
    labels = torch.from_numpy(rng.integers(classes, size=images))
    a, b = (torch.from_numpy(rng.normal(size=(images, classes))).softmax(dim=1) for _ in range(2))
    return a, b, labels


# ---- the test


@pytest.mark.parametrize(("better", "worse"), [(6, 0), (5, 1), (7, 2), (3, 3)])
def test_for_an_accuracy_it_is_the_sign_test_of_the_images_on_which_models_differ(better, worse):
    """McNemar's exact test."""
    a = [1] * better + [0] * worse + [1]
    b = [0] * better + [1] * worse + [1]
    assert accuracy(a, b).p == pytest.approx(binomtest(better, better + worse).pvalue)


def test_for_a_mean_it_is_the_paired_permutation_test_of_scipy():
    rng = np.random.default_rng(1)
    a, b = rng.normal(0.4, 1, size=(2, 8))
    mean = lambda predictions, targets, weights: (predictions * weights).sum(0) / weights.sum(0)  # noqa: E731
    ours = exchange_models(mean, [(torch.from_numpy(a)[:, None], torch.from_numpy(b)[:, None])], torch.zeros(8))
    theirs = permutation_test((a, b), lambda x, y: np.mean(x - y), permutation_type="samples", n_resamples=np.inf)
    assert ours.exhaustive
    assert ours.p == pytest.approx(theirs.pvalue)


@pytest.mark.parametrize("images", [3, 9])
@pytest.mark.parametrize("metric", ["auc", "f1", "ece", "balanced_accuracy"])
def test_values_are_those_of_swapped_predictions(metric, images):
    """Each exchange by hand, of an additive score and of one that is not; the identity is among them."""
    a, b, labels = random_models(images=images)
    objective = Multiclass(3)
    exchange = exchange_models(partial(objective.weighted_score, metric), [(a, b)], labels)
    wanted = []
    for code in range(2**images):
        swapped = torch.tensor([code >> place & 1 for place in range(images)], dtype=torch.bool)[:, None]
        ours, theirs = torch.where(swapped, b, a), torch.where(swapped, a, b)
        wanted.append(objective.score(metric, ours, labels) - objective.score(metric, theirs, labels))
    assert exchange.observed == pytest.approx(objective.score(metric, a, labels) - objective.score(metric, b, labels))
    assert np.allclose(exchange.values, wanted, rtol=0, atol=1e-12)


def survival_models(patients: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the risks of two models and the targets; some times and some risks are tied."""
    rng = np.random.default_rng(seed)
    targets = torch.from_numpy(np.stack([rng.integers(1, 20, patients), rng.integers(2, size=patients)], axis=1))
    a, b = (torch.from_numpy(rng.normal(size=(patients, 1)).round(1)) for _ in range(2))
    return a, b, targets.double()


def c_index_by_pairs(risks: torch.Tensor, targets: torch.Tensor) -> float:
    """Return the C-index of a loop over all pairs of patients."""
    right = pairs = 0.0
    for (time, event), risk in zip(targets.tolist(), risks[:, 0].tolist()):
        for (other_time, other_event), other_risk in zip(targets.tolist(), risks[:, 0].tolist()):
            if event and (other_time > time or (other_time == time and not other_event)):
                pairs += 1
                right += 0.5 if risk == other_risk else float(risk > other_risk)
    return right / pairs


@pytest.mark.parametrize("few", [4, 128])
def test_a_c_index_after_exchanges_and_in_resamples_is_that_of_a_loop_over_pairs(monkeypatch, few):
    monkeypatch.setattr(survival, "FEW_ROWS", few)
    monkeypatch.setattr(exchanges, "EXCHANGES", 20)
    a, b, targets = survival_models(30)
    score = Survival().scores["c_index"]

    swaps = np.random.default_rng(5).integers(2, size=(30, 20), dtype=np.int8)
    wanted = []
    for swap in torch.from_numpy(swaps.T == 1):
        ours, theirs = torch.where(swap[:, None], b, a), torch.where(swap[:, None], a, b)
        wanted.append(c_index_by_pairs(ours, targets) - c_index_by_pairs(theirs, targets))
    assert np.allclose(exchange_models(score, [(a, b)], targets, seed=5).values, wanted, rtol=0, atol=1e-12)

    resampled = resample_differences(score, [(a, b)], targets, seed=5, resamples=20)
    drawn = np.random.default_rng(5).integers(30, size=(30, 20)).T
    rows = [*drawn, *(np.delete(np.arange(30), patient) for patient in range(30))]
    scores = np.array([c_index_by_pairs(a[row], targets[row]) - c_index_by_pairs(b[row], targets[row]) for row in rows])
    assert np.array_equal(resampled.values, scores[:20])
    assert np.allclose(resampled.influences, (scores[20:].mean() - scores[20:]) * 29 / 30, rtol=0, atol=1e-12)


def test_random_exchanges_come_near_all_of_them(monkeypatch):
    from medfl_report.statistics import procedures

    a, b, labels = random_models(2, 10, seed=3)
    score = partial(Multiclass(2).weighted_score, "auc")
    full = exchange_models(score, [(a, b)], labels, order_only=True)
    monkeypatch.setattr(procedures, "EXHAUSTIVE", 0)
    drawn = exchange_models(score, [(a, b)], labels, order_only=True)
    assert (full.exhaustive, drawn.exhaustive) == (True, False)
    assert drawn.p == pytest.approx(full.p, abs=4 * math.sqrt(full.p * (1 - full.p) / 1999))


def test_images_of_a_patient_are_one_unit():
    patients = torch.arange(4).repeat_interleave(5)
    assert accuracy([1] * 20, [0] * 20, patients).p == 2 / 2**4
    assert accuracy([1] * 20, [0] * 20).p < 0.001


def test_another_scale_of_one_model_changes_nothing_about_an_auc():
    a, b, labels = random_models(2, 40)
    score = partial(Multiclass(2).weighted_score, "auc")
    sharper = (5 * b.log() + torch.tensor([0.0, 7.0])).softmax(dim=1)
    plain, other = (exchange_models(score, [(a, model)], labels, order_only=True) for model in (b, sharper))
    assert other.p == plain.p
    assert standardise(torch.tensor([[0.0], [0.5], [1.0]])).flatten().tolist() == pytest.approx(
        [-(1.5**0.5), 0, 1.5**0.5]
    )


def test_five_patients_can_decide_nothing_and_six_can():
    assert [can_decide(n) for n in (1, 5, 6)] == [False, False, True]
    assert [accuracy([1] * n, [0] * n).p for n in (5, 6)] == [2 / 32, 2 / 64]


def test_sites_are_swapped_independently():
    """Two sites of three images: 64 exchanges of the mean, and 2 of them are as large as the observed one."""
    parts = [accuracy([1] * 3, [0] * 3, seed=seed) for seed in (0, 1)]
    mean = mean_exchange([(0.5, part) for part in parts])
    assert (mean.observed, mean.patients, mean.p) == (1.0, 6, 2 / 64)


def test_p_values_of_seeds_with_unknown_overlap_are_combined():
    assert combine_p([0.03]) == 0.03
    assert combine_p([0.01, 0.03]) == pytest.approx(0.04)
    assert combine_p([0.9, 0.8]) == 1


# ---- claims


def compared(folders):
    alone, other = group_runs([read_run(folder) for folder in folders])
    tested = {str(run.folder): read_prediction_sets(run) for run in (*alone.runs, *other.runs)}
    return compare_sites("accuracy", other.label, pair_up(alone, other), tested)


def test_three_test_images_that_all_change_are_too_few(tmp_path):
    """The difference is the same in each resample, which is no certainty."""
    runs = [make_run(tmp_path / name, name, images=3, skill=skill) for name, skill in (("local", -50), ("fedavg", 50))]
    comparison = compared(runs)
    assert [(row.difference, row.effect, row.low) for row in comparison.rows] == [(1.0, TOO_FEW_PATIENTS, None)] * 3
    assert (comparison.mean.effect, comparison.mean.p) == (BETTER, 2 / 2**9)


def test_models_that_differ_in_few_answers_are_not_distinguished_by_many_images(tmp_path):
    runs = [make_run(tmp_path / name, "fedavg" if name == "b" else "local", images=60, skill=50) for name in "ab"]
    path = runs[0] / "sites/site-1/predictions.csv"
    table = read_run(runs[0]).predictions("site-1")
    table.loc[:2, ["p0", "p1", "p2"]] = table.loc[:2, ["p2", "p0", "p1"]].to_numpy()
    table.to_csv(path, index=False)
    row = compared(runs).rows[0]
    assert row.effect == NO_CLEAR_DIFFERENCE
    assert row.p == pytest.approx(0.25, abs=0.04), "three answers differ, all in one direction: 2 of 8 exchanges"


def test_seeds_share_their_patients(tmp_path):
    """Three seeds of four images are four patients, not twelve."""
    runs = [
        make_run(tmp_path / f"{name}{seed}", name, seed, images=4, sites=["a"], skill=skill)
        for seed in range(3)
        for name, skill in (("local", -50), ("fedavg", 50))
    ]
    assert compared(runs).mean.effect == TOO_FEW_PATIENTS


@pytest.mark.parametrize(
    ("skill", "effect"), [((0.0, 3.0), "better"), ((0.3, 0.32), "n.s.")], ids=["clear", "within the patients' chance"]
)
def test_a_table_of_methods_needs_the_patients_too(tmp_path, skill, effect):
    """The seeds agree on a difference in both cases; over the patients it is a chance result in one of them."""
    wins = (0.10, 0.11, 0.12)
    runs = []
    for name, level, share in (("local", skill[0], 0), ("fedavg", skill[1], 1)):
        for seed, win in enumerate(wins):
            scores = {"accuracy": dict.fromkeys(("a", "b"), 0.5 + share * win)}
            options = {"scores": scores, "skill": level, "images": 40, "sites": ("a", "b"), "metrics": ("accuracy",)}
            runs.append(read_run(make_run(tmp_path / f"{name}{seed}", name, seed, **options)))
    table = compare(runs).set_index("label")
    assert table.loc["fedavg", "low"] > 0
    assert table.loc["fedavg", "effect"] == effect
    assert (table.loc["fedavg", "p_patients"] <= 0.05) == (effect == "better")
    claim = check_claim(group_runs(runs), "local_test", "fedavg", "local")
    assert claim.effect == {"better": "holds"}.get(effect, effect)
    assert claim.over_patients.p == table.loc["fedavg", "p_patients"]


@pytest.mark.parametrize(
    ("difference", "p", "test", "runs", "effect"),
    [
        (0.1, 0.01, PatientTest(0.01, 50), 3, "better"),
        (-0.1, 0.01, PatientTest(0.01, 50), 3, "worse"),
        (0.1, 0.01, PatientTest(0.06, 50), 3, "n.s."),
        (0.1, 0.06, PatientTest(0.01, 50), 3, "n.s."),
        (0.1, 0.01, PatientTest(0.25, 3), 3, "too few patients"),
        (0.1, 0.01, PatientTest(0.01, 50), 2, "too few runs"),
        (0.1, 0.01, PatientTest(reason="no predictions"), 3, "better (seeds only)"),
    ],
)
def test_runs_and_patients_must_agree(difference, p, test, runs, effect):
    method = MethodTest(RunsTest(Interval(difference, difference - 1, difference + 1), p), test, runs)
    assert method.effect(("better", "worse"), method.p) == effect


def test_without_an_interval_there_is_no_effect():
    assert MethodTest(RunsTest(), PatientTest(0.01, 50), 3).effect(("better", "worse"), math.nan) == "-"


def test_no_random_exchange_gives_a_p_value_of_0():
    assert ExchangeDistribution(1.0, 20, np.zeros(1999), exhaustive=False).p == 1 / 2000
    assert ExchangeDistribution(1.0, 20, np.full(1999, -1.0), exhaustive=False).p == 1.0


def test_random_exchanges_of_sites_are_weighted():
    parts = [
        (weight, ExchangeDistribution(value, 20, np.full(1999, value), exhaustive=False))
        for weight, value in ((0.25, 1.0), (0.75, 3.0))
    ]
    mean = mean_exchange(parts)
    assert (mean.observed, mean.patients, mean.exhaustive) == (2.5, 40, False)
    assert np.allclose(mean.values, 2.5)
