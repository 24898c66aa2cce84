"""Test that a finished run keeps only the state that more rounds need, and stores identical models once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from refusals import refused
from toys import PAIR

from medfl.contract import Model, Server
from medfl.engine.runs.site_bundles import WeightsWriter
from medfl.engine.store import Store
from medfl.errors import StoreError
from medfl.plugins import load_plugins
from medfl.testing.cohort import Case, bits, make_sites, scores, states
from medfl.types import SERVER
from medfl.utils.files import bytes_in
from medfl.utils.wire import tensors_equal


def same_bits(ours: dict, theirs: dict) -> bool:
    return ours.keys() == theirs.keys() and all(tensors_equal(part, theirs[name]) for name, part in ours.items())


def same_end(case: Case, folder: Path, whole: Path, **settings: object) -> bool:
    """Return whether a continued run ends like a run whose state was never deleted."""
    expected = case.run(whole, sites=make_sites(PAIR), **settings)
    result = case.run(folder, sites=make_sites(PAIR), frees_space=True, **settings)
    alike = same_bits(bits(expected), bits(result)) and same_bits(states(whole), states(folder))
    return alike and scores(whole) == scores(folder)


@pytest.mark.parametrize("method", ["fedavg", "ditto", "fedskd"])
@pytest.mark.parametrize("settings", [{}, {"best_round": True, "keep_rounds": [1]}], ids=["last", "best"])
def test_more_rounds_continue_a_run_that_was_freed(tmp_path: Path, method: str, settings: dict) -> None:
    if method == "fedskd":
        settings = {name: value for name, value in settings.items() if name != "keep_rounds"}
    case = Case(load_plugins(), method, settings=settings)
    case.run(tmp_path / "freed", sites=make_sites(PAIR), frees_space=True, rounds=2)
    for path in (tmp_path / "freed" / "state").iterdir():
        steps = Store(path).steps()
        assert len(steps) <= (2 if settings else 1), "the newest, and that of the best round"
        for step in steps:
            names = Store(path).load(step).tensors
            assert not [name for name in names if not name.startswith("state/")], path.name
    assert same_end(case, tmp_path / "freed", tmp_path / "two", rounds=2), "the same command again"
    assert same_end(case, tmp_path / "freed", tmp_path / "five", rounds=5)


def test_a_run_that_ended_early_keeps_what_its_last_round_needs(tmp_path: Path) -> None:
    case = Case(load_plugins(), "fedavg")
    result = case.run(
        tmp_path / "run", sites=make_sites(PAIR), frees_space=True, unavailable=lambda site, step: step == 3
    )
    assert result.outcome.status == "incomplete"
    assert len(Store(tmp_path / "run" / "state" / SERVER).steps()) == 2
    assert same_end(case, tmp_path / "run", tmp_path / "whole")


class _StopError(Exception):
    """Error that simulates a kill."""


def test_a_reply_that_was_deleted_is_not_made_again(tmp_path: Path) -> None:
    """Restore an older state of the server. Training again could release new noise, so the step is refused."""
    case = Case(load_plugins(), "fedavg")

    class Stopped(case.kind):  # type: ignore[name-defined]
        supports = case.kind.supports

        def aggregate(self, server: Server, replies: object) -> None:
            if server.round == 2:
                raise _StopError
            super().aggregate(server, replies)

    with pytest.raises(_StopError):
        case.run(tmp_path / "run", sites=make_sites(PAIR), make_method=Stopped)
    Store(tmp_path / "run" / "state" / "site-1").free_space()
    with refused(StoreError, "deleted_reply", site="site-1", step=2):
        case.run(tmp_path / "run", sites=make_sites(PAIR))


def test_identical_weights_are_one_file(tmp_path: Path) -> None:
    weights = WeightsWriter()
    models = {
        name: Model("n", {"w": torch.full((1000,), value)}) for name, value in (("a", 1.0), ("b", 1.0), ("c", 2.0))
    }
    for name, model in models.items():
        weights.write(tmp_path / name / "model.pt", model)
    nodes = {name: (tmp_path / name / "model.pt").stat() for name in models}
    assert nodes["a"].st_ino == nodes["b"].st_ino != nodes["c"].st_ino
    assert (nodes["a"].st_nlink, nodes["c"].st_nlink) == (2, 1)
    assert nodes["a"].st_mode & 0o222 == 0, "writing into it would change both"
    assert nodes["c"].st_mode & 0o200
    assert bytes_in(tmp_path) == nodes["a"].st_size + nodes["c"].st_size
    again = WeightsWriter()
    for name in models:  # the same run gives its command again, and now a differs
        again.write(tmp_path / name / "model.pt", models["c" if name == "a" else name])
    loaded = {name: torch.load(tmp_path / name / "model.pt", weights_only=True)["w"][0] for name in models}
    assert loaded == {"a": 2.0, "b": 1.0, "c": 2.0}
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["model.pt"] * 3


def test_a_file_of_weights_does_not_depend_on_the_order_of_the_tensors(tmp_path: Path) -> None:
    tensors = {"w": torch.ones(3), "b": torch.zeros(2)}
    for name, ordered in (("a", tensors), ("b", dict(reversed(tensors.items())))):
        WeightsWriter().write(tmp_path / name / "model.pt", Model("n", ordered))
    assert (tmp_path / "a" / "model.pt").read_bytes() == (tmp_path / "b" / "model.pt").read_bytes()


def test_a_file_system_without_hard_links_gets_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*names: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    weights, model = WeightsWriter(), Model("n", {"w": torch.ones(3)})
    for name in ("a", "b"):
        weights.write(tmp_path / name / "model.pt", model)
    first, second = (tmp_path / name / "model.pt" for name in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()
    assert (first.stat().st_nlink, second.stat().st_nlink) == (1, 1)
    assert second.stat().st_mode & 0o200
