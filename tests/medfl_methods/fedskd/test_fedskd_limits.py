"""Limit cases of FedSKD: Local without loss or visiting models (O-SK-5), FedCross* before its start (O-SK-11)."""

import dataclasses

import pandas as pd
import pytest
import torch
from peer_toys import (
    NAMES,
    REGISTRY,
    WIDTHS,
    atlas_task,
    host_to_owner,
    record_of,
    run,
    same,
    tensors_of,
)
from refusals import refused
from torch import nn

from medfl.contract import Server, State
from medfl.errors import SettingsError
from medfl.settings import Settings
from medfl.testing.cohort import Case, SmallNet, bits, make_task
from medfl.utils.wire import tensors_equal
from medfl_methods.fedskd.method import FedSKD


def test_with_the_loss_it_is_not_local(tmp_path):
    """The frozen head and the detached features have an effect, too."""
    task, seen = atlas_task(), []
    for number, args in enumerate(
        [
            {"gamma": 0.0},
            {"gamma": 5.0},
            {"gamma": 5.0, "freeze_ktm_header": False},
            {"gamma": 5.0, "skd_detach": "ktm"},
            {"gamma": 5.0, "skd_detach": "dam"},
            {"gamma": 5.0, "skd": ("batch",)},
            {"gamma": 5.0, "optimizer_state": "reset"},
            {"gamma": 5.0, "p2p_scale": 2},
        ]
    ):
        tensors = bits(run(tmp_path / str(number), "fedskd", {"p2p_scale": 1} | args, task=task, rounds=2))
        if args.get("skd_detach") == "dam":
            assert same(tensors, seen[0]), "nothing teaches the own model: this is gamma = 0"
        else:
            assert not any(same(tensors, other) for other in seen), args
        seen.append(tensors)


def test_left_to_itself_a_site_trains_as_local(tmp_path):
    """A site whose visiting model did not arrive trains as in Local in that round, and its reply says so."""
    task = atlas_task()
    route = host_to_owner(1)
    away = route["site-2"]
    assert away != "site-2"
    args, gone = {"p2p_scale": 1, "init": "own"}, {(away, 1)}
    result = run(
        tmp_path / "a", "fedskd", args, task=task, rounds=1, unavailable=lambda site, step: (site, step) in gone
    )
    local = run(tmp_path / "b", "local", {"optimizer_state": "persistent", "init": "own"}, task=task, rounds=1)
    assert tensors_equal(result.models["site-2"]["personal"].tensors, local.models["site-2"]["personal"].tensors)
    assert record_of(tmp_path / "a", "site-2", 2).meta["reply"] == {"visiting_owner": ""}
    others = {name for name in NAMES if route[name] not in (name, away)}
    assert others
    for name in others:
        assert record_of(tmp_path / "a", name, 2).meta["reply"] == {"visiting_owner": route[name]}
        assert not tensors_equal(result.models[name]["personal"].tensors, local.models[name]["personal"].tensors)


@pytest.mark.parametrize("state", ["persistent", "reset"])
def test_sk_11_before_its_start_it_is_fedcross_star(tmp_path, state):
    """The start is at half of 4 rounds: rounds 1 and 2 are equal, round 3 differs."""
    task, after = atlas_task(), []

    class Stepwise(FedSKD):
        def plan(self, server):
            if server.rounds_done == len(after) + 1:
                after.append(tensors_of(tmp_path / "skd"))
            return super().plan(server)

    def make_method():
        return Stepwise(start_fraction=0.5, optimizer_state=state)

    case = Case(REGISTRY, "fedskd")
    case.run(tmp_path / "skd", rounds=4, task=task, networks_by_site=WIDTHS, make_method=make_method)
    star = {"persistent": "travel", "reset": "reset"}[state]
    for rounds in (1, 2, 3):
        run(
            tmp_path / "star",
            "fedcross_star",
            {"optimizer_state": star},
            rounds=rounds,
            task=task,
            networks_by_site=WIDTHS,
        )
        assert same(after[rounds - 1], tensors_of(tmp_path / "star")) == (rounds <= 2)


def test_rounds_that_are_added_later_come_after_the_start(tmp_path):
    """The start is computed from the number of rounds that was requested first."""
    args = {"start_fraction": 0.5}
    for rounds in (2, 4):
        run(tmp_path, "fedskd", args, rounds=rounds)
    table = pd.read_csv(tmp_path / "metrics.csv")
    assert sorted(set(table.query("metric == 'visiting_models'")["round"])) == [2, 3, 4]
    assert set(table.query("metric == 'trained'")["round"]) == {1}


def make_method(**args):
    return REGISTRY.make_method("fedskd", args)


class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(36, 3)

    def forward(self, images):
        return self.layer(images.flatten(1))


def test_without_the_loss_and_the_frozen_head_any_network_will_do(tmp_path, caplog):
    task = dataclasses.replace(make_task(), networks={"norm": SmallNet, "bare": Bare})
    args = {"gamma": 0.0, "freeze_ktm_header": False}
    result = Case(REGISTRY, "fedskd", args).run(tmp_path, task=task, networks_by_site={"site-1": "bare"}, rounds=1)
    assert result.outcome.status == "finished"
    assert "With gamma = 0, 'fedskd' equals 'local' with p2p_scale times the epochs" in caplog.text


@pytest.mark.parametrize(
    ("rounds", "fraction", "visits"),
    [(40, 0.5, 20), (40, 0.25, 10), (40, 0.0, 0), (3, 0.5, 2), (30, 0.1, 3), (5, 1.0, 5)],
)
def test_the_start_is_rounded_up(rounds, fraction, visits):
    method = make_method(start_fraction=fraction)
    server = Server("server", 0, State(), make_task(), Settings(rounds=rounds), sites=["a", "b"])
    method.setup(server)
    returns = []
    for server.round in range(1, rounds + 1):
        returns.append(method.visiting_models_return(server))
    assert returns == [True] * visits + [False] * (rounds - visits)


@pytest.mark.parametrize(("labels", "own"), [(torch.ones(5, 6).long(), "plain"), (torch.ones(2, 6, 6).long(), "norm")])
def test_regions_on_another_grid_are_refused(tmp_path, labels, own):
    """The label volume has a wrong edge, or three axes for images of two."""
    task = dataclasses.replace(make_task(own), regions=labels)
    with refused(SettingsError, "wrong_shape", expected=[6, 6], found=list(labels.shape)):
        run(tmp_path, "fedskd", {"skd": ["region"]}, task=task)
