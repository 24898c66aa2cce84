"""Tests of frozen parameters: they are not sent, noised or stored, and are complete in exported models."""

from __future__ import annotations

import copy
import csv
from dataclasses import replace

import pytest
import safetensors.torch as st
import torch
from refusals import refused
from torch import nn

from medfl.engine.evaluation import add_frozen_tensors
from medfl.engine.runs.start_source import find_start
from medfl.engine.store import Store
from medfl.errors import RefusedError, SettingsError, StoreError
from medfl.networks.transfer.frozen import frozen_tensors, full_state_dict, set_and_remove_frozen
from medfl.plugins import load_plugins
from medfl.testing.cohort import (
    Case,
    FixedConv,
    PartlyFrozenNet,
    SmallNet,
    bits,
    make_partly_frozen_task,
    make_sites,
    make_task,
    states,
)
from medfl.utils import wire
from medfl.utils.wire import tensors_equal

LEARNED = 4 * (6 + 6 + 6 + 6 + 24 * 3 + 3) + 8
"""Bytes of the tiny network's exchanged tensors: batch norm's four vectors, its int64 counter, and the head."""

FROZEN = ["body.0.weight", "body.0.bias"]


def case(method="fedavg", **settings):
    return Case(load_plugins(), method, {}, {"rounds": 2} | settings)


def costs(folder, metric):
    with open(folder / "metrics.csv") as file:
        return {float(row["value"]) for row in csv.DictReader(file) if row["metric"] == metric}


def drawn():
    """Return the tiny network with a frozen first layer with random weights."""
    network = SmallNet()
    network.body[0].requires_grad_(False)
    return network


def test_a_state_dict_lacks_frozen_parameters_and_loads_with_and_without_them():
    task = make_partly_frozen_task()
    model = task.build()
    assert list(task.frozen()) == FROZEN
    assert not set(FROZEN) & {*model.state_dict(), *task.initial(1), *task.names()}
    assert not {"0.weight", "0.bias"} & model.body.state_dict().keys()
    assert full_state_dict(model).keys() == SmallNet().state_dict().keys()
    for state in (task.initial(1), full_state_dict(task.load(task.initial(1)))):
        loaded = copy.deepcopy(model)
        loaded.load_state_dict(state)
        assert tensors_equal(full_state_dict(loaded), full_state_dict(task.load(task.initial(1))))
    plain = SmallNet()
    plain.load_state_dict(full_state_dict(model))
    assert torch.equal(plain.body[0].weight, FixedConv.original()["weight"])


def layers(frozen: int, *more: nn.Module) -> nn.Sequential:
    """Return linear layers of which the first ones are frozen, and other layers after them."""
    model = nn.Sequential(*(nn.Linear(2, 2).requires_grad_(number >= frozen) for number in range(3)), *more)
    set_and_remove_frozen(model, frozen_tensors(model))
    return model


def test_a_loaded_complete_model_replaces_the_frozen_tensors():
    model = layers(2)
    other = {name: torch.full_like(tensor, 7.0) for name, tensor in full_state_dict(model).items()}
    model.load_state_dict(other)
    assert tensors_equal(full_state_dict(model), other)


def test_a_frozen_weight_of_two_layers_is_removed_under_both_names():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    model[1].weight = model[0].weight
    set_and_remove_frozen(model, frozen_tensors(model))
    assert list(model.state_dict()) == ["1.bias", "2.weight", "2.bias"]
    assert {"0.weight", "1.weight"} <= full_state_dict(model).keys()


def test_dropout_between_frozen_and_trained_layers_is_active_in_training():
    model = layers(2, nn.Dropout(0.5)).train()
    assert [module.training for module in model] == [False, False, True, True]
    assert 0 < int((model[3](torch.ones(1000)) == 0).sum()) < 1000


def test_drawn_frozen_parameters_hang_on_neither_seed_nor_owner():
    task = replace(make_task(), networks={"norm": drawn})
    again = replace(make_task(), networks={"norm": drawn})
    first, second = task.load(task.initial(1)), again.load(again.initial(2, owner="site-1"))
    assert not torch.equal(first.head.weight, second.head.weight)
    assert torch.equal(first.body[0].weight, second.body[0].weight)
    assert task.frozen_digest() == again.frozen_digest() is not None
    assert make_task().frozen_digest() is None


def test_the_digest_is_computed_once_for_all_sites_and_again_for_another_network(monkeypatch):
    task, calls = replace(make_task(), networks={"norm": drawn}), []
    monkeypatch.setattr("medfl.task.digest", lambda tensors: calls.append(tensors) or wire.digest(tensors))
    weighted = [task.with_class_weights(torch.tensor([0, 1, 1])) for _ in range(5)]
    assert {site_task.frozen_digest() for site_task in weighted} == {task.frozen_digest()}
    assert len(calls) == 1
    assert make_task().with_network("norm", drawn).frozen_digest() == task.frozen_digest()
    assert task.with_network("norm", SmallNet).frozen_digest() is None


def test_frozen_parameters_of_a_body_come_from_the_file_of_weights(tmp_path):
    known = {name: torch.full_like(t, 0.5) for name, t in SmallNet().state_dict().items() if t.is_floating_point()}
    st.save_file(known, tmp_path / "weights.safetensors")
    start = find_start(str(tmp_path / "weights.safetensors"), load_plugins())
    task = replace(make_task(), networks={"norm": drawn}).with_start(start)
    assert all(bool((tensor == 0.5).all()) for tensor in task.frozen().values())
    assert bool((task.initial(1)["body.1.weight"] == 0.5).all())
    assert not set(FROZEN) & task.initial(1).keys()
    assert task.frozen_digest() != replace(make_task(), networks={"norm": drawn}).frozen_digest()


def test_a_network_with_nothing_to_learn_is_refused():
    task = replace(make_task(), networks={"norm": lambda: SmallNet().requires_grad_(False)})
    with refused(SettingsError, "no_trainable_parameters", network="norm", count=6):
        task.build()


@pytest.mark.parametrize(
    ("method", "up", "down", "peers"),
    [
        ("fedavg", LEARNED, LEARNED, 0),
        ("scaffold", LEARNED + 4 * (12 + 75), LEARNED + 4 * (12 + 75), 0),
        ("cyclic", LEARNED, LEARNED, 0),
        ("fedskd", 0, 0, LEARNED),
    ],
)
def test_bytes_are_those_of_what_learns(method, up, down, peers, tmp_path):
    case(method).run(tmp_path, task=make_partly_frozen_task(), sites=make_sites({"site-1": 6, "site-2": 6}))
    assert costs(tmp_path, "bytes_up") == {up}
    assert costs(tmp_path, "bytes_down") == {down}
    assert max(costs(tmp_path, "bytes_to_peers")) == peers


@pytest.mark.parametrize("unit", ["site", "sample"])
def test_noise_leaves_frozen_parameters_bit_identical(unit, tmp_path):
    class Plain(PartlyFrozenNet):
        def __init__(self):
            super().__init__()
            self.body[1] = nn.Identity()

    task = replace(make_task(), networks={"norm": Plain})
    run = case(privacy={"epsilon": 1.0, "clip": 0.5, "unit": unit})
    result = run.run(tmp_path, task=task)
    assert result.outcome.status == "finished"
    assert Store(tmp_path / "state" / "site-1").read(1, "reply/").keys() == {"model/head.weight", "model/head.bias"}
    model = add_frozen_tensors(run.make_method(), task, result.outcome.models)["global"]
    assert tensors_equal({name: model.tensors[f"body.0.{name}"] for name in ("weight", "bias")}, FixedConv.original())
    assert model.tensors.keys() == Plain().state_dict().keys()


@pytest.mark.parametrize("method", ["fedavg", "fedsm", "fedsdc"])
def test_a_completed_model_has_every_tensor_of_its_network(method, tmp_path):
    """This also holds if a method's model has several copies of the network, or another head."""
    run, task = case(method, rounds=1), replace(make_task(), networks={"norm": drawn})
    result = run.run(tmp_path, task=task)
    kind = run.make_method()
    for model in add_frozen_tensors(kind, task, result.models["site-1"]).values():
        predictor = kind.predictor(kind.task_of(task), [model])
        assert model.tensors.keys() == full_state_dict(predictor).keys()
        copies = [tensor for name, tensor in model.tensors.items() if name.endswith("body.0.weight")]
        assert copies
        assert all(torch.equal(tensor, task.frozen()["body.0.weight"]) for tensor in copies)


def test_neither_workers_nor_an_interruption_change_a_bit(tmp_path):
    whole = case("ditto").run(tmp_path / "whole", task=make_partly_frozen_task())
    workers = case("ditto").run(tmp_path / "workers", task=make_partly_frozen_task(), workers=2)
    case("ditto").run(tmp_path / "parts", task=make_partly_frozen_task(), rounds=1)
    parts = case("ditto").run(tmp_path / "parts", task=make_partly_frozen_task())
    for other in (workers, parts):
        assert all(tensors_equal(model, bits(other)[key]) for key, model in bits(whole).items())
    assert not [name for state in states(tmp_path / "parts").values() for name in state if name.endswith(tuple(FROZEN))]


def test_a_run_continues_with_its_frozen_parameters_only(tmp_path):
    """Another weights file in the network's constructor is refused."""
    case().run(tmp_path, task=make_partly_frozen_task(), rounds=1)
    with refused(StoreError, "other_run", setting="task.frozen.norm"):
        case().run(tmp_path, task=replace(make_task(), networks={"norm": drawn}))


def test_a_site_with_other_frozen_parameters_is_refused():
    pytest.importorskip("medfl_flare")
    from medfl_flare.backend.messages import Message
    from medfl_flare.backend.protocol_messages import read_begin_reply

    data = {"name": "", "modality": "", "classes": [], "names": [], "shared_test": None}
    ours, theirs = make_partly_frozen_task().frozen_digest(), "0" * 64
    for digest, expected in ((ours, theirs), (None, ours), (ours, None)):
        facts = {"trainable": True, "validates": True} | ({} if digest is None else {"frozen": digest})
        message = Message("begin", {}, {"facts": facts, "newest": 0, "data": data})
        with refused(RefusedError, "unlike_frozen_parameters", site="north"):
            read_begin_reply("north", message, 0, 0, expected)
        assert read_begin_reply("north", message, 0, 0, digest)["facts"]["validates"]
