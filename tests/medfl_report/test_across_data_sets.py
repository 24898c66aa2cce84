"""Methods over several data sets and sites, against closed forms, worked examples and other packages."""

from __future__ import annotations

import json
import math
import sys

import pandas as pd
import pytest
from refusals import refused

from medfl.errors import SettingsError, StoreError
from medfl_report.data_set_ranks import compare_data_sets, critical_difference_figure, read_scores
from medfl_report.statistics import holm
from medfl_report.statistics.across_data_sets import bayesian_signed_rank, compare_ranks
from medfl_report.statistics.site_effects import SiteScore, site_effects

FIRST = [0.81, 0.76, 0.90, 0.66, 0.71, 0.85, 0.79, 0.93]
SECOND = [0.78, 0.75, 0.86, 0.67, 0.66, 0.80, 0.79, 0.90]


def test_holm_by_hand():
    """Four p-values: 4 x 0.01, 3 x 0.02, then 2 x 0.03 = 0.06, and 0.04 may not be below that."""
    assert holm([0.03, 0.01, math.nan, 0.04, 0.02]) == pytest.approx([0.06, 0.04, math.nan, 0.06, 0.06], nan_ok=True)
    assert holm([0.7, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_the_critical_difference_is_demsars():
    """Demsar 2006, section 3.2.2: 4 classifiers, 14 data sets, q = 2.569, critical difference 1.25."""
    scores = {name: [place + 0.1 * number for number in range(14)] for place, name in enumerate("abcd")}
    ranks = compare_ranks(scores)
    assert ranks.critical_difference == pytest.approx(1.25, abs=0.005)
    assert dict(ranks.ranks) == {"d": 1.0, "c": 2.0, "b": 3.0, "a": 4.0}
    assert ranks.p < 0.001
    assert [ranks.differ("d", other) for other in "cba"] == [False, True, True]
    assert ranks.groups() == [("d", "c"), ("c", "b"), ("b", "a")]


def test_few_data_sets_and_equal_methods_allow_no_claim():
    few = compare_ranks({name: [place] * 5 for place, name in enumerate("abcdefgh")}, larger_is_better=False)
    assert next(iter(few.ranks)) == "a"
    assert few.p < 0.05
    assert not few.differ("a", "h")
    equal = compare_ranks({name: [0.5] * 8 for name in "abc"})
    assert math.isnan(equal.p)
    assert equal.groups() == [("a", "b", "c")]


@pytest.mark.parametrize("scores", [{"a": [1, 2], "b": [1, 2]}, {"a": [1, 2], "b": [1], "c": [1, 2]}])
def test_ranks_need_scores_of_all(scores):
    with refused(SettingsError, "unequal_scores", methods=len(scores)):
        compare_ranks(scores)


@pytest.mark.parametrize(
    ("rope", "expected"), [(0.01, (0.9845, 0.0151, 0.0004)), (0.03, (0.2492, 0.7508, 0.0))], ids=["1 %", "3 %"]
)
def test_the_bayesian_signed_rank_test_is_baycomps(rope, expected):
    """`baycomp.SignedRankTest.probs(FIRST, SECOND, rope, nsamples=200000)` of baycomp 1.0.3."""
    differences = [a - b for a, b in zip(FIRST, SECOND, strict=True)]
    posterior = bayesian_signed_rank(differences, rope)
    assert (posterior.first, posterior.equivalent, posterior.second) == pytest.approx(expected, abs=0.012)
    back = bayesian_signed_rank([-value for value in differences], rope)
    assert (back.second, back.equivalent) == (posterior.first, posterior.equivalent)


# ---- sites


def site_scores():
    """Six sites with intercepts, an effect of 0.1, and residuals that sum to 0 for each method."""
    residuals = [0.01, -0.01, 0.02, -0.02, 0.005, -0.005]
    base = [SiteScore(f"s{place}", "fedavg", 0.5 + 0.05 * place + r) for place, r in enumerate(residuals)]
    return base + [SiteScore(f"s{place}", "new", 0.6 + 0.05 * place - r) for place, r in enumerate(residuals)]


def test_the_effect_of_a_balanced_mixed_model_is_the_mean_difference():
    pytest.importorskip("statsmodels")
    effects = site_effects(site_scores(), "new", "fedavg")
    assert effects.effect.difference == pytest.approx(0.1)
    deviations = [2 * r for r in (0.01, -0.01, 0.02, -0.02, 0.005, -0.005)]
    error = math.sqrt(sum(d * d for d in deviations) / 5 / 6)
    assert effects.effect.high - effects.effect.difference == pytest.approx(1.96 * error, rel=0.01)
    assert effects.p < 0.001
    assert effects.site_std == pytest.approx(0.0935, abs=0.01)


def test_few_sites_and_no_statsmodels_are_refused(monkeypatch):
    few = [score for score in site_scores() if score.site in ("s0", "s1")]
    with refused(SettingsError, "too_few_sites", sites=2, minimum=5):
        site_effects(few, "new", "fedavg")
    monkeypatch.setitem(sys.modules, "statsmodels.regression", None)
    monkeypatch.setitem(sys.modules, "statsmodels", None)
    with refused(SettingsError, "missing_package", package="statsmodels", extra="statistics"):
        site_effects(site_scores(), "new", "fedavg")


# ---- files


@pytest.fixture
def files(tmp_path):
    """Seven data sets with two seeds and two sites; `good` is best, and one file lacks the row `other`."""
    paths = []
    for number in range(7):
        lines = [
            {"data": f"d{number}", "row": row, "seed": seed, "site": site, "exported": True, "split": "test"}
            | {"metric": "ece" if number == 6 else "auc", "value": (value if number < 6 else 1 - value) + 0.01 * seed}
            for row, value in {"good": 0.9, "fedavg": 0.8, "bad": 0.6, "other": 0.7}.items()
            for seed in (0, 1)
            for site in ("a", "b")
            if row != "other" or number
        ]
        paths.append(tmp_path / f"d{number}-scores.csv")
        pd.DataFrame(lines).to_csv(paths[-1], index=False)
    return paths


def test_rows_of_all_files_are_ranked_and_errors_count_as_lower_is_better(files):
    comparison = compare_data_sets([read_scores(path, ["auc", "ece"]) for path in files], "fedavg", 0.01)
    assert dict(comparison.ranks.ranks) == {"good": 1.0, "fedavg": 2.0, "bad": 3.0}
    assert comparison.posteriors["good"].first > 0.95
    assert comparison.posteriors["bad"].second > 0.95
    assert comparison.effects == {}
    assert len(critical_difference_figure(comparison.ranks).axes[0].texts) == 4


def test_the_command_prints_and_writes(medfl_command, files, tmp_path):
    options = ["rank", *files, "--metric", "auc", "--metric", "ece"]
    code, out, err = medfl_command(*options)
    assert (code, err) == (0, "")
    assert "| good | 1.00 |" in out
    code, out, _ = medfl_command(*options, "--out", tmp_path / "out")
    assert code == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"ranks.md", "ranks.svg"}


def test_wrong_files_and_rows_are_named(files, tmp_path):
    data = [read_scores(path, ["auc", "ece"]) for path in files]
    with refused(SettingsError, "unknown_choice", what="reference", choice="fedprox"):
        compare_data_sets(data, "fedprox", 0.01)
    with refused(SettingsError, "unknown_choice", what="metric"):
        read_scores(files[0], ["dice"])
    (tmp_path / "other.csv").write_text(json.dumps({"a": 1}))
    for path in (tmp_path / "other.csv", tmp_path / "none.csv"):
        with refused(StoreError, "unreadable_file", path=str(path)):
            read_scores(path, ["auc"])
