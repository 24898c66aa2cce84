"""FedDisco: weights by hand, the cases without a discrepancy, and what it tells."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from medfl.contract import Server, State
from medfl.plugins import load_plugins
from medfl.settings import Settings
from medfl.testing.cohort import Case, bits, make_site, make_task
from medfl.toolkit.aggregation import normalised
from medfl.utils.wire import tensors_equal
from medfl_methods.feddisco import FedDisco, disco_weights, discrepancies

REGISTRY = load_plugins()
COUNTS = {"a": [2, 2], "b": [4, 0], "c": [3, 1]}
"""12 images of two classes, a third of them at each site."""
KL = {"a": 0.0, "b": math.log(2), "c": 0.75 * math.log(1.5) + 0.25 * math.log(0.5)}
"""From equal shares: log 2 minus the entropy."""


def weights(counts, **args):
    """What sites weigh in the end."""
    server = Server("server", 1, State(), make_task(), Settings(rounds=1), sites=sorted(counts))
    metas = {site: {"size": sum(own), "label_counts": own} for site, own in counts.items()}
    return normalised(FedDisco(**args).weights_of(server, metas), metas)


# ---- by hand


def test_discrepancies():
    assert discrepancies(COUNTS, normalise=False) == pytest.approx(KL, abs=1e-12)
    assert KL["c"] == pytest.approx(0.1308120359, abs=1e-9)
    total = sum(KL.values())
    assert discrepancies(COUNTS) == pytest.approx({site: d / total for site, d in KL.items()}, abs=1e-12)
    root = math.sqrt(2)
    plain = discrepancies(COUNTS, "l2", normalise=False)
    assert plain == pytest.approx({"a": 0.0, "b": root / 2, "c": root / 4}, abs=1e-12)
    assert discrepancies(COUNTS, "l2") == pytest.approx({"a": 0.0, "b": 2 / 3, "c": 1 / 3}, abs=1e-12)
    # all together they have shares (3/4, 1/4), which are those of c
    assert discrepancies(COUNTS, "l2", "global", False) == pytest.approx({"a": root / 4, "b": root / 4, "c": 0.0})
    towards = discrepancies(COUNTS, "kl", "global", False)
    assert towards == pytest.approx({"a": 0.5 * math.log(4 / 3), "b": math.log(4 / 3), "c": 0.0}, abs=1e-12)


def test_weights():
    # n - a d + b with l2, d = (0, 2/3, 1/3): 13/30, 1/10 and 4/15, which sum to 4/5
    by_site = weights(COUNTS, metric="l2")
    assert by_site == pytest.approx({"a": 13 / 24, "b": 1 / 8, "c": 1 / 3}, abs=1e-12)
    # a = 1, b = 0: 1/3, -1/3 and 0
    assert weights(COUNTS, metric="l2", a=1.0, b=0.0) == pytest.approx({"a": 1.0, "b": 0.0, "c": 0.0}, abs=1e-12)
    total = sum(KL.values())
    raw = {site: 1 / 3 - 0.5 * d / total + 0.1 for site, d in KL.items()}
    raw["b"] = max(raw["b"], 0)
    assert weights(COUNTS) == pytest.approx({site: w / sum(raw.values()) for site, w in raw.items()}, abs=1e-12)


def test_sizes_count():
    """Shares of 3/4 and 1/4, discrepancies 0 and 1: 3/4 + 1/10 and 1/4 - 1/5 + 1/10."""
    by_site = weights({"a": [3, 3], "b": [2, 0]}, a=0.2)
    assert by_site == pytest.approx({"a": 0.85, "b": 0.15}, abs=1e-12)


# ---- cases without a discrepancy


@pytest.mark.parametrize("metric", ["kl", "l2"])
@pytest.mark.parametrize(
    ("counts", "target"),
    [({"a": [3, 3, 3], "b": [7, 7, 7]}, "uniform"), ({"a": [1, 2, 0], "b": [7, 14, 0]}, "global")],
)
def test_equal_shares_weigh_by_size_plus_b(metric, counts, target):
    """And not as in FedAvg, unless b is 0: an undefined 0/0 counts as no discrepancy."""
    sizes = {site: sum(own) for site, own in counts.items()}
    share = {site: size / sum(sizes.values()) for site, size in sizes.items()}
    assert discrepancies(counts, metric, target) == {"a": 0.0, "b": 0.0}
    by_site = weights(counts, metric=metric, target=target)
    assert by_site == pytest.approx({site: (part + 0.1) / 1.2 for site, part in share.items()}, abs=1e-12)
    assert weights(counts, metric=metric, target=target, b=0.0) == pytest.approx(share, abs=1e-12)


def test_where_all_weights_are_zero_sites_weigh_by_size(caplog):
    """Two sites of one class each: d = 1/2, and 1/3 - 5 and 2/3 - 5 are below 0."""
    assert weights({"a": [4, 0], "b": [0, 8]}, a=10.0) == {"a": 1 / 3, "b": 2 / 3}
    assert "weighing by size" in caplog.text


def test_classes_and_sites_without_images_are_no_nan():
    counts = {"empty": [0, 0, 0], "one": [0, 5, 0], "two": [0, 3, 3]}
    for metric in ("kl", "l2"):
        for target in ("uniform", "global"):
            distances = discrepancies(counts, metric, target)
            assert distances["empty"] == 0 < distances["one"] < 1
            assert sum(distances.values()) == pytest.approx(1)
    assert discrepancies({"a": [0, 0]}, target="global") == {"a": 0.0}
    assert weights({"a": [0, 0], "b": [0, 0]}) == {"a": 0.5, "b": 0.5}


# ---- invariances


COUNTS_OF_SITES = some.lists(
    some.lists(some.integers(0, 500), min_size=3, max_size=3).filter(any), min_size=1, max_size=6
).map(lambda sites: {str(index): own for index, own in enumerate(sites)})
ARGS = some.fixed_dictionaries(
    {
        "a": some.floats(0, 3),
        "b": some.floats(-0.5, 0.5),
        "metric": some.sampled_from(["kl", "l2"]),
        "normalise": some.booleans(),
        "target": some.sampled_from(["uniform", "global"]),
    }
)


@given(COUNTS_OF_SITES, ARGS)
def test_weights_are_convex_and_know_neither_units_nor_names_of_classes(counts, args):
    by_site = weights(counts, **args)
    assert min(by_site.values()) >= 0
    assert math.fsum(by_site.values()) == pytest.approx(1, abs=1e-9)
    doubled = {site: [2 * n for n in own] for site, own in counts.items()}
    assert weights(doubled, **args) == by_site
    renamed = {site: [own[2], own[0], own[1]] for site, own in counts.items()}
    distances = discrepancies(renamed, args["metric"], args["target"], args["normalise"])
    before = discrepancies(counts, args["metric"], args["target"], args["normalise"])
    assert distances == pytest.approx(before, rel=1e-9, abs=1e-12)


@given(COUNTS_OF_SITES)
def test_without_a_and_b_sites_weigh_what_they_weigh_in_fedavg(counts):
    sizes = {site: sum(own) for site, own in counts.items()}
    assert disco_weights(sizes, discrepancies(counts), 0.0, 0.0) == sizes


def test_a_further_site_weighs_less():
    falling = [weights({"a": [5, 5], "b": [5 + k, 5 - k]}, normalise=False)["b"] for k in range(6)]
    assert falling == sorted(falling, reverse=True)
    assert len(set(falling)) == 6


# ---- in a run


def test_a_skewed_site_moves_the_model_less(tmp_path):
    """With a = 2 and b = 0 it weighs nothing: the model is that of the other site alone."""
    even, odd = torch.arange(12) % 3, torch.ones(12, dtype=torch.int64)
    sites = {"even": make_site(12, "even", even), "odd": make_site(12, "odd", odd)}
    args = {"a": 2.0, "b": 0.0}
    run = {"task": make_task("plain"), "rounds": 2}
    both = Case(REGISTRY, "feddisco", args).run(tmp_path / "both", sites=sites, **run)
    alone = Case(REGISTRY, "fedavg").run(tmp_path / "alone", sites={"even": sites["even"]}, **run)
    assert tensors_equal(bits(both)["server/global"], bits(alone)["server/global"])
