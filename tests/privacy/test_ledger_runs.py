"""Test runs with a ledger: shared budgets, continued runs, and the end of the budget."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from refusals import refused

from medfl.contract import Request, State
from medfl.engine.site import SiteRunner
from medfl.engine.store import Store
from medfl.errors import SettingsError
from medfl.plugins import load_plugins
from medfl.privacy.composition import NoisedReleases, epsilon
from medfl.records.ledger import Ledger, LedgerEntry
from medfl.testing.cohort import Case, bits, make_plan, make_sites, make_task
from medfl.utils.wire import prefixed


def case(**args: object) -> Case:
    return Case(load_plugins(), "fedavg", args, {"norm_sync": "params", "rounds": 2, "epochs": 1})


def entries(folder: Path) -> list[LedgerEntry]:
    return [entry for path in folder.glob("*.json") for entry in Ledger.read(path).entries.values()]


def test_runs_share_a_ledger_until_it_is_spent(tmp_path: Path) -> None:
    privacy = {"epsilon": 5.0, "clip": 0.5, "ledger": tmp_path / "ledger", "total_epsilon": 7.0}
    first = case().run(tmp_path / "1", privacy=privacy)
    assert len(list((tmp_path / "ledger").glob("*.json"))) == 3, "one file for each site's data"
    assert [len(entry.releases) for entry in entries(tmp_path / "ledger")] == [2, 2, 2]
    again = case().run(tmp_path / "again", privacy=privacy)
    assert all(torch.equal(a, b) for k in bits(first) for a, b in zip(bits(first)[k].values(), bits(again)[k].values()))
    assert len(entries(tmp_path / "ledger")) == 3, "the same run in another folder releases the same bits"
    with refused(SettingsError, "budget_spent", site="site-1", spent=pytest.approx(5.0), total_epsilon=7.0):
        case().run(tmp_path / "2", privacy=privacy, seed=8)
    assert not (tmp_path / "2" / "run.json").exists(), "the folder is still free"
    summary = case().run(tmp_path / "2", privacy=privacy | {"total_epsilon": 9.0}, seed=8).summary
    facts = summary.privacy["site-2"]
    assert (facts.runs, facts.releases, facts.total_epsilon) == (2, 2, 9.0)
    assert facts.epsilon == pytest.approx(5.0)
    assert facts.composed == pytest.approx(epsilon((NoisedReleases(facts.sigma, 4),), 1e-5, "replace"))
    moved = case().run(tmp_path / "2", privacy=privacy | {"ledger": None, "total_epsilon": None}, seed=8)
    assert moved.outcome.status == "finished", "where the ledger is, is no part of what the run is"


def test_a_kill_between_ledger_and_step_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = case().run(tmp_path / "whole", privacy={"epsilon": 5.0, "clip": 0.5})
    privacy = {"epsilon": 5.0, "clip": 0.5, "ledger": tmp_path / "ledger", "total_epsilon": 5.0}
    save, left = Store.save, [4]

    class StoppedError(Exception):
        """Error that simulates a kill."""

    def dying(self: Store, step: int, state: State, meta: dict, extra: dict | None = None, keep=()) -> None:
        if any(name.startswith("reply/") for name in extra or {}):
            left[0] -= 1
            if left[0] == 0:
                assert sum(len(entry.releases) for entry in entries(tmp_path / "ledger")) == 4, (
                    "written before it leaves"
                )
                raise StoppedError
        save(self, step, state, meta, extra, keep)

    monkeypatch.setattr(Store, "save", dying)
    with pytest.raises(RuntimeError, match="StoppedError"):
        case().run(tmp_path / "run", privacy=privacy)
    monkeypatch.setattr(Store, "save", save)
    ended = case().run(tmp_path / "run", privacy=privacy)
    assert [len(entry.releases) for entry in entries(tmp_path / "ledger")] == [2, 2, 2]
    for kind, tensors in bits(whole).items():
        assert all(torch.equal(tensor, bits(ended)[kind][name]) for name, tensor in tensors.items())


def test_without_a_ledger_a_run_keeps_account_of_itself(tmp_path: Path) -> None:
    result = case().run(tmp_path, privacy={"epsilon": 5.0, "clip": 0.5})
    assert {site: facts.releases for site, facts in result.summary.privacy.items()} == dict.fromkeys(make_sites(), 2)
    stored = json.loads((tmp_path / "state" / "site-1" / "privacy.json").read_text())
    (entry,) = stored["entries"].values()
    assert sorted(entry) == [
        "adjacency",
        "delta",
        "epsilon",
        "mechanism",
        "planned",
        "rate",
        "releases",
        "sigma",
        "steps",
        "threshold",
        "unit",
    ], "numbers and hashes, nothing of a patient"
    assert case().run(tmp_path / "open").summary.privacy == {}


def test_a_method_that_sends_too_often_is_stopped(tmp_path: Path) -> None:
    task, settings = make_task("plain"), case().settings_of(privacy={"epsilon": 5.0, "clip": 0.5})
    host = SiteRunner("a", make_sites()["site-1"], tmp_path, make_plan(settings, task), lambda step, peer_message: None)
    request = Request("a", "fit", prefixed(task.initial(1), "model/"))
    for step in (1, 2, 3):
        answer = host.step(case().make_method, request, step, round_=step, tensors_digest=str(step))
        assert (answer.refused is None) == (step < 3), "two rounds, three sendings"
    assert "covers 2 releases, and all were made" in answer.refused
    assert not host.store.read(3, "reply/")
