"""Orderings that a paper reports: hold, are reversed, or stay open."""

from __future__ import annotations

import math

import pytest
from make_runs import make_run
from scipy.stats import ttest_rel

from medfl.engine.runs.records import read_run
from medfl_report.claims import check_claim, claims_markdown
from medfl_report.groups import group_runs


@pytest.fixture
def groups(tmp_path):
    """Global accuracy after three rounds, of seeds 0, 1, 2; each round has its share of the last one's."""
    last = {"fedavg": (0.3, 0.36, 0.33), "fedkper": (0.6, 0.69, 0.63), "fedprox": (0.33, 0.33, 0.36)}
    runs = []
    for method, values in last.items():
        for seed, value in enumerate(values):
            folder = tmp_path / f"{method}-{seed}"
            make_run(folder, method, seed, server_test={"accuracy": value}, data=f"data {seed}", bundles=False)
            runs.append(read_run(folder))
    return group_runs(runs)


def test_a_claim_holds_is_reversed_or_stays_open(groups):
    claim = check_claim(groups, "global_mean", "fedkper", "fedavg")
    ours, theirs = [value * 2 / 3 for value in (0.6, 0.69, 0.63)], [value * 2 / 3 for value in (0.3, 0.36, 0.33)]
    assert claim.difference == pytest.approx(sum(ours) / 3 - sum(theirs) / 3)
    interval = ttest_rel(ours, theirs).confidence_interval()
    assert (claim.interval.low, claim.interval.high) == pytest.approx((interval.low, interval.high))
    assert (claim.pairs, claim.effect) == (3, "holds (seeds only)")
    assert check_claim(groups, "global_mean", "fedavg", "fedkper").effect == "reversed (seeds only)"
    assert check_claim(groups, "global_mean", "fedprox", "fedavg").effect == "n.s."


def test_what_can_not_be_compared_stays_open(groups):
    for measure, better in (("local_mean", "fedkper"), ("global_mean", "fedntd")):
        claim = check_claim(groups, measure, better, "fedavg")
        assert (claim.pairs, claim.effect) == (0, "-")
        assert math.isnan(claim.difference)
    one_seed = group_runs([group.runs[0] for group in groups])
    claim = check_claim(one_seed, "global_mean", "fedkper", "fedavg")
    assert (claim.pairs, claim.interval, claim.effect) == (1, None, "-")


def test_seeds_pair_on_the_same_data_only(groups, tmp_path):
    make_run(tmp_path / "elsewhere", "local", 0, server_test={"accuracy": 0.9}, data="other", bundles=False)
    alone = group_runs([*(run for group in groups for run in group.runs), read_run(tmp_path / "elsewhere")])
    assert check_claim(alone, "global_mean", "local", "fedavg").pairs == 0


def test_the_table_says_what_was_found(groups):
    text = claims_markdown([check_claim(groups, "global_final", "fedkper", "fedavg")])
    sides = "0.640 ± 0.046 | 0.330 ± 0.030"
    row = f"| fedkper > fedavg | global_final | 3 | {sides} | +0.310 [+0.267, +0.353] | - | holds (seeds only) |"
    assert row in text
    assert claims_markdown([]) == ""
