"""Tests of rounds with several steps (`medfl.toolkit.rounds`): planning, state, end, and continuation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from refusals import refused
from toys import Toy

from medfl.contract import Reply, Request, Server, Site, State
from medfl.engine.store import Store
from medfl.errors import ContractError
from medfl.settings import Settings
from medfl.testing import CHECKS
from medfl.testing.cohort import make_data, make_task
from medfl.toolkit.averaging import Averaging
from medfl.toolkit.rounds import COMMITTED_STEPS, RoundStep, ScheduledStep
from medfl.utils.rng import make_generator

NAMES = ["site-1", "site-2", "site-3"]


class Replies:
    """Replies without tensors."""

    def __init__(self, meta=None):
        self.meta, self.missing = meta or {}, []

    def __iter__(self):
        return iter((name, {}) for name in sorted(self.meta))

    def __len__(self):
        return len(self.meta)


class Counting(Averaging):
    """Method whose sites train, then count images as often as the round's number; the server then notes the round."""

    def round_steps(self):
        return (
            *super().round_steps(),
            RoundStep("count", self.count_requests, self.count, self.add, quorum=self.expected),
            RoundStep("note", aggregate=self.note),
        )

    def remaining_steps(self, server, done):
        counts = [ScheduledStep("count", turn) for turn in range(server.round)]
        return [ScheduledStep("fit"), *counts, ScheduledStep("note")][len(done) :]

    def count_requests(self, server):
        turn = self.current_step(server).turn
        return [Request(name, "count", meta={"turn": turn}) for name in server.trainable()]

    def count(self, site, request):
        site.state.meta["turns"] = [*site.state.meta.get("turns", []), [site.round, request.meta["turn"]]]
        return Reply(meta={"size": len(site.train)})

    def add(self, server, replies):
        sizes = server.state.meta.setdefault("sizes", [])
        sizes.append(
            [server.round, self.current_step(server).turn, sum(meta["size"] for meta in replies.meta.values())]
        )

    def expected(self, server):
        return 1 + self.current_step(server).turn

    def note(self, server, replies):
        assert len(replies) == 0
        server.state.meta = server.state.meta | {"noted": server.round}


def server_of(**settings) -> Server:
    settings = Settings(**({"rounds": 3, "min_replies": 2} | settings))
    return Server("server", 1, State(), make_task("plain"), settings, sites=NAMES)


def steps_of(method, server, replies):
    """Execute the remaining steps and return each as (round, op, sites, ends_round, quorum)."""
    while True:
        server.round = server.rounds_done + 1
        plan = method.plan(server)
        if plan is None:
            return
        ops = {request.op for request in plan.requests}
        yield (plan.round, *(ops or {"-"}), len(plan.requests), plan.ends_round, plan.quorum)
        method.aggregate(server, replies if plan.requests else Replies())
        server.rounds_done += plan.ends_round


def test_a_plain_round_is_one_step_and_leaves_no_trace():
    server, method = server_of(), Averaging()
    method.setup(server)
    before = set(server.state.meta)
    assert list(steps_of(method, server, Replies())) == [(round_, "fit", 3, True, 2) for round_ in (1, 2, 3)]
    assert set(server.state.meta) == before


def test_steps_follow_the_schedule_and_the_last_one_ends_the_round():
    server, method = server_of(rounds=2), Counting()
    method.setup(server)
    planned, done = [], []
    for step in steps_of(method, server, Replies({"site-1": {"size": 4}, "site-2": {"size": 5}})):
        planned.append(step)
        done.append(server.state.meta.get(COMMITTED_STEPS, []))
    first = [(1, "fit", 3, False, 2), (1, "count", 3, False, 1), (1, "-", 0, True, None)]
    second = [(2, "fit", 3, False, 2), (2, "count", 3, False, 1), (2, "count", 3, False, 2), (2, "-", 0, True, None)]
    assert planned == first + second
    assert done[:3] == [[], [["fit", 0]], [["fit", 0], ["count", 0]]]
    assert done[3:] == [*done[:3], [["fit", 0], ["count", 0], ["count", 1]]]
    assert server.state.meta["sizes"] == [[1, 0, 9], [2, 0, 9], [2, 1, 9]]
    assert server.state.meta["noted"] == 2
    assert COMMITTED_STEPS not in server.state.meta


def test_by_default_each_step_is_taken_once_in_its_turn():
    class Twice(Averaging):
        def round_steps(self):
            return *super().round_steps(), RoundStep("rest", lambda server: [Request("site-1", "rest")], quorum=0)

    server, method = server_of(rounds=1, min_replies=9), Twice()
    method.setup(server)
    assert list(steps_of(method, server, Replies())) == [(1, "fit", 3, False, 3), (1, "rest", 1, True, 0)]
    site = Site("site-1", 1, State(), make_task("plain"), server.settings, train=make_data(4, "own"))
    assert method.execute(site, Request("site-1", "rest")) == Reply(), "a step without work is answered with nothing"
    with refused(ContractError, "unknown_order", name="sleep", known=["fit", "rest"]):
        method.execute(site, Request("site-1", "sleep"))


@pytest.mark.parametrize("check", ["run_resumes_at_every_step", "method_object_has_no_state", "schedules_are_pure"])
def test_a_run_continues_behind_the_last_step(check):
    CHECKS[check](Toy(Counting))


def test_every_site_took_every_turn_once(tmp_path: Path):
    Toy(Counting).run(tmp_path)
    for name in NAMES:
        record = Store(tmp_path / "state" / name).latest()
        assert record is not None
        assert record.state().meta["turns"] == [[1, 0], [2, 0], [2, 1]]


def test_a_round_ends_where_changed_settings_leave_nothing_of_it():
    """The run stops before a step of the last round only, and continues with more rounds."""

    class Final(Averaging):
        def round_steps(self):
            return *super().round_steps(), RoundStep(
                "last", aggregate=lambda server, replies: server.state.meta.update(last=1)
            )

        def remaining_steps(self, server, done):
            names = ["fit", "last"] if server.round == server.settings.rounds else ["fit"]
            return [ScheduledStep(name) for name in names][len(done) :]

    server, method = server_of(rounds=1), Final()
    method.setup(server)
    next(steps := steps_of(method, server, Replies()))
    method.aggregate(server, Replies())
    steps.close()
    server.settings = Settings(rounds=2, min_replies=2)
    assert list(steps_of(method, server, Replies())) == [
        (1, "-", 0, True, None),
        (2, "fit", 3, False, 2),
        (2, "-", 0, True, None),
    ]
    assert server.state.meta["last"] == 1


def test_a_round_without_a_step_and_a_step_with_other_requests_are_refused():
    class Idle(Averaging):
        def remaining_steps(self, server, done):
            return []

    class Mistaken(Averaging):
        def requests(self, server):
            return [Request("site-1", "fti")]

    for method, code, fields in (
        (Idle(), "empty_schedule", {"round": 1}),
        (Mistaken(), "wrong_orders", {"expected": "fit", "found": ["fti"]}),
    ):
        server = server_of()
        method.setup(server)
        with refused(ContractError, code, **fields):
            method.plan(server)


@pytest.mark.parametrize(
    ("shows_as", "schedule"),
    [
        ("at the second", lambda server, done: [ScheduledStep("fit", int(torch.randint(10**6, ())))]),
        ("changes the state", lambda server, done: server.state.meta.update(asked=1) or [ScheduledStep("fit")]),
        ("has a step twice", lambda server, done: [ScheduledStep("fit"), ScheduledStep("fit")][len(done) :]),
        ("not all among the steps", lambda server, done: [ScheduledStep("fit"), ScheduledStep("rest")][len(done) :]),
    ],
)
def test_the_suite_notices_a_schedule_that_is_not_pure(shows_as, schedule):
    class Broken(Averaging):
        def remaining_steps(self, server, done):
            return schedule(server, done)

    with pytest.raises(AssertionError, match=shows_as):
        CHECKS["schedules_are_pure"](Toy(Broken))


def test_a_schedule_may_draw_from_what_all_share():
    """It draws the same numbers at each call in a round, and others in the next round."""

    class Drawn(Averaging):
        def remaining_steps(self, server, done):
            return [ScheduledStep("fit", int(torch.randint(10**6, (), generator=server.shared_rng("turn"))))]

    CHECKS["schedules_are_pure"](Toy(Drawn))
    server = server_of()
    drawn = [Drawn().current_step(server).turn for server.round in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0] == int(torch.randint(10**6, (), generator=make_generator(0, "turn", 1)))
