"""The server loop. One loop serves every carrier.

A step is: the method plans, the sites work, the method folds, the step is committed. A restart
begins from the newest valid commit (`medfl.engine.journal`). A round is evaluated while the next one trains.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from medfl.contract import Plan, Server, State
from medfl.engine.attendance import add_missed_round
from medfl.engine.backend import Backend, Evaluation
from medfl.engine.evaluation import Best, Row, epoch_scorer
from medfl.engine.journal import Commit, Journal, Outcome
from medfl.engine.plan import RunPlan, ServerData
from medfl.engine.replies import DecodedReplies
from medfl.engine.status import DIVERGED, FINISHED, INCOMPLETE, RUNNING
from medfl.errors import ContractError
from medfl.types import SERVER, Tensors
from medfl.utils.memory import all_finite, release
from medfl.utils.rng import pinned

logger = logging.getLogger(__name__)


class ServerLoop:
    """Runs a method over a carrier, in a run folder.

    Args:
        plan: The run; its method is made anew before each step.
        carrier: Moves the messages.
        folder: The run folder; the caller holds it (`medfl.engine.store.only_writer`).
        data: The server's own data.
        on_round: Called after each committed round with (round, rows): those of all its steps that this process
            carried out, and scores of the round before.
        on_commit: Called after each committed step.
    """

    def __init__(
        self,
        plan: RunPlan,
        backend: Backend,
        folder: Path,
        data: ServerData | None = None,
        on_round: Callable[[int, list[Row]], None] = lambda round_, rows: None,
        on_commit: Callable[[Commit], None] = lambda commit: None,
    ) -> None:
        self._make_method, self._task, self._settings = plan.make_method, plan.task, plan.settings
        self._backend, self._data = backend, data or ServerData()
        self._on_round, self._on_commit = on_round, on_commit
        self._journal = Journal(folder)
        self._rows: list[Row] = []  # of the steps of a round that is not over

    def run(self) -> Outcome:
        """Run to the end, from wherever the folder stands.

        Raises:
            StoreError: If state can't be written or read.
            MedflError: If a site or the method fails in a way that is no refusal.
        """
        server, last = self._resume() or self._set_up()
        if self._settings.keep_rounds:
            self._journal.check_keeping(self._settings, self._make_method().models(server), last.rounds_done)
        if last.status in (DIVERGED, INCOMPLETE):
            logger.warning("Round %d had ended as %s: %s Trying it again.", last.round, last.status, last.reason)
            server, last = self._back(last)
        while last.status == RUNNING:
            pending = self._pending(server, last)
            server.round = last.rounds_done + 1
            with self._pinned(server):
                plan = None if self._stops(last) else self._make_method().plan(server)
            last = self._close(server, last, pending) if plan is None else self._step(server, last, plan, pending)
        then, taken = self._taken(server, last, last.best)
        method = self._make_method()
        return Outcome(
            status=last.status,
            rounds=last.rounds_done,
            round=taken.rounds_done,
            step=taken.step,
            best=last.best,
            reason=last.reason,
            published=method.publish(then),
            models=method.models(then),
            findings=method.findings(server),
            missed_rounds=last.missed_rounds,
            unavailable=last.unavailable,
        )

    # ---- one step

    def _step(self, server: Server, last: Commit, plan: Plan, pending: Evaluation | None) -> Commit:
        self._check_plan(plan)
        step = last.step + 1
        keep = self._kept(last, pending)
        results, unavailable, scores = self._backend.step(step, plan.round, plan.requests, pending, keep)
        accepted = [result for result in results if result.refused is None]
        for result in results:
            if result.refused is not None:
                logger.warning("Round %d: %s", plan.round, result.refused)
        if unavailable:
            logger.warning("Round %d: no reply from %s.", plan.round, ", ".join(sorted(unavailable)))
        missing = sorted(set(unavailable) | {result.site for result in results if result.refused is not None})
        rows = scores + [row for result in results for row in result.rows]
        requested = [request.to for request in plan.requests]
        unavailable = sorted({*last.unavailable} - {*requested} | {*missing})
        now = Commit(
            step,
            RUNNING,
            plan.round,
            last.rounds_done + int(plan.ends_round),
            pending.round if pending else last.evaluated,
            last.answers | {result.site: step for result in answers},
            last.site_info,
            rows=rows,
            best=self._best(last, pending, scores),
            keep=keep,
            requested=requested,
            missed_rounds=add_missed_round(last.missed_rounds, missing, plan.round),
            unavailable=unavailable,
        )
        quorum = len(plan.requests) if plan.quorum is None else plan.quorum
        if len(accepted) < quorum:
            who = f" Missing: {', '.join(missing)}." if missing else ""
            reason = f"{len(accepted)} of {quorum} needed replies came.{who}"
            return self._fail(server, now, last, reason, bool(unavailable))
        method = self._make_method()
        server.score_epoch = epoch_scorer(method, self._data.tests, self._task, self._settings, plan.round, rows)
        with self._pinned(server):
            method.aggregate(server, DecodedReplies(method, self._backend.replies(accepted, missing)))
        server.rounds_done = now.rounds_done
        if (name := _not_finite(server.state.tensors)) is not None:
            return self._fail(server, now, last, f"The folded tensor '{name}' is not finite.", False)
        if plan.ends_round and now.rounds_done in self._settings.keep_rounds:
            self._journal.keep_model(now.rounds_done, self._make_method().models(server)["global"])
        self._commit(server.state, now)
        release()
        self._rows += rows
        if plan.ends_round:
            self._on_round(plan.round, self._rows)
            self._rows = []
        return now

    def _check_plan(self, plan: Plan) -> None:
        names = [request.to for request in plan.requests]
        unknown = sorted(set(names) - set(self._backend.sites))
        if unknown or len(set(names)) != len(names):
            raise ContractError(
                "invalid_plan",
                f"The method planned orders for {names}: expected each at most once, out of {self._backend.sites}.",
                sites=names,
                known=list(self._backend.sites),
            )

    def _fail(self, server: Server, now: Commit, last: Commit, reason: str, unavailable: bool) -> Commit:
        """End the run at this round; its rows are kept, the state stays that of the step before."""
        status = INCOMPLETE if unavailable else DIVERGED
        now = replace(now, status=status, reason=reason, rounds_done=last.rounds_done)
        server.state, _ = self._journal.at(last.step)
        self._commit(server.state, now)
        return now

    def _commit(self, state: State, now: Commit) -> None:
        self._journal.commit(state, now)
        self._on_commit(now)

    # ---- evaluation

    def _pending(self, server: Server, last: Commit) -> Evaluation | None:
        """The last finished round, if it is due and its scores are not committed yet."""
        due = self._settings.due(last.rounds_done) or self._stops(last)
        if not due or last.rounds_done <= last.evaluated or last.round > last.rounds_done:
            return None
        return Evaluation(last.rounds_done, last.step, self._make_method().publish(server))

    def _close(self, server: Server, last: Commit, pending: Evaluation | None) -> Commit:
        """The scores of the last round, and the global test. A run that ends early is over for good."""
        if pending is None:
            return replace(last, status=FINISHED)
        keep, step = self._kept(last, pending), last.step + 1
        _, _, rows = self._backend.step(step, last.round, [], pending, keep)
        best = self._best(last, pending, rows)
        if self._settings.cross_site_evaluation:
            then, taken = self._taken(server, last, best)
            rows += self._backend.evaluate_cross_site(
                Evaluation(taken.rounds_done, taken.step, self._make_method().publish(then))
            )
        status = FINISHED if self._stops(last) else RUNNING
        now = replace(last, step=step, status=status, evaluated=pending.round, rows=rows, best=best)
        now.keep, now.requested = keep, []
        self._commit(server.state, now)
        self._on_round(pending.round, rows)
        return replace(now, status=FINISHED)

    # ---- the best round

    def _best(self, last: Commit, pending: Evaluation | None, rows: list[Row]) -> Best:
        metric = self._task.metrics[0]
        return last.best.after(pending.round, pending.step, rows, metric) if pending else last.best

    def _stops(self, last: Commit) -> bool:
        """Whether validation scores have been no better for too long; between rounds only."""
        patience = self._settings.patience
        return patience is not None and last.best.since >= patience and last.round == last.rounds_done

    def _kept(self, last: Commit, pending: Evaluation | None) -> list[int]:
        """Earlier steps that are still needed: that of the best round, and one that may turn out to be the best."""
        steps = {last.best.step, pending.step if pending else 0} - {0}
        return sorted(steps) if self._settings.best_round else []

    def _taken(self, server: Server, last: Commit, best: Best) -> tuple[Server, Commit]:
        """The server after the round whose models the sites take home."""
        if not self._settings.best_round or not best.round:
            return server, last
        state, then = self._journal.at(best.step)
        return self._server(state, then), then

    # ---- start and restart

    def _pinned(self, server: Server) -> AbstractContextManager[None]:
        """The server's global generators in a round; its sites' are pinned in the same way."""
        return pinned(self._settings.seed, SERVER, server.round, "global")

    def _server(self, state: State, last: Commit) -> Server:
        return Server(
            SERVER,
            last.round,
            state,
            self._make_method().task_of(self._task),
            self._settings,
            self._journal.store,
            sites=self._backend.sites,
            site_info=last.site_info,
            rounds_done=last.rounds_done,
            public=self._data.public,
        )

    def _set_up(self) -> tuple[Server, Commit]:
        last = Commit(site_info=self._backend.site_info())
        server = self._server(State(), last)
        with self._pinned(server):
            self._make_method().setup(server)
        self._journal.begin(server.state, last)
        return server, last

    def _resume(self) -> tuple[Server, Commit] | None:
        """The newest commit from which every site can go on; None in a new folder."""
        newest = self._journal.latest()
        if newest is None:
            return None
        state, last = newest
        behind = {site: self._backend.newest(site) for site, step in last.answered_steps.items()}
        behind = {site: step for site, step in behind.items() if step < last.answered_steps[site]}
        if any(last.answered_steps[site] == last.step for site in behind) and self._journal.can_go_back(last):
            names = ", ".join(sorted(behind))
            logger.warning("Going back to step %d, from which %s can continue.", last.step - 1, names)
            self._journal.go_back(last)
            return self._resume()
        for site in sorted(behind):
            logger.warning(
                "%s goes on from its step %d, though it had answered more: a file of its state was damaged, the state "
                "was lost, or another machine has its name.",
                site,
                behind[site],
            )
        current_site_info = self._backend.site_info()  # of sites that were away at the start nothing is known yet
        last.facts |= {site: facts for site, facts in current_site_info.items() if not last.facts.get(site)}
        self._journal.reconcile(last)
        logger.info("Continuing after step %d (%d rounds done).", last.step, last.rounds_done)
        return self._server(state, last), last

    def _back(self, last: Commit) -> tuple[Server, Commit]:
        """Forget the step that ended the run, so that it is tried again."""
        state, last = self._journal.go_back(last)
        self._journal.reconcile(last)
        return self._server(state, last), last


def _not_finite(tensors: Tensors) -> str | None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not all_finite(tensor):
            return name
    return None
