"""Pooled training whose optimiser goes on from round to round."""

import pytest
import torch

from medfl.plugins import load_plugins
from medfl.testing.cohort import Case, make_sites, make_task

REGISTRY = load_plugins()
WHOLE = {"task": make_task("plain"), "sites": make_sites({"a": 9, "b": 8}), "batch_size": 17, "evaluate_every": 9}
"""A step sees all images, so that cutting a run into rounds changes no batch."""


def trained(folder, args, rounds, epochs, name="centralized", **options):
    case = Case(REGISTRY, name, args)
    return case.run(folder, **{**WHOLE, "rounds": rounds, "epochs": epochs, **options})


def test_rounds_of_one_step_are_one_round_of_many_if_the_momentum_is_kept(tmp_path):
    long = trained(tmp_path / "long", {}, 1, 4).outcome.models["global"].tensors
    kept = trained(tmp_path / "kept", {"optimizer_state": "persistent"}, 4, 1).outcome.models["global"].tensors
    reset = trained(tmp_path / "reset", {}, 4, 1).outcome.models["global"].tensors
    torch.testing.assert_close(kept, long, atol=1e-6, rtol=1e-5)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(reset, long, atol=1e-3, rtol=1e-3)
