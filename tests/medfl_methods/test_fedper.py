"""Tests of FedPer: the tensors that leave a site, averaged heads and different heads."""

import pytest
import torch
from pfedcdp_toys import NAMES
from torch import nn
from toys import Headed

from medfl.engine.store import Store
from medfl.networks.parts import mlp
from medfl.plugins import load_plugins
from medfl.testing.cohort import CLASSES, Case, make_task
from medfl.utils.wire import select, tensors_equal
from medfl_methods.fedas import FedAS
from medfl_methods.fedper import FedPer
from medfl_methods.fedrep import FedRep

REGISTRY = load_plugins()
AVERAGE = {"global_head": "average"}


def run(folder, args=None, name="fedper", **options):
    return Case(REGISTRY, name, args or {}).run(folder, **({"rounds": 2, "evaluate_every": 9} | options))


def part(tensors, name):
    return select(tensors, name + ".")


def personal(result, site):
    return result.models[site]["personal"].tensors


def sent(folder, site, step):
    return Store(folder / "state" / site).read(step, "reply/")


# ---- averaged heads


@pytest.mark.parametrize("kind", ["fedper", "fedrep"])
def test_global_head_is_the_mean_of_the_last_participants_heads(tmp_path, kind):
    away = {1: "site-1", 2: "site-2", 3: "site-3"}
    options = {"name": kind, "rounds": 3, "epochs": 2, "unavailable": lambda site, step: away.get(step) == site}
    result = run(tmp_path / "average", AVERAGE, **options)
    model = result.outcome.models["global"].tensors
    heads = {name: part(personal(result, name), "head") for name in NAMES}
    for key, mean in part(model, "head").items():
        expected = (21 * heads["site-1"][key].double() + 13 * heads["site-2"][key].double()) / 34
        torch.testing.assert_close(mean.double(), expected, atol=1e-6, rtol=0)
    plain = run(tmp_path / "none", **options)
    for name in NAMES:  # no site trains from the mean
        assert tensors_equal(personal(result, name), personal(plain, name))
        assert tensors_equal(result.models[name]["global"].tensors, model)
    assert tensors_equal(part(model, "body"), part(personal(result, "site-1"), "body"))


def test_head_is_sent_as_its_difference_to_the_mean(tmp_path):
    first = run(tmp_path / "one", AVERAGE, rounds=1)
    mean = part(first.outcome.models["global"].tensors, "head")
    result = run(tmp_path / "two", AVERAGE, rounds=2)
    own = part(personal(result, "site-2"), "head")
    update = select(sent(tmp_path / "two", "site-2", 2), "head/head.")
    assert tensors_equal(update, {key: own[key] - mean[key] for key in own})


def test_under_privacy_body_and_head_are_clipped_together(tmp_path):
    options = {"task": make_task("plain"), "epochs": 6, "privacy": {"epsilon": 1e7, "clip": 0.05}}
    result = run(tmp_path, AVERAGE, **options)
    for name in NAMES:
        update = sent(tmp_path, name, 2)
        assert {"head/head.weight", "model/body.0.weight"} <= update.keys()
        norm = torch.cat([tensor.double().flatten() for tensor in update.values()]).norm()
        assert float(norm) == pytest.approx(0.05, rel=0.05)
    assert result.outcome.status == "finished"


# ---- unlike heads (O-B20)


def unlike_task():
    task = make_task()
    heads = {
        "deep": lambda: Headed(mlp(24, (5,), CLASSES)),
        "deeper": lambda: Headed(mlp(24, (7, 4), CLASSES, norm=False)),
        "none": lambda: Headed(nn.Identity()),
    }
    return task.__class__(**{**vars(task), "networks": task.networks | heads, "_names": {}})


def unlike_run(folder, networks, kind=FedPer, **args):
    return run(folder, make_method=lambda: kind(**args), task=unlike_task(), networks_by_site=networks)


@pytest.mark.parametrize("kind", [FedPer, FedRep, FedAS])
def test_b_20_heads_may_differ(tmp_path, kind):
    result = unlike_run(tmp_path, {"site-2": "deep", "site-3": "deeper"}, kind)
    first_model, two, three = (personal(result, name) for name in NAMES)
    assert tensors_equal(part(first_model, "body"), part(two, "body"))
    assert tensors_equal(part(first_model, "body"), part(three, "body"))
    assert [len(part(model, "head")) for model in (first_model, two, three)] == [2, 9, 6]
    for name, network in zip(NAMES, ["norm", "deep", "deeper"], strict=True):
        moved = part(personal(result, name), "head")
        first = part(unlike_task().initial(7, network), "head")
        assert not any(torch.equal(moved[key], first[key]) for key in first if first[key].is_floating_point())
