"""What FedSKD refuses, and says of it; its presets and its start."""

import dataclasses

import pytest
from peer_toys import (
    REGISTRY,
)
from torch import nn

from medfl.contract import Server, State
from medfl.settings import Settings
from medfl.testing.cohort import Case, SmallNet, make_task


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
    assert "With gamma = 0, 'fedskd' is 'local' with p2p_scale times the epochs" in caplog.text


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
        returns.append(method.guests_return(server))
    assert returns == [True] * visits + [False] * (rounds - visits)
