"""FLASH against numbers of the formulas."""

import logging

import pytest
import torch

from medfl.contract import Server, State
from medfl.settings import Settings
from medfl.testing.cohort import make_task
from medfl_methods.flash import Flash


def walk(method, updates):
    """w and delta after each of some mean updates of one coordinate; a buffer beside it takes them as they are."""
    server = Server("server", 1, State({}, {"parameters": ["w"]}), make_task(), Settings(rounds=9), sites=["a"])
    shared, trace = {name: torch.zeros((), dtype=torch.float64) for name in ("w", "running")}, []
    for number, update in enumerate(updates, start=1):
        mean = dict.fromkeys(shared, torch.tensor(update, dtype=torch.float64))
        shared = method.server_update(server, shared, mean)
        trace.append((shared["w"].item(), server.state.tensors["kept/drift/w"].item()))
        assert shared["running"].item() == pytest.approx(sum(updates[:number]))
    return trace


def test_two_rounds_have_the_values_of_the_formulas():
    (w1, delta1), (w2, delta2) = walk(Flash(), [0.05, 0.05])
    assert (w1, delta1) == pytest.approx((0.0141843972, 0.002475), abs=1e-9)
    assert (w2, delta2) == pytest.approx((0.0311399991, 0.0024505), abs=1e-9)


def test_a_long_update_goes_uphill_unless_it_is_guarded(caplog):
    with caplog.at_level(logging.WARNING, logger="medfl_methods.flash"):
        assert walk(Flash(), [0.5])[0][0] == pytest.approx(0.5, abs=1e-9)
        assert caplog.records == []
        assert walk(Flash(guard=False), [0.5])[0][0] == pytest.approx(-0.0025445293, abs=1e-9)
    assert "1 coordinates of FLASH's denominator are not above zero" in caplog.text


def test_a_coordinate_that_never_moves_stays():
    assert walk(Flash(), [0.0, 0.0]) == [(0.0, 0.0), (0.0, 0.0)]
