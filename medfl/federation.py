"""The server loop. One loop serves every carrier.

A step is: the method plans, the sites work, the method folds, the step is committed. The commit is one atomic file of
the server; it carries the step's rows of metrics, which are then appended to ``metrics.csv``. A restart begins from the
newest valid commit and reconciles ``metrics.csv`` with it, so a kill neither loses nor doubles a row. A round is
evaluated while the next one trains.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from medfl.contract import SERVER, Dataset, Meta, Model, Order, Plan, Replies, Server, State, Tensors
from medfl.errors import ContractError, StoreError
from medfl.evaluation import Row, csv_lines
from medfl.memory import release
from medfl.settings import Settings
from medfl.siteside import Answer, MethodFactory
from medfl.store import Record, Store
from medfl.task import Task

logger = logging.getLogger(__name__)

RUNNING, FINISHED, DIVERGED, INCOMPLETE = "running", "finished", "diverged", "incomplete"


@dataclass
class Evaluation:
    """A round to be scored: the sites' states after `step`, and what the server published then."""

    round: int
    step: int
    published: Tensors


class Carrier(Protocol):
    """What the loop needs of a carrier."""

    @property
    def sites(self) -> list[str]:
        """Names of the sites that can be ordered, sorted."""
        ...

    def describe(self) -> dict[str, Meta]:
        """What each site tells about itself."""
        ...

    def newest(self, site: str) -> int:
        """The newest valid step on a site's disk; 0 if none."""
        ...

    def step(
        self, step: int, round_: int, orders: list[Order], evaluation: Evaluation | None = None
    ) -> tuple[list[Answer], list[str], list[Row]]:
        """Carry out orders, and beside them an evaluation; answers, absent sites, rows of the evaluation."""
        ...

    def replies(self, answers: list[Answer], missing: list[str]) -> Replies:
        """The replies behind answers that were not refused."""
        ...

    def exchange(self, evaluation: Evaluation) -> list[Row]:
        """Each site's model on every site's test data."""
        ...


@dataclass
class Committed:
    """The server's last commit.

    Attributes:
        step: Its number; 0 is the setup.
        status: ``running``, ``finished``, ``diverged`` or ``incomplete``.
        round: The round of the step.
        rounds_done: Rounds that are over.
        evaluated: The last round whose scores are committed.
        answers: Site to its last step.
        facts: What the sites told at the start.
        csv_offset: Length of metrics.csv before this step's rows.
        rows: This step's rows.
        reason: Why the run ended early.
    """

    step: int = 0
    status: str = RUNNING
    round: int = 0
    rounds_done: int = 0
    evaluated: int = 0
    answers: dict[str, int] = field(default_factory=dict)
    facts: dict[str, Meta] = field(default_factory=dict)
    csv_offset: int = 0
    rows: list[Row] = field(default_factory=list)
    reason: str = ""


@dataclass
class Outcome:
    """How a run ended.

    Attributes:
        status: ``finished``, ``diverged`` or ``incomplete``.
        rounds: Rounds that are over.
        step: The last step.
        reason: Why it ended early, or empty.
        published: What every site needs to take its model home.
        models: The server's models.
    """

    status: str
    rounds: int
    step: int
    reason: str
    published: Tensors
    models: dict[str, Model]


class Federation:
    """Runs a method over a carrier, in a run folder.

    Args:
        make_method: Makes the method anew; called before each step.
        carrier: Moves the messages.
        task: The learning problem.
        settings: The run's settings.
        folder: The run folder; the caller holds it (`medfl.store.only_writer`).
        public: Public data for the server, if the run gives it any.
        on_round: Called after each committed round with (round, rows).
    """

    def __init__(
        self,
        make_method: MethodFactory,
        carrier: Carrier,
        task: Task,
        settings: Settings,
        folder: Path,
        public: Dataset | None = None,
        on_round: Callable[[int, list[Row]], None] = lambda round_, rows: None,
    ) -> None:
        self._make_method, self._carrier = make_method, carrier
        self._task, self._settings, self._folder, self._public = task, settings, folder, public
        self._on_round = on_round
        self._store = Store(folder / "state" / SERVER)
        self._csv = folder / "metrics.csv"

    def run(self) -> Outcome:
        """Run to the end, from wherever the folder stands.

        Raises:
            StoreError: If state can't be written or read.
            MedflError: If a site or the method fails in a way that is no refusal.
        """
        server, last = self._resume() or self._set_up()
        if last.status in (DIVERGED, INCOMPLETE):
            logger.warning("Round %d had ended as %s: %s Trying it again.", last.round, last.status, last.reason)
            server, last = self._back(last)
        while True:
            pending = self._pending(server, last)
            server.round = last.rounds_done + 1
            plan = self._make_method().plan(server)
            if plan is None:
                break
            last = self._step(server, last, plan, pending)
            if last.status != RUNNING:
                break
        if last.status == RUNNING:
            last = self._close(server, last, pending)
        method = self._make_method()
        published, models = method.publish(server), method.models(server)
        return Outcome(last.status, last.rounds_done, last.step, last.reason, published, models)

    # ---- one step

    def _step(self, server: Server, last: Committed, plan: Plan, pending: Evaluation | None) -> Committed:
        self._check_plan(plan)
        step = last.step + 1
        answers, absent, scores = self._carrier.step(step, plan.round, plan.orders, pending)
        accepted = [answer for answer in answers if answer.refused is None]
        for answer in answers:
            if answer.refused is not None:
                logger.warning("Round %d: %s", plan.round, answer.refused)
        if absent:
            logger.warning("Round %d: no reply from %s.", plan.round, ", ".join(sorted(absent)))
        missing = sorted(set(absent) | {answer.site for answer in answers if answer.refused is not None})
        rows = scores + [row for answer in answers for row in answer.rows]
        now = Committed(
            step,
            RUNNING,
            plan.round,
            last.rounds_done + int(plan.ends_round),
            pending.round if pending else last.evaluated,
            last.answers | {answer.site: step for answer in answers},
            last.facts,
            rows=rows,
        )
        quorum = len(plan.orders) if plan.quorum is None else plan.quorum
        if len(accepted) < quorum:
            return self._fail(server, now, last, f"{len(accepted)} of {quorum} needed replies came.", bool(absent))
        method = self._make_method()
        method.fold(server, self._carrier.replies(accepted, missing))
        server.rounds_done = now.rounds_done
        if (name := _not_finite(server.state.tensors)) is not None:
            return self._fail(server, now, last, f"The folded tensor '{name}' is not finite.", False)
        self._commit(server, now)
        release()
        if plan.ends_round:
            self._on_round(plan.round, rows)
        return now

    def _check_plan(self, plan: Plan) -> None:
        names = [order.to for order in plan.orders]
        unknown = sorted(set(names) - set(self._carrier.sites))
        if unknown or len(set(names)) != len(names):
            raise ContractError(
                f"The method planned orders for {names}: expected each at most once, out of {self._carrier.sites}."
            )

    def _fail(self, server: Server, now: Committed, last: Committed, reason: str, absent: bool) -> Committed:
        """End the run at this round; its rows are kept, the state stays that of the step before."""
        now.status, now.reason = INCOMPLETE if absent else DIVERGED, reason
        now.rounds_done = last.rounds_done
        server.state = self._store.load(last.step).state()
        self._commit(server, now)
        return now

    def _commit(self, server: Server, now: Committed) -> None:
        now.csv_offset = self._csv.stat().st_size if self._csv.exists() else 0
        meta = {"commit": vars(now) | {"rows": [list(row) for row in now.rows]}}
        self._store.save(now.step, server.state, meta)
        self._append(now.rows, now.csv_offset)

    def _append(self, rows: list[Row], at: int) -> None:
        """Write rows to metrics.csv at an offset and cut off whatever stood behind it; flushed to disk."""
        try:
            with open(self._csv, "a") as file:
                file.truncate(at)
                file.write(csv_lines(rows, header=at == 0))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StoreError(
                f"Could not write '{self._csv}': {error.strerror}. The step is saved: mend that and give the same "
                "command again; its rows are added then."
            ) from error

    # ---- evaluation

    def _pending(self, server: Server, last: Committed) -> Evaluation | None:
        """The last finished round, if it is due and its scores are not committed yet."""
        due = last.rounds_done % self._settings.evaluate_every == 0 or last.rounds_done >= self._settings.rounds
        if not due or last.rounds_done <= last.evaluated or last.round > last.rounds_done:
            return None
        return Evaluation(last.rounds_done, last.step, self._make_method().publish(server))

    def _close(self, server: Server, last: Committed, pending: Evaluation | None) -> Committed:
        """The scores of the last round, and the global test."""
        if pending is None:
            return Committed(**(vars(last) | {"status": FINISHED}))
        _, _, rows = self._carrier.step(last.step + 1, last.round, [], pending)
        if self._settings.global_test:
            rows += self._carrier.exchange(pending)
        now = Committed(**(vars(last) | {"step": last.step + 1, "evaluated": pending.round, "rows": rows}))
        self._commit(server, now)
        self._on_round(pending.round, rows)
        return Committed(**(vars(now) | {"status": FINISHED}))

    # ---- start and restart

    def _server(self, state: State, last: Committed) -> Server:
        return Server(
            SERVER,
            last.round,
            state,
            self._task,
            self._settings,
            self._public,
            self._store,
            sites=self._carrier.sites,
            facts=last.facts,
            rounds_done=last.rounds_done,
        )

    def _set_up(self) -> tuple[Server, Committed]:
        last = Committed(facts=self._carrier.describe())
        server = self._server(State(), last)
        self._make_method().setup(server)
        if self._csv.exists():
            self._csv.unlink()
        self._commit(server, last)
        return server, last

    def _resume(self) -> tuple[Server, Committed] | None:
        record = self._store.latest()
        if record is None:
            if self._store.steps():
                raise StoreError(
                    f"No step of the server in '{self._store.folder}' can be read. Start the run in a new folder."
                )
            return None
        last = _committed(record)
        behind = {site: self._carrier.newest(site) for site, step in last.answers.items()}
        behind = {site: step for site, step in behind.items() if step < last.answers[site]}
        if any(last.answers[site] == last.step for site in behind) and last.step - 1 in self._store.steps():
            logger.warning(
                "Going back to step %d, from which %s can continue.", last.step - 1, ", ".join(sorted(behind))
            )
            self._store.drop(last.step)
            return self._resume()
        for site in sorted(behind):
            logger.warning("%s goes on from its step %d: an older one was damaged.", site, behind[site])
        self._reconcile(last)
        logger.info("Continuing after step %d (%d rounds done).", last.step, last.rounds_done)
        return self._server(record.state(), last), last

    def _back(self, last: Committed) -> tuple[Server, Committed]:
        """Forget the step that ended the run, so that it is tried again."""
        record = self._store.load(last.step - 1)
        self._store.drop(last.step)
        last = _committed(record)
        self._reconcile(last)
        return self._server(record.state(), last), last

    def _reconcile(self, last: Committed) -> None:
        """Make metrics.csv end with exactly the rows of the last commit."""
        size = self._csv.stat().st_size if self._csv.exists() else 0
        if size < last.csv_offset:
            raise StoreError(
                f"'{self._csv}' has {size} bytes where the saved steps account for {last.csv_offset}: rows were "
                "removed from it. Put it back, or start the run in a new folder."
            )
        self._append(last.rows, last.csv_offset)


def _committed(record: Record) -> Committed:
    values: dict[str, Any] = json.loads(json.dumps(record.meta["commit"]))
    return Committed(**(values | {"rows": [Row(*row) for row in values["rows"]]}))


def _not_finite(tensors: Tensors) -> str | None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            return name
    return None
