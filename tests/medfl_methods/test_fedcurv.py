"""Tests of FedCurv: the penalty, the subtraction of a site's own terms, and the sums of one round."""

import pytest
import torch
from refusals import refused

from medfl.contract import Request, Site, State
from medfl.engine.store import Store
from medfl.errors import RefusedError
from medfl.plugins import load_plugins
from medfl.settings import Settings
from medfl.testing.cohort import Case, make_task, states
from medfl.toolkit.participant_state import auxiliary_state, set_auxiliary_state
from medfl.types import SERVER
from medfl_methods.fedcurv import FISHER_PREFIX, WEIGHTED_PREFIX, FedCurv, penalty

REGISTRY = load_plugins()


def run(folder, name="fedcurv", args=None, **options):
    return Case(REGISTRY, name, args or {}).run(folder, **({"task": make_task("plain")} | options))


# ---- the term


def test_penalty_gradient_equals_the_formula():
    """sum_j F_j (w - w_j)^2 has the gradient 2 (u w - v), and the value of the penalty up to a constant."""
    w = torch.tensor([0.5, -1.0], dtype=torch.float64, requires_grad=True)
    information, theirs = (
        torch.tensor([[1.0, 2.0], [0.0, 3.0]]).double(),
        torch.tensor([[1.0, 1.0], [4.0, -2.0]]).double(),
    )
    u, v = information.sum(0), (information * theirs).sum(0)
    value = penalty({"w": w}, {"w": u}, {"w": v})
    (gradient,) = torch.autograd.grad(value, w)
    assert gradient.tolist() == pytest.approx([-1.0, -2.0], abs=1e-12)  # 2 (1 0.5 - 1), 2 (5 (-1) - (2 - 6))
    full = (information * (w.detach() - theirs).square()).sum()
    assert value.item() + (information * theirs.square()).sum().item() == pytest.approx(full.item(), abs=1e-12)


# ---- whose terms are in it


def site_with_terms():
    site = Site("a", 2, State(), make_task("plain"), Settings(rounds=2))
    set_auxiliary_state(site, FISHER_PREFIX, {"w": torch.tensor([1.0, 2.0])})
    set_auxiliary_state(site, WEIGHTED_PREFIX, {"w": torch.tensor([3.0, 4.0])})
    return site


def test_site_subtracts_its_terms_from_its_own_copy():
    site = site_with_terms()
    sent = {f"{FISHER_PREFIX}w": torch.tensor([5.0, 2.0]), f"{WEIGHTED_PREFIX}w": torch.tensor([3.5, 4.0])}
    u, v = FedCurv().before_trainings(site, sent)["others"]
    assert (u["w"].tolist(), v["w"].tolist()) == ([4.0, 0.0], [0.5, 0.0])
    assert sent[f"{FISHER_PREFIX}w"].tolist() == [5.0, 2.0]
    assert not auxiliary_state(site, FISHER_PREFIX)
    assert not auxiliary_state(site, WEIGHTED_PREFIX)


def test_lost_terms_are_not_subtracted(monkeypatch):
    """The site's last reply may have been lost."""
    own = {}
    monkeypatch.setattr(
        FedCurv.__mro__[1], "train", lambda self, site, request: own.update(auxiliary_state(site, FISHER_PREFIX))
    )
    FedCurv().train(site_with_terms(), Request("a", "fit", meta={"counted": True}))
    assert own["w"].tolist() == [1.0, 2.0]
    own.clear()
    FedCurv().train(site_with_terms(), Request("a", "fit", meta={"counted": False}))
    assert own == {}


def test_sums_cover_the_last_round_only(tmp_path):
    run(tmp_path, rounds=2, unavailable=lambda site, step: site == "site-1" and step == 2)
    held = states(tmp_path)
    assert Store(tmp_path / "state" / SERVER).latest().state().meta["counted"] == ["site-2", "site-3"]
    for name in (name for name in held[SERVER] if name.startswith("kept/fisher/")):
        torch.testing.assert_close(held[SERVER][name], held["site-2"][name] + held["site-3"][name])


def test_negative_information_is_refused():
    request = Request("a", "fit", {"model/w": torch.zeros(1), "fisher/w": torch.zeros(1), "pull/w": torch.zeros(1)})
    sound = {"model/w": torch.ones(1), "fisher/w": torch.ones(1), "pull/w": -torch.ones(1)}
    FedCurv().check_tensors(make_task(), request, sound)
    for code, wrong in (
        ("invalid_tensor_values", {"fisher/w": -torch.ones(1)}),
        ("wrong_tensor", {"fisher/x": torch.ones(1)}),
        ("wrong_tensor", {"pull/w": torch.ones(2)}),
    ):
        with refused(RefusedError, code):
            FedCurv().check_tensors(make_task(), request, sound | wrong)
