"""Runs of several folds: their names, the rows that they make, the tests over them, and claims about them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from make_runs import SITES, make_run
from refusals import refused
from scipy import stats

from medfl.engine.runs.records import read_run
from medfl.errors import SettingsError
from medfl.utils.formats import p_value
from medfl_report.claims import check_claim, claims_markdown
from medfl_report.compare import compare, to_markdown
from medfl_report.groups import by_data, data_names, group_runs, pairs
from medfl_report.notices import make_notices, summary_sentence
from medfl_report.rounds_markdown import rounds_markdown
from medfl_report.scores import named_runs
from medfl_report.statistics import fold_ratio, paired_t, paired_tests, signed_rank


@pytest.fixture
def run(tmp_path):
    """Make a run of a fold; seed and fold determine its data, and `value` is the score of each site."""
    count = itertools.count()

    def make(method="fedskd", seed=0, fold=None, value=0.5, **options):
        options = {"scores": {"accuracy": dict.fromkeys(SITES, value)}, "data": f"data {seed} {fold}"} | options
        options = {"bundles": False, "state": False, "fold": fold} | options
        return read_run(make_run(tmp_path / str(next(count)), method, seed, **options))

    return make


# ---- names


def test_a_run_is_named_by_seed_and_fold(run):
    (group,) = group_runs([run(fold=2), run(seed=1, fold=0), run(fold=0)])
    assert [name for name, _ in named_runs([group])] == [
        "fedskd, seed 0, fold 0",
        "fedskd, seed 0, fold 2",
        "fedskd, seed 1, fold 0",
    ]
    assert group.repetitions == "0 (folds 0, 2), 1 (fold 0)"


def test_without_folds_names_are_as_they_were(run):
    (group,) = group_runs([run(seed=seed) for seed in (0, 1)])
    assert [name for name, _ in named_runs([group])] == ["fedskd, seed 0", "fedskd, seed 1"]
    assert group.repetitions == "0, 1"
    assert list(data_names(group.runs).values()) == ["data of seed 0", "data of seed 1"]


def test_data_are_named_by_seed_and_fold_or_by_the_fold_that_seeds_share(run):
    own = [run(method, seed, fold) for method in ("local", "fedskd") for seed in (0, 1) for fold in (0, 1)]
    names = [f"data of seed {seed}, fold {fold}" for seed in (0, 1) for fold in (0, 1)]
    assert list(data_names(own).values()) == names
    assert {name: len(groups) for name, groups in by_data(group_runs(own)).items()} == dict.fromkeys(names, 2)
    shared = [run("local", seed, fold, data=f"fold {fold}") for seed in (0, 1) for fold in (0, 1)]
    assert list(data_names(shared).values()) == ["data of fold 0", "data of fold 1"]
    strange = [*own, run("fedavg", 0, 0, data="0123456789")]
    assert list(data_names(strange).values())[-1] == "data 01234567"


def test_the_page_says_that_folds_have_data_of_their_own(run):
    groups = group_runs([run(fold=fold) for fold in range(3)])
    texts = [notice.text for notice in make_notices(groups)]
    assert "Each seed and fold has its own data set. Differences are paired within a seed and fold." in texts
    assert summary_sentence(named_runs(groups)).startswith("3 runs over 3 rounds with the seed 0 in 3 folds on 3 data")
    shared = group_runs([run(seed=seed, fold=fold, data=f"fold {fold}") for seed in (0, 1) for fold in (0, 1)])
    texts = [notice.text for notice in make_notices(shared)]
    assert "Each fold has its own data set. Differences are paired within a seed and fold." in texts


def test_a_fold_that_is_there_twice_is_refused(run):
    with refused(SettingsError, "duplicate_run", label="fedskd", seed=0, fold=1):
        group_runs([run(fold=0), run(fold=1), run(fold=1, data="dealt in another way")])
    with refused(SettingsError, "unequal_folds", seed=0, folds=[5, 3]):
        group_runs([run(fold=0), run(fold=1, folds=3)])
    with refused(SettingsError, "unequal_folds", seed=0, folds=[None, 5]):
        group_runs([run(), run(fold=1)])


# ---- tests


@settings(max_examples=60, deadline=None, derandomize=True)
@given(some.lists(some.integers(-6, 6), min_size=2, max_size=9))
def test_the_signed_rank_test_counts_all_signs(values):
    """Ties and zeros included, against all 2^n signs one by one; in tenths, whose differences are not exact."""
    differences = [(value + 7) / 10 - 0.7 for value in values]
    moved = np.array([value for value in values if value])
    if not len(moved):
        assert math.isnan(signed_rank(differences))
        return
    ranks = stats.rankdata(np.abs(moved))
    sums = np.array(list(itertools.product((0, 1), repeat=len(moved)))) @ ranks
    far = abs(ranks[moved > 0].sum() - ranks.sum() / 2)
    expected = (np.abs(sums - ranks.sum() / 2) >= far - 1e-9).mean()
    assert signed_rank(differences) == pytest.approx(expected, abs=1e-12)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    some.lists(some.integers(1, 10**6), min_size=2, max_size=12, unique=True), some.integers(0, 2**12 - 1), some.data()
)
def test_the_tests_are_scipys_where_it_has_them(sizes, signs, data):
    differences = [size / 1e6 * (1 if signs >> place & 1 else -1) for place, size in enumerate(sizes)]
    tests = paired_tests(differences, data.draw(some.integers(2, 10)))
    assert tests.t == pytest.approx(stats.ttest_1samp(differences, 0).pvalue, rel=1e-9)
    assert tests.wilcoxon == pytest.approx(stats.wilcoxon(differences, method="exact").pvalue, rel=1e-9)
    assert tests.corrected >= tests.t


def test_five_folds_can_not_go_below_one_in_sixteen():
    tests = paired_tests([0.1, 0.11, 0.12, 0.13, 0.14], 5)
    assert tests.wilcoxon == 0.0625
    assert tests.t < tests.corrected < 0.01


def test_the_correction_by_hand():
    """Two of two folds: 1/n + 1/(K-1) = 3/2, mean 0.2, variance 0.02; Student's t of one degree is Cauchy's."""
    tests = paired_tests([0.1, 0.3], 2)
    assert tests.corrected == pytest.approx(1 - 2 / math.pi * math.atan(0.2 / math.sqrt(0.03)))
    assert tests.t == pytest.approx(1 - 2 / math.pi * math.atan(0.2 / math.sqrt(0.01)))


def test_the_corrected_test_errs_as_often_as_it_says_where_folds_are_correlated():
    """Differences whose correlation is 1/K, as Nadeau and Bengio take it: 5 % for theirs, far more for the t test."""
    rng, folds, trials = np.random.default_rng(0), 5, 1000
    common, own = rng.normal(size=(trials, 1)), rng.normal(size=(trials, folds))
    differences = math.sqrt(1 / folds) * common + math.sqrt(1 - 1 / folds) * own
    tests = [paired_tests(row, folds) for row in differences.tolist()]
    assert stats.binomtest(sum(test.corrected < 0.05 for test in tests), trials, 0.05).pvalue > 0.01
    assert sum(test.t < 0.05 for test in tests) > 0.1 * trials


@pytest.mark.parametrize("differences", [[], [0.1], [0.1, 0.2]])
def test_nothing_is_tested_without_folds_or_pairs(differences):
    tests = paired_tests(differences, None if len(differences) == 2 else 5)
    assert all(math.isnan(value) for value in (tests.t, tests.corrected, tests.wilcoxon))


def test_the_same_difference_in_all_folds_has_no_spread_but_a_sign():
    tests = paired_tests([0.8 - 0.7, 0.4 - 0.3, 0.1], 3)
    assert math.isnan(tests.t)
    assert math.isnan(tests.corrected)
    assert tests.wilcoxon == 0.25
    assert math.isnan(paired_tests([0.0, 0.0], 2).wilcoxon)


def test_p_values_are_printed_so_that_the_least_of_five_folds_is_seen():
    assert [p_value(value) for value in (0.0625, 0.00003, 1.0, math.nan)] == ["0.0625", "< 0.0001", "1.0000", "-"]


# ---- tables

GAINS = [[0.10, 0.12, 0.05], [0.11, 0.01, 0.09]]
"""Score of each seed in each fold."""


@pytest.fixture
def runs(run):
    """Two methods with two seeds of three folds each."""
    cells = [(seed, fold) for seed in (0, 1) for fold in range(3)]
    base = {cell: 0.5 + 0.01 * cell[1] for cell in cells}
    alone = [run("local", *cell, base[cell], folds=3) for cell in cells]
    return [*alone, *(run("fedskd", *cell, base[cell] + GAINS[cell[0]][cell[1]], folds=3) for cell in cells)]


def test_each_run_of_a_seed_and_a_fold_counts_as_one(runs):
    local, fedskd = compare(runs).to_dict("records")
    gains = [gain for seed in GAINS for gain in seed]
    assert local["seeds"] == fedskd["seeds"] == "0 (folds 0, 1, 2), 1 (folds 0, 1, 2)"
    assert (local["mean"], local["std"]) == pytest.approx((0.51, np.std([0.5, 0.51, 0.52] * 2, ddof=1)))
    expected = stats.ttest_1samp(gains, 0)
    numbers = [fedskd[name] for name in ("pairs", "difference", "p_t", "p_wilcoxon")]
    wilcoxon = stats.wilcoxon(gains, method="exact").pvalue
    assert numbers == pytest.approx([6, np.mean(gains), expected.pvalue, wilcoxon])
    statistic = expected.statistic * math.sqrt((1 / 6) / (1 / 6 + 1 / 2))
    assert fedskd["p_corrected"] == pytest.approx(2 * stats.t.sf(statistic, 5))
    assert fedskd["effect"] == "n.s.", "the plain test would have called it better"
    assert expected.pvalue < 0.05 < fedskd["p_corrected"]
    assert math.isnan(local["p_t"])


@pytest.mark.parametrize("level", [0.5, 0.95])
def test_the_interval_over_folds_is_that_of_the_corrected_test(level):
    """At the level 1 - p one end of it is 0."""
    gains, folds = [0.10, 0.12, 0.05, 0.08], 4
    p = paired_tests(gains, folds).corrected
    touching = paired_t(gains, 1 - p, fold_ratio(folds))
    assert touching.low == pytest.approx(0, abs=1e-9)
    plain, wide = paired_t(gains, level), paired_t(gains, level, fold_ratio(folds))
    assert (wide.high - wide.low) / (plain.high - plain.low) == pytest.approx(math.sqrt(1 + 4 / 3))


def test_the_words_below_say_what_a_pair_is_and_what_the_tests_can_do(runs):
    text = to_markdown(compare(runs))
    header, _, local, fedskd = text.splitlines()[2:6]
    assert header.endswith("| effect | p (t) | p (corrected t) | p (Wilcoxon) |")
    assert local.endswith("| - | - | - | - | - |")
    assert fedskd.endswith("| 0.0312 |")
    assert "± is the standard deviation over the runs, one for each seed and fold (ddof = 1)." in text
    assert "paired over the seeds and folds that both have" in text
    assert "with 6 pairs it cannot be below 0.03125." in text
    assert "Nadeau and Bengio (2003)" in text


def test_a_fold_pairs_with_the_same_fold_of_the_same_seed_only(run):
    groups = group_runs([run("local", fold=0), run("local", fold=1), run(fold=1), run(fold=2), run(seed=1, fold=1)])
    matched = pairs(groups[1], groups[0])
    assert [(ours.seed, ours.fold, theirs.fold) for ours, theirs in matched] == [(0, 1, 1)]


def test_seeds_on_one_named_fold_are_no_cross_validation(run):
    """They differ in their seed alone, so the table is as without folds but for the name of the fold."""
    runs = [run(method, seed, 1, 0.5 + seed / 8 + len(method) / 100) for method in ("a", "bcd") for seed in (0, 1)]
    table = compare(runs)
    assert table["p_t"].isna().all()
    assert "p (t)" not in to_markdown(table)
    assert table["seeds"].tolist() == ["0 (fold 1), 1 (fold 1)"] * 2


def test_the_table_of_rounds_names_the_folds_that_lack_a_measure(run):
    from medfl_report.forgetting import forgetting_table

    runs = [run(fold=fold, server=[0.5, 0.6, 0.5 + fold / 8]) for fold in (0, 1)] + [run(fold=2)]
    table = forgetting_table(group_runs(runs), "accuracy").set_index("measure")
    assert table.loc["global_final", "seeds"] == "0 (folds 0, 1)"
    assert table.loc["global_final", "mean"] == pytest.approx(0.5625)
    text = rounds_markdown(table.reset_index())
    assert "± is the standard deviation over the runs, one for each seed and fold (ddof = 1)" in text


# ---- claims


def test_claims_are_tested_over_folds(runs):
    claim = check_claim(group_runs(runs), "local_test", "fedskd", "local")
    gains = [gain for seed in GAINS for gain in seed]
    assert (claim.pairs, claim.metric, claim.effect) == (6, "accuracy", "n.s.")
    assert claim.difference == pytest.approx(np.mean(gains))
    assert claim.tests.t == pytest.approx(stats.ttest_1samp(gains, 0).pvalue)
    text = claims_markdown([claim])
    columns = ("claim", "measure", "pairs", "better", "than", "difference", "p (patients)", "effect")
    assert f"| {' | '.join(columns)} | p (t) | p (corrected t) | p (Wilcoxon) |" in text
    assert text.splitlines()[4].endswith(f"| {claim.tests.t:.4f} | {claim.tests.corrected:.4f} | 0.0312 |")
    assert "- local_test: accuracy, mean over the sites of their exported models" in text


def test_the_local_test_is_in_the_first_metric_and_leaves_undefined_sites_out(run):
    scores = {"auc": dict(zip(SITES, (0.5, None, 0.7), strict=True)), "accuracy": dict.fromkeys(SITES, 0.1)}
    better = {"auc": dict(zip(SITES, (0.6, None, 0.8), strict=True)), "accuracy": dict.fromkeys(SITES, 0.1)}
    metrics = ("auc", "accuracy")
    groups = group_runs([run("local", scores=scores, metrics=metrics), run("fedskd", scores=better, metrics=metrics)])
    claim = check_claim(groups, "local_test", "fedskd", "local")
    assert (claim.metric, claim.difference) == ("auc", pytest.approx(0.1))
    assert claim.effect == "-", "one pair tells nothing of the spread"


def test_the_cross_site_test_is_the_mean_over_models_and_test_sets(run):
    tables = {
        "local": {"site-1": {"site-1": 0.9, "site-2": 0.5}, "site-2": {"site-1": 0.3, "site-2": math.nan}},
        "fedskd": {"site-1": {"site-1": 0.9, "site-2": 0.7}, "site-2": {"site-1": 0.6, "site-2": 0.8}},
    }
    runs = [run(method, model="personal", crossed={"accuracy": table}) for method, table in tables.items()]
    claim = check_claim(group_runs(runs), "cross_site_test", "fedskd", "local")
    assert claim.difference == pytest.approx((0.8 + 0.7) / 2 - (0.7 + 0.3) / 2)
    without = check_claim(group_runs([runs[0], run("fedskd")]), "cross_site_test", "fedskd", "local")
    assert (without.pairs, without.effect) == (0, "-")
