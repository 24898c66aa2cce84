"""APFL against closed forms and a plain loop, and the methods that it is at its limits."""

import pytest
import torch
from quadratic_toys import QUADRATIC, quadratic_sites

from medfl.contract import Order, Site, State
from medfl.settings import Settings
from medfl.toolkit.kept import keep, kept
from medfl_methods.apfl import APFL, MIXED, OWN


def scalar(w, v, epochs, **args):
    """A site whose images have the value 4 after a training."""
    site = Site("c", 1, State(), QUADRATIC, Settings(rounds=1, epochs=epochs))
    site.train = quadratic_sites()["c"].train
    keep(site, OWN, {"w": torch.tensor(v, dtype=torch.float64)})
    reply = APFL(**args).train(site, Order("c", "fit", {"model/w": torch.tensor(w, dtype=torch.float64)}))
    return site, w + reply.tensors["model/w"].item()


def test_five_steps_have_the_values_of_the_formulas():
    site, w = scalar(0.0, 0.0, 5, alpha=0.5, adaptive=False)
    assert w == pytest.approx(1.63804, abs=1e-9)
    assert kept(site, OWN)["w"].item() == pytest.approx(0.8630914844, abs=1e-9)
    assert kept(site, MIXED)["w"].item() == pytest.approx(1.2505657422, abs=1e-9)


def test_alpha_takes_one_step_a_round():
    for epochs in (1, 3):
        site, _ = scalar(1.0, 3.0, epochs, alpha=0.5)
        assert site.state.meta["alpha"] == pytest.approx(0.9)  # 0.5 - 0.1 <3 - 1, 2 - 4>
    assert scalar(1.0, 3.0, 1, alpha=0.5, adaptive=False)[0].state.meta["alpha"] == 0.5
    assert scalar(1.0, -30.0, 1, alpha=0.5)[0].state.meta["alpha"] == 0.0
