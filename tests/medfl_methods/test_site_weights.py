"""Tests of methods with aggregation weights other than the sizes: the weights by hand."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from refusals import refused

from medfl.contract import Server, State
from medfl.data.pooled import EmptyDataset
from medfl.engine.store import Store
from medfl.errors import SettingsError
from medfl.plugins import load_plugins
from medfl.settings import Settings
from medfl.testing.cohort import Case, bits, make_site, make_sites, make_task
from medfl.toolkit.aggregation import normalised_weights
from medfl.types import SERVER
from medfl.utils.wire import tensors_equal
from medfl_methods.fedce import contributions, cosines_to_others, remove_model
from medfl_methods.feddg_ga import adjust_weights
from medfl_methods.feddisco import FedDisco, disco_weights, discrepancies

REGISTRY = load_plugins()


# ---- FedCE

FEDCE_THIRDS = dict.fromkeys("abc", 1 / 3)
ERRORS = {"a": 0.2, "b": 0.3, "c": 0.5}


def run_fedce(folder, args=None, name="fedce", **options):
    return Case(REGISTRY, name, args or {}).run(folder, **({"rounds": 2} | options))


def newest_fedce(folder, name):
    return Store(folder / "state" / name).latest().state()


def cosines_fedce(weights=FEDCE_THIRDS, **updates):
    replies = [
        (name, {"model/w": torch.tensor(update), "model/n": torch.tensor(3)}) for name, update in updates.items()
    ]
    return cosines_to_others(replies, weights, ["w"])


def test_fedce_weights_equal_the_formulas():
    means = cosines_fedce(a=[1.0, 0.0], b=[0.0, 1.0], c=[1.0, 1.0])
    assert means == pytest.approx({"a": 0.4472135955, "b": 0.4472135955, "c": 1.0}, abs=1e-9)
    assert contributions(means, ERRORS, "plus") == pytest.approx({"a": 0.35, "b": 0.4, "c": 0.25}, abs=1e-9)
    product = contributions(means, ERRORS, "times")
    assert product == pytest.approx({"a": 0.4 / 1.001, "b": 0.6 / 1.001, "c": 0.001 / 1.001}, abs=1e-9)
    assert math.fsum(product.values()) == pytest.approx(1)


def test_fedce_other_updates_have_the_weights_of_the_last_mean():
    weighted = cosines_fedce({"a": 0.5, "b": 0.4, "c": 0.1}, a=[1.0, 0.0], b=[0.0, 1.0], c=[1.0, 1.0])
    assert weighted["a"] == pytest.approx(0.1 / math.hypot(0.1, 0.5))


@pytest.mark.parametrize("updates", [{"a": [0.3, 0.1]}, {"a": [0.3, 0.1], "b": [0.0, 0.0]}])
def test_fedce_zero_vectors_have_the_cosine_0(updates):
    assert set(cosines_fedce(**updates).values()) == {0.0}


def test_fedce_cancelling_updates_count_as_a_zero_vector():
    assert cosines_fedce(a=[0.3, 0.1], b=[0.7, 0.1], c=[-0.7, -0.1])["a"] == 0


@pytest.mark.parametrize("mode", ["plus", "times"])
def test_fedce_weights_are_equal_without_any_contribution(mode):
    ones, zeros = dict.fromkeys("abc", 1.0), dict.fromkeys("abc", 0.0)
    assert contributions(ones, zeros, mode) == pytest.approx(FEDCE_THIRDS)
    assert contributions({"a": 0.0, "b": 1.0}, {"a": 0.0, "b": 1.0}, "times") == {"a": 0.5, "b": 0.5}


def test_fedce_removing_a_model_from_the_mean():
    mean, own = {"w": torch.tensor(2.0), "n": torch.tensor(3)}, {"w": torch.tensor(5.0), "n": torch.tensor(4)}
    assert remove_model(mean, own, 0.25) == {"w": 1.0}
    assert remove_model(mean, own, 0.0) == {"w": 2.0}


def test_fedce_unavailable_site_keeps_its_weight_and_evaluates_the_full_mean(tmp_path):
    run_fedce(tmp_path, rounds=1)
    shares = newest_fedce(tmp_path, SERVER).meta["shares"]
    common = run_fedce(tmp_path, unavailable=lambda site, step: site == "site-2").outcome.models["global"].tensors
    after = newest_fedce(tmp_path, SERVER).meta["shares"]
    assert after["site-2"] == shares["site-2"] != 1 / 3
    assert after["site-1"] != shares["site-1"]
    assert math.fsum(after.values()) == pytest.approx(1)
    run_fedce(tmp_path, rounds=3)
    images, labels = make_sites()["site-2"].val.batch(torch.arange(6))
    with torch.no_grad():
        right = (make_task().load(common).eval()(images).argmax(1) == labels).double().mean().item()
    assert newest_fedce(tmp_path, "site-2").meta["errors"] == [pytest.approx(1 + 1 - right), 2]


# ---- FedDG-GA

FEDDG_GA_THIRDS = dict.fromkeys("abc", 1 / 3)


def run_feddg_ga(folder, args=None, name="feddg_ga", **options):
    return Case(REGISTRY, name, args or {}).run(folder, **({"rounds": 2} | options))


def newest_feddg_ga(folder, name):
    return Store(folder / "state" / name).latest().state()


def test_feddg_ga_weights_move_by_the_centred_gaps():
    weights = adjust_weights(FEDDG_GA_THIRDS, {"a": 0.3, "b": 0.1, "c": -0.1}, 0.2)
    assert list(weights.values()) == pytest.approx([8 / 15, 5 / 15, 2 / 15], abs=1e-12)
    assert list(weights.values()) != pytest.approx([0.375, 0.3333333333, 0.2916666667], abs=1e-3)


def test_feddg_ga_preset_code_equals_the_released_code():
    """The released rule moves a by a third of the step along G / max |G|, without subtracting a mean."""
    method, gaps = REGISTRY.make_method("feddg_ga", {"preset": "code"}), {"a": 0.3, "b": 0.1, "c": -0.1}
    assert (method.gaps, method.step) == ("raw", pytest.approx(0.2 / 3))
    assert adjust_weights(FEDDG_GA_THIRDS, gaps, method.step, centre=False) == pytest.approx(
        {"a": 0.375, "b": 1 / 3, "c": 7 / 24}
    )
    alike = adjust_weights({"a": 0.5, "b": 0.3, "c": 0.2}, dict.fromkeys("abc", 0.1), 0.1, centre=False)
    assert alike == pytest.approx({"a": 0.6 / 1.3, "b": 0.4 / 1.3, "c": 0.3 / 1.3}), "all move, since none is the mean"
    assert adjust_weights(FEDDG_GA_THIRDS, dict.fromkeys("abc", 0.0), 0.2, centre=False) == FEDDG_GA_THIRDS


def test_feddg_ga_run_with_raw_gaps_uses_them(tmp_path):
    """The weights after two rounds follow from the gaps that the sites sent."""
    run_feddg_ga(tmp_path, {"preset": "code"})
    gaps = {name: Store(tmp_path / "state" / name).latest().meta["reply"]["gap"] for name in make_sites()}
    expected = adjust_weights(dict.fromkeys(gaps, 1 / 3), gaps, 0.2 / 3, centre=False)
    assert newest_feddg_ga(tmp_path, SERVER).meta["shares"] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("gaps", [{}, {"a": 5.0}, dict.fromkeys("abc", 0.1), dict.fromkeys("abc", 0.0), {"x": 1.0}])
def test_feddg_ga_equal_gaps_change_nothing(gaps):
    assert adjust_weights(FEDDG_GA_THIRDS, gaps, 0.2) == FEDDG_GA_THIRDS


def test_feddg_ga_weights_sum_to_1_and_unavailable_sites_keep_theirs():
    weights = adjust_weights({"a": 0.9, "b": 0.05, "c": 0.05}, {"a": 2.0, "b": -1.0}, 0.2)
    assert weights == pytest.approx({"a": 1 / 1.05, "b": 0.0, "c": 0.05 / 1.05})


def test_feddg_ga_unavailable_site_has_no_gap(tmp_path):
    run_feddg_ga(tmp_path, rounds=3, unavailable=lambda site, step: site == "site-2" and step == 2)
    shares = newest_feddg_ga(tmp_path, SERVER).meta["shares"]
    assert math.fsum(shares.values()) == pytest.approx(1)
    assert newest_feddg_ga(tmp_path, "site-2").meta["sent"]["round"] == 3
    assert shares["site-2"] == pytest.approx(1 / 3)  # the other two moved against each other


def test_feddg_ga_requires_validation_images_and_a_fixed_number_of_rounds(tmp_path):
    sites = make_sites()
    blind = sites | {"site-2": dataclasses.replace(sites["site-2"], val=EmptyDataset())}
    with refused(SettingsError, "no_images", split="val", sites=["site-2"]):
        run_feddg_ga(tmp_path / "blind", sites=blind)
    run_feddg_ga(tmp_path / "longer", rounds=3)
    with refused(SettingsError, "other_round_count", expected=3, found=4):
        run_feddg_ga(tmp_path / "longer", rounds=4)


# ---- FedDisco

FEDDISCO_COUNTS = {"a": [2, 2], "b": [4, 0], "c": [3, 1]}
"""12 images of two classes, a third of them at each site."""
KL = {"a": 0.0, "b": math.log(2), "c": 0.75 * math.log(1.5) + 0.25 * math.log(0.5)}
"""Divergence from equal shares: log 2 minus the entropy."""


def weights_feddisco(counts, **args):
    """Return the final weights of the sites."""
    server = Server("server", 1, State(), make_task(), Settings(rounds=1), sites=sorted(counts))
    metas = {site: {"size": sum(own), "label_counts": own} for site, own in counts.items()}
    return normalised_weights(FedDisco(**args).weights_of(server, metas), metas)


def test_feddisco_discrepancies():
    assert discrepancies(FEDDISCO_COUNTS, normalise=False) == pytest.approx(KL, abs=1e-12)
    assert KL["c"] == pytest.approx(0.1308120359, abs=1e-9)
    total = sum(KL.values())
    assert discrepancies(FEDDISCO_COUNTS) == pytest.approx({site: d / total for site, d in KL.items()}, abs=1e-12)
    root = math.sqrt(2)
    plain = discrepancies(FEDDISCO_COUNTS, "l2", normalise=False)
    assert plain == pytest.approx({"a": 0.0, "b": root / 2, "c": root / 4}, abs=1e-12)
    assert discrepancies(FEDDISCO_COUNTS, "l2") == pytest.approx({"a": 0.0, "b": 2 / 3, "c": 1 / 3}, abs=1e-12)
    # all together they have shares (3/4, 1/4), which are those of c
    assert discrepancies(FEDDISCO_COUNTS, "l2", "global", False) == pytest.approx(
        {"a": root / 4, "b": root / 4, "c": 0.0}
    )
    towards = discrepancies(FEDDISCO_COUNTS, "kl", "global", False)
    assert towards == pytest.approx({"a": 0.5 * math.log(4 / 3), "b": math.log(4 / 3), "c": 0.0}, abs=1e-12)


def test_feddisco_weights():
    # n - a d + b with l2, d = (0, 2/3, 1/3): 13/30, 1/10 and 4/15, which sum to 4/5
    by_site = weights_feddisco(FEDDISCO_COUNTS, metric="l2")
    assert by_site == pytest.approx({"a": 13 / 24, "b": 1 / 8, "c": 1 / 3}, abs=1e-12)
    # a = 1, b = 0: 1/3, -1/3 and 0
    assert weights_feddisco(FEDDISCO_COUNTS, metric="l2", a=1.0, b=0.0) == pytest.approx(
        {"a": 1.0, "b": 0.0, "c": 0.0}, abs=1e-12
    )
    total = sum(KL.values())
    raw = {site: 1 / 3 - 0.5 * d / total + 0.1 for site, d in KL.items()}
    raw["b"] = max(raw["b"], 0)
    assert weights_feddisco(FEDDISCO_COUNTS) == pytest.approx(
        {site: w / sum(raw.values()) for site, w in raw.items()}, abs=1e-12
    )


def test_feddisco_weights_depend_on_sizes():
    """Shares of 3/4 and 1/4, discrepancies 0 and 1: 3/4 + 1/10 and 1/4 - 1/5 + 1/10."""
    by_site = weights_feddisco({"a": [3, 3], "b": [2, 0]}, a=0.2)
    assert by_site == pytest.approx({"a": 0.85, "b": 0.15}, abs=1e-12)


@pytest.mark.parametrize("metric", ["kl", "l2"])
@pytest.mark.parametrize(
    ("counts", "target"),
    [({"a": [3, 3, 3], "b": [7, 7, 7]}, "uniform"), ({"a": [1, 2, 0], "b": [7, 14, 0]}, "global")],
)
def test_feddisco_equal_class_shares_give_size_plus_b(metric, counts, target):
    """The weights differ from FedAvg unless b is 0; an undefined 0/0 counts as no discrepancy."""
    sizes = {site: sum(own) for site, own in counts.items()}
    share = {site: size / sum(sizes.values()) for site, size in sizes.items()}
    assert discrepancies(counts, metric, target) == {"a": 0.0, "b": 0.0}
    by_site = weights_feddisco(counts, metric=metric, target=target)
    assert by_site == pytest.approx({site: (part + 0.1) / 1.2 for site, part in share.items()}, abs=1e-12)
    assert weights_feddisco(counts, metric=metric, target=target, b=0.0) == pytest.approx(share, abs=1e-12)


def test_feddisco_zero_weights_fall_back_to_sizes(caplog):
    """Two sites of one class each: d = 1/2, and 1/3 - 5 and 2/3 - 5 are below 0."""
    assert weights_feddisco({"a": [4, 0], "b": [0, 8]}, a=10.0) == {"a": 1 / 3, "b": 2 / 3}
    assert "weighing by size" in caplog.text


def test_feddisco_empty_classes_and_sites_give_no_nan():
    counts = {"empty": [0, 0, 0], "one": [0, 5, 0], "two": [0, 3, 3]}
    for metric in ("kl", "l2"):
        for target in ("uniform", "global"):
            distances = discrepancies(counts, metric, target)
            assert distances["empty"] == 0 < distances["one"] < 1
            assert sum(distances.values()) == pytest.approx(1)
    assert discrepancies({"a": [0, 0]}, target="global") == {"a": 0.0}
    assert weights_feddisco({"a": [0, 0], "b": [0, 0]}) == {"a": 0.5, "b": 0.5}


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
def test_feddisco_weights_are_convex_and_invariant_to_units_and_class_names(counts, args):
    by_site = weights_feddisco(counts, **args)
    assert min(by_site.values()) >= 0
    assert math.fsum(by_site.values()) == pytest.approx(1, abs=1e-9)
    doubled = {site: [2 * n for n in own] for site, own in counts.items()}
    assert weights_feddisco(doubled, **args) == by_site
    renamed = {site: [own[2], own[0], own[1]] for site, own in counts.items()}
    distances = discrepancies(renamed, args["metric"], args["target"], args["normalise"])
    before = discrepancies(counts, args["metric"], args["target"], args["normalise"])
    assert distances == pytest.approx(before, rel=1e-9, abs=1e-12)


@given(COUNTS_OF_SITES)
def test_feddisco_without_a_and_b_has_the_weights_of_fedavg(counts):
    sizes = {site: sum(own) for site, own in counts.items()}
    assert disco_weights(sizes, discrepancies(counts), 0.0, 0.0) == sizes


def test_feddisco_larger_discrepancy_lowers_the_weight():
    falling = [weights_feddisco({"a": [5, 5], "b": [5 + k, 5 - k]}, normalise=False)["b"] for k in range(6)]
    assert falling == sorted(falling, reverse=True)
    assert len(set(falling)) == 6


def test_feddisco_skewed_site_has_less_influence(tmp_path):
    """The skewed site has weight 0 (a = 2, b = 0), so the global model is the other site's model."""
    even, odd = torch.arange(12) % 3, torch.ones(12, dtype=torch.int64)
    sites = {"even": make_site(12, "even", even), "odd": make_site(12, "odd", odd)}
    args = {"a": 2.0, "b": 0.0}
    run = {"task": make_task("plain"), "rounds": 2}
    both = Case(REGISTRY, "feddisco", args).run(tmp_path / "both", sites=sites, **run)
    alone = Case(REGISTRY, "fedavg").run(tmp_path / "alone", sites={"even": sites["even"]}, **run)
    assert tensors_equal(bits(both)["server/global"], bits(alone)["server/global"])
