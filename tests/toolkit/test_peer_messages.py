"""Tests of peer messages with a toy ring in which each site trains with its neighbour's model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from toys import SIZES, Ring, Toy, snapshot

from medfl.contract import PeerMessage, Plan, Reply, Request, Server, Site
from medfl.engine.journal import RunOutcome
from medfl.engine.store import Store
from medfl.testing import CHECKS
from medfl.testing.cohort import make_sites, scores
from medfl.utils.wire import tensors_equal


def state_of(folder: Path, name: str) -> Any:
    record = Store(folder / "state" / name).latest()
    assert record is not None
    return record.state()


def met(folder: Path) -> dict[str, Any]:
    """Site to [round, senders] of each of its trainings."""
    return {name: state_of(folder, name).meta["met"] for name in SIZES}


def test_each_site_trains_with_the_model_it_received(tmp_path: Path) -> None:
    result = Toy(Ring).run(tmp_path, rounds=3)
    before = {"site-1": "site-3", "site-2": "site-1", "site-3": "site-2"}
    assert met(tmp_path) == {name: [[r, [sender]] for r in (1, 2, 3)] for name, sender in before.items()}
    assert result.outcome.status == "finished"
    models = [models["personal"].tensors for models in result.models.values()]
    assert not tensors_equal(models[0], models[1])
    assert sorted(result.models["site-1"]) == ["personal"]


def test_sending_changes_nothing_at_the_sender(tmp_path: Path) -> None:
    states = []

    class Watched(Ring):
        def plan(self, server: Server) -> Plan | None:
            if server.rounds_done == 1:
                states.append(snapshot(tmp_path))
            return super().plan(server)

    Toy(Watched).run(tmp_path)
    after_train, after_send = states
    assert all(after_train[name] == after_send[name] for name in SIZES)


def test_the_server_gets_neither_tensors_nor_meta_of_peer_messages(tmp_path: Path) -> None:
    Toy(Ring).run(tmp_path)
    server = state_of(tmp_path, "server")
    assert server.tensors == {}
    assert server.meta["seen"] == [], "names of tensors in replies"
    for step in Store(tmp_path / "state" / "server").steps():
        record = Store(tmp_path / "state" / "server").load(step)
        assert record.tensors == {}
        assert "letter" not in str(record.meta)
    for index, senders in enumerate(server.meta["senders"]):
        assert all((value is None) == (index % 2 == 0) for value in senders.values()), (
            "meta of replies to `send` is empty"
        )


@pytest.mark.parametrize("who", ["site-1", "site-3"])
def test_without_its_sender_a_site_has_an_empty_inbox(who: str, tmp_path: Path) -> None:
    case = Toy(Ring, quorum=1)
    case.run(tmp_path, unavailable=lambda site, step: site == who and step == 1)
    follower = {"site-1": "site-2", "site-3": "site-1"}[who]
    rounds_by_site = met(tmp_path)
    assert rounds_by_site[follower][0] == [1, []]
    assert rounds_by_site[who][0] == [1, [{"site-1": "site-3", "site-3": "site-2"}[who]]], (
        "it was back for the training"
    )
    assert all(rounds[1][1] for rounds in rounds_by_site.values()), "in round 2 every site has a message"
    assert state_of(tmp_path, "server").meta["missing"] == [who]


def test_a_peer_message_waits_for_a_site_that_was_unavailable(tmp_path: Path) -> None:
    """A site is unavailable for `train` in round 1 and `send` in round 2; it finds both visiting models in round 2."""
    case = Toy(Ring, quorum=1)
    case.run(tmp_path, unavailable=lambda site, step: site == "site-2" and step in (2, 3))
    assert met(tmp_path)["site-2"] == [[2, ["site-1", "site-1"]]]


def test_a_site_may_post_to_itself(tmp_path: Path) -> None:
    Toy(Ring, to_self=True).run(tmp_path)
    assert met(tmp_path) == {name: [[1, [name]], [2, [name]]] for name in SIZES}


class Everybody(Ring):
    """Method in which each site sends to all others and to itself, in unsorted order."""

    def execute(self, site: Site, request: Request) -> Reply:
        reply = super().execute(site, request)
        if request.op == "send":
            mine = reply.peer_messages[0]
            reply.peer_messages = [PeerMessage(to, mine.tensors, mine.meta) for to in ("site-3", "site-1", "site-2")]
        return reply


@pytest.mark.parametrize("workers", [1, 2])
def test_the_inbox_is_sorted_by_sender(workers: int, tmp_path: Path) -> None:
    sites = dict(reversed(make_sites(SIZES).items()))
    Toy(Everybody).run(tmp_path, workers=workers, sites=sites)
    assert met(tmp_path) == {name: [[r, sorted(SIZES)] for r in (1, 2)] for name in SIZES}


@pytest.mark.parametrize("options", [{"alone": False}, {"alone": True}, {"backwards": True}])
def test_two_workers_give_the_same_bits(options: dict[str, bool], tmp_path: Path) -> None:
    Toy(Ring, **options).run(tmp_path / "1")
    Toy(Ring, **options).run(tmp_path / "2", workers=2)
    assert snapshot(tmp_path / "1") == snapshot(tmp_path / "2")


@pytest.mark.parametrize("alone", [False, True])
def test_a_round_is_evaluated_once(alone: bool, tmp_path: Path) -> None:
    """This holds for any number of steps, also with a step of the server alone."""
    rounds = []
    case = Toy(Ring, alone=alone)
    case.run(tmp_path, rounds=3)
    for line in scores(tmp_path):
        if ",test,aggregated,accuracy," in line:
            rounds.append(line.split(",")[:2])
    assert sorted(rounds) == [[str(r), name] for r in (1, 2, 3) for name in SIZES]
    trained = [line for line in scores(tmp_path) if ",train,trained,loss," in line]
    assert len(trained) == 3 * len(SIZES)
    assert len(state_of(tmp_path, "server").meta["senders"]) == 3 * (3 if alone else 2), "folds"


@pytest.mark.parametrize("alone", [False, True])
def test_it_continues_at_every_step(alone: bool) -> None:
    CHECKS["run_resumes_at_every_step"](Toy(Ring, alone=alone))


def outcomes(folder: Path, unavailable: Any) -> Iterator[RunOutcome]:
    yield Toy(Ring).run(folder, unavailable=unavailable).outcome
    yield Toy(Ring).run(folder, unavailable=unavailable).outcome
    yield Toy(Ring).run(folder).outcome


@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_all_sites_must_reply_where_no_quorum_is_given(
    step: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An unavailable site ends the run as incomplete. Its rows are kept, and the same command continues the run."""
    Toy(Ring).run(tmp_path / "whole")
    folder = tmp_path / "run"
    endings = outcomes(folder, lambda site, now: site == "site-2" and now == step)
    first = next(endings)
    assert (first.status, first.rounds) == ("incomplete", (step - 1) // 2)
    assert first.reason.startswith("2 of 3 needed replies came. Missing: site-")
    assert "no reply from site-2" in caplog.text
    kept = scores(folder)
    trained = [line for line in kept if ",train,trained,bytes_to_peers," in line]
    assert len(trained) == 3 * (step - 1) + 2, "rows of those who answered are kept"
    second = next(endings)
    assert second.status == "incomplete"
    assert scores(folder) == kept, "trying in vain adds no rows"
    assert "had ended as incomplete" in caplog.text
    assert next(endings).status == "finished"
    assert snapshot(folder) == snapshot(tmp_path / "whole")


def test_peer_messages_do_not_pile_up(tmp_path: Path) -> None:
    Toy(Ring).run(tmp_path, rounds=6)
    for name in SIZES:
        assert len(list((tmp_path / "state" / name / "inbox").iterdir())) <= 2
        blobs = list((tmp_path / "state" / name / "blobs").iterdir())
        assert [blob.stem for blob in blobs] == [state_of(tmp_path, name).blobs["first"]]


def test_a_received_model_is_a_copy(tmp_path: Path) -> None:
    """Changes by the receiver don't affect the sender."""

    class Rough(Everybody):
        def execute(self, site: Site, request: Request) -> Reply:
            reply = super().execute(site, request)
            for message in site.inbox:
                for tensor in message.tensors.values():
                    tensor.zero_()
            if request.op == "send":
                for tensor in reply.peer_messages[0].tensors.values():
                    assert bool(torch.isfinite(tensor).all())
            return reply

    Toy(Everybody).run(tmp_path / "fair")
    rough = Toy(Rough)
    rough.name = "everybody"
    rough.run(tmp_path / "rough")
    assert snapshot(tmp_path / "fair") == snapshot(tmp_path / "rough")
