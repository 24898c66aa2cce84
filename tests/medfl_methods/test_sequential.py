"""Tests of centralised training with a persistent optimiser, and of cyclic weight transfer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from quadratic_toys import quadratic

from medfl.engine.runs.simulation import SimulationResult
from medfl.plugins import load_plugins
from medfl.testing.cohort import Case, make_sites, make_task, states
from medfl_methods.cyclic import Cyclic

REGISTRY = load_plugins()


# ---- Pooled training

FULL_BATCHES = {
    "task": make_task("plain"),
    "sites": make_sites({"a": 9, "b": 8}),
    "batch_size": 17,
    "evaluate_every": 9,
}
"""Options with full batches, so that splitting a run into rounds changes no batch."""


def trained(folder, args, rounds, epochs, name="centralized", **options):
    case = Case(REGISTRY, name, args)
    return case.run(folder, **{**FULL_BATCHES, "rounds": rounds, "epochs": epochs, **options})


def test_centralized_persistent_momentum_makes_rounds_equal_to_steps(tmp_path):
    long = trained(tmp_path / "long", {}, 1, 4).outcome.models["global"].tensors
    kept = trained(tmp_path / "kept", {"optimizer_state": "persistent"}, 4, 1).outcome.models["global"].tensors
    reset = trained(tmp_path / "reset", {}, 4, 1).outcome.models["global"].tensors
    torch.testing.assert_close(kept, long, atol=1e-6, rtol=1e-5)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(reset, long, atol=1e-3, rtol=1e-3)


# ---- Cyclic weight transfer

NAMES = ("site-1", "site-2", "site-3")


def run_cyclic(
    folder: Path, args: dict[str, Any] | None = None, name: str = "cyclic", **options: Any
) -> SimulationResult:
    return Case(REGISTRY, name, args or {}).run(folder, **({"rounds": 1, "evaluate_every": 9} | options))


def visits(folder: Path, args: dict[str, Any] | None = None, away: Sequence[str] = (), **options: Any) -> list[str]:
    """Return the sites in the order in which they receive the model."""
    order: list[str] = []

    def unavailable(site: str, step: int) -> bool:
        order.append(site)
        return site in away

    run_cyclic(folder, args, unavailable=unavailable, **options)
    return order


def test_cyclic_each_site_continues_from_the_previous_one(tmp_path: Path) -> None:
    """Closed form: on (w - c)^2 / 2, five steps of length 0.1 leave 0.9^5 of the distance to c = 0, 1, 4 in turn."""
    w, kept = 0.0, 0.9**5
    for centre in (0.0, 1.0, 4.0) * 3:
        w = centre + kept * (w - centre)
    assert quadratic(tmp_path, lambda: Cyclic(order="fixed"), 3) == pytest.approx(w, abs=1e-6)


def test_cyclic_each_round_visits_each_site_once_in_a_new_order(tmp_path: Path) -> None:
    order = visits(tmp_path / "random", rounds=6)
    rounds = [tuple(order[start : start + 3]) for start in range(0, 18, 3)]
    assert len(order) == 18
    assert all(sorted(names) == list(NAMES) for names in rounds)
    assert len(set(rounds)) > 1
    assert visits(tmp_path / "fixed", {"order": "fixed"}, rounds=2) == [*NAMES, *NAMES]
    assert len(visits(tmp_path / "share", rounds=2, fraction=0.67)) == 4


def test_cyclic_skips_unavailable_sites(tmp_path: Path) -> None:
    """If only the first site replies, the model is that site's; the others received a request too."""
    assert visits(tmp_path / "away", {"order": "fixed"}, away=NAMES[1:]) == list(NAMES)
    alone = run_cyclic(tmp_path / "alone", sites={"site-1": make_sites()["site-1"]})
    away = states(tmp_path / "away")["server"]
    assert all(torch.equal(away[name], tensor) for name, tensor in alone.outcome.models["global"].tensors.items())
