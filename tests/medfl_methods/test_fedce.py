"""FedCE: contributions by hand, what a site scores, and what it refuses."""

import math

import pytest
import torch

from medfl.engine.store import Store
from medfl.plugins import load_plugins
from medfl.testing.cohort import Case, make_sites, make_task
from medfl.types import SERVER
from medfl_methods.fedce import contributions, cosines_to_others, without

REGISTRY = load_plugins()
THIRDS = dict.fromkeys("abc", 1 / 3)
ERRORS = {"a": 0.2, "b": 0.3, "c": 0.5}


def run(folder, args=None, name="fedce", **options):
    return Case(REGISTRY, name, args or {}).run(folder, **({"rounds": 2} | options))


def newest(folder, name):
    return Store(folder / "state" / name).latest().state()


def cosines(weights=THIRDS, **updates):
    replies = [
        (name, {"model/w": torch.tensor(update), "model/n": torch.tensor(3)}) for name, update in updates.items()
    ]
    return cosines_to_others(replies, weights, ["w"])


# ---- the weights


def test_the_weights_have_the_values_of_the_formulas():
    means = cosines(a=[1.0, 0.0], b=[0.0, 1.0], c=[1.0, 1.0])
    assert means == pytest.approx({"a": 0.4472135955, "b": 0.4472135955, "c": 1.0}, abs=1e-9)
    assert contributions(means, ERRORS, "plus") == pytest.approx({"a": 0.35, "b": 0.4, "c": 0.25}, abs=1e-9)
    product = contributions(means, ERRORS, "times")
    assert product == pytest.approx({"a": 0.4 / 1.001, "b": 0.6 / 1.001, "c": 0.001 / 1.001}, abs=1e-9)
    assert math.fsum(product.values()) == pytest.approx(1)


def test_others_weigh_as_in_the_last_mean():
    weighted = cosines({"a": 0.5, "b": 0.4, "c": 0.1}, a=[1.0, 0.0], b=[0.0, 1.0], c=[1.0, 1.0])
    assert weighted["a"] == pytest.approx(0.1 / math.hypot(0.1, 0.5))


@pytest.mark.parametrize("updates", [{"a": [0.3, 0.1]}, {"a": [0.3, 0.1], "b": [0.0, 0.0]}])
def test_zero_vectors_have_the_cosine_0(updates):
    assert set(cosines(**updates).values()) == {0.0}


def test_others_that_cancel_are_a_zero_vector():
    assert cosines(a=[0.3, 0.1], b=[0.7, 0.1], c=[-0.7, -0.1])["a"] == 0


@pytest.mark.parametrize("mode", ["plus", "times"])
def test_where_nobody_contributes_all_weigh_alike(mode):
    ones, zeros = dict.fromkeys("abc", 1.0), dict.fromkeys("abc", 0.0)
    assert contributions(ones, zeros, mode) == pytest.approx(THIRDS)
    assert contributions({"a": 0.0, "b": 1.0}, {"a": 0.0, "b": 1.0}, "times") == {"a": 0.5, "b": 0.5}


def test_the_mean_without_a_model():
    mean, own = {"w": torch.tensor(2.0), "n": torch.tensor(3)}, {"w": torch.tensor(5.0), "n": torch.tensor(4)}
    assert without(mean, own, 0.25) == {"w": 1.0}
    assert without(mean, own, 0.0) == {"w": 2.0}


# ---- a run


def test_a_site_that_was_away_keeps_its_weight_and_scores_the_mean_as_it_is(tmp_path):
    run(tmp_path, rounds=1)
    shares = newest(tmp_path, SERVER).meta["shares"]
    common = run(tmp_path, absent=lambda site, step: site == "site-2").outcome.models["global"].tensors
    after = newest(tmp_path, SERVER).meta["shares"]
    assert after["site-2"] == shares["site-2"] != 1 / 3
    assert after["site-1"] != shares["site-1"]
    assert math.fsum(after.values()) == pytest.approx(1)
    run(tmp_path, rounds=3)
    images, labels = make_sites()["site-2"].val.batch(torch.arange(6))
    with torch.no_grad():
        right = (make_task().load(common).eval()(images).argmax(1) == labels).double().mean().item()
    assert newest(tmp_path, "site-2").meta["errors"] == [pytest.approx(1 + 1 - right), 2]
