"""The server loop: run a method on a backend, step by step, from the last step in the run folder.

`ServerLoop.run` is the federated algorithm. Each iteration plans a step, sends its requests to the sites, aggregates
their replies and commits the new state to disk (`medfl.engine.journal`). A restarted run continues after the newest
valid commit. To save time, the scores of a completed round are computed while the next round trains.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from medfl.contract import Plan, Server, State
from medfl.engine.attendance import add_missed_round
from medfl.engine.backend import Backend, Evaluation, SiteResult, StepResult
from medfl.engine.evaluation import BestEvaluation, MetricRow, make_epoch_scorer
from medfl.engine.journal import Commit, Journal, RunOutcome
from medfl.engine.plan import RunPlan, ServerData
from medfl.engine.replies import DecodedReplies
from medfl.engine.status import DIVERGED, FINISHED, INCOMPLETE, RUNNING
from medfl.errors import ContractError
from medfl.training.devices import MemoryWatch
from medfl.types import SERVER, Tensors
from medfl.utils.memory import all_finite, release_memory
from medfl.utils.rng import seeded_generators

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Exchange:
    """Responses of the sites to the requests of a step.

    Attributes:
        accepted: Results of the sites that replied.
        responded: Names of the sites that responded, with a reply or a refusal.
        failed: Sorted names of the requested sites without a usable reply.
        has_unavailable: Whether a requested site did not respond at all.
        scores: Rows of the evaluation that ran beside the step.
        rows: All rows of the step, the evaluation's included.
    """

    accepted: list[SiteResult]
    responded: list[str]
    failed: list[str]
    has_unavailable: bool
    scores: list[MetricRow]
    rows: list[MetricRow]


class ServerLoop:
    """Runs a method on a backend and stores its state in a run folder.

    Args:
        plan: Description of the run. A new method object is created before each step.
        backend: Backend that transports requests and replies.
        folder: Run folder. The caller holds its lock (`medfl.engine.store.lock_for_writing`).
        data: Data that the server itself has: public data and test sets.
        on_round: Callback after each committed round, called as ``on_round(round, rows)``. The rows are those of all
            steps of the round that this process ran, and the scores of the previous round.
        on_commit: Callback after each committed step, called with the commit.
    """

    def __init__(
        self,
        plan: RunPlan,
        backend: Backend,
        folder: Path,
        data: ServerData | None = None,
        on_round: Callable[[int, list[MetricRow]], None] = lambda round_, rows: None,
        on_commit: Callable[[Commit], None] = lambda commit: None,
    ) -> None:
        self._make_method, self._task, self._settings = plan.make_method, plan.task, plan.settings
        self._backend, self._data = backend, data or ServerData()
        self._on_round, self._on_commit = on_round, on_commit
        self._journal = Journal(folder)
        self._memory_watch = MemoryWatch(plan.task.device, (), plan.settings.batch_size)
        self._round_rows: list[MetricRow] = []  # rows of the steps of the current round

    def run(self) -> RunOutcome:
        """Run the method until it finishes, or until the run diverges or lacks replies.

        Raises:
            StoreError: If state can't be written or read.
            MedflError: If a site or the method fails other than by refusing a request.
        """
        # 1. Continue after the newest commit of the run folder, or set up a new run.
        server, last = self._resume() or self._set_up()
        self._check_kept_rounds(server, last)
        if last.status in (DIVERGED, INCOMPLETE):
            server, last = self._retry_failed_step(last)

        while last.status == RUNNING:
            # 2. Plan the next step.
            evaluation = self._due_evaluation(server, last)
            server.round = last.rounds_done + 1
            plan = self._plan(server, last)
            # 3. Run it, or evaluate the final models if the method has finished.
            if plan is None:
                last = self._finish(server, last, evaluation)
            else:
                last = self._run_step(server, last, plan, evaluation)

        return self._outcome(server, last)

    # ---- one step

    def _plan(self, server: Server, last: Commit) -> Plan | None:
        """Return the method's next step; None if it has finished or early stopping ends the run."""
        if self._is_patience_exhausted(last):
            return None
        with self._seeded(server):
            plan = self._make_method().plan(server)
        if plan is not None:
            self._check_plan(plan)
        return plan

    def _run_step(self, server: Server, last: Commit, plan: Plan, evaluation: Evaluation | None) -> Commit:
        """Run one step and return its commit."""
        # 1. The sites execute the requests; an earlier round is evaluated meanwhile.
        steps_to_keep = self._steps_to_keep(last, evaluation)
        exchange = self._exchange(last.step + 1, plan, evaluation, steps_to_keep)
        commit = self._next_commit(last, plan, evaluation, exchange, steps_to_keep)

        # 2. End the run if too few sites replied.
        quorum = len(plan.requests) if plan.quorum is None else plan.quorum
        if len(exchange.accepted) < quorum:
            names = f" Missing: {', '.join(exchange.failed)}." if exchange.failed else ""
            reason = f"{len(exchange.accepted)} of {quorum} needed replies came.{names}"
            return self._end_run(server, commit, last, INCOMPLETE if exchange.has_unavailable else DIVERGED, reason)

        # 3. The method aggregates the replies.
        self._aggregate(server, plan, exchange)
        server.rounds_done = commit.rounds_done
        if (name := _first_not_finite(server.state.tensors)) is not None:
            return self._end_run(server, commit, last, DIVERGED, f"The aggregated tensor '{name}' is not finite.")

        # 4. Commit the new state.
        if plan.ends_round and commit.rounds_done in self._settings.keep_rounds:
            self._journal.keep_model(commit.rounds_done, self._make_method().models(server)["global"])
        self._commit(server.state, commit)
        release_memory()
        self._round_rows += exchange.rows
        if plan.ends_round:
            self._on_round(plan.round, self._round_rows)
            self._round_rows = []
        return commit

    def _exchange(self, step: int, plan: Plan, evaluation: Evaluation | None, keep: list[int]) -> _Exchange:
        """Send the requests of a step, wait for the results, and log refusals and unavailable sites."""
        response: StepResult = self._backend.step(step, plan.round, plan.requests, evaluation, keep)
        refusals = [result for result in response.results if result.refused is not None]
        for result in refusals:
            logger.warning("Round %d: %s", plan.round, result.refused)
        if response.unavailable:
            logger.warning("Round %d: no reply from %s.", plan.round, ", ".join(sorted(response.unavailable)))
        return _Exchange(
            accepted=[result for result in response.results if result.refused is None],
            responded=[result.site for result in response.results],
            failed=sorted({*response.unavailable} | {result.site for result in refusals}),
            has_unavailable=bool(response.unavailable),
            scores=response.scores,
            rows=response.scores + [row for result in response.results for row in result.rows],
        )

    def _next_commit(
        self, last: Commit, plan: Plan, evaluation: Evaluation | None, exchange: _Exchange, keep: list[int]
    ) -> Commit:
        """Return the commit of a step whose replies have arrived, before they are aggregated."""
        step, requested = last.step + 1, [request.to for request in plan.requests]
        return Commit(
            step=step,
            status=RUNNING,
            round=plan.round,
            rounds_done=last.rounds_done + int(plan.ends_round),
            evaluated=evaluation.round if evaluation else last.evaluated,
            answered_steps=last.answered_steps | dict.fromkeys(exchange.responded, step),
            site_info=last.site_info,
            rows=exchange.rows,
            best=self._best_round(last, evaluation, exchange.scores),
            keep=keep,
            requested=requested,
            missed_rounds=add_missed_round(last.missed_rounds, exchange.failed, plan.round),
            unavailable=sorted({*last.unavailable} - {*requested} | {*exchange.failed}),
        )

    def _aggregate(self, server: Server, plan: Plan, exchange: _Exchange) -> None:
        """Let the method aggregate the replies of a step. Changes the server's state in place."""
        method = self._make_method()
        server.score_epoch = make_epoch_scorer(
            method, self._data.tests, self._task, self._settings, plan.round, exchange.rows
        )
        replies = self._backend.replies(exchange.accepted, exchange.failed)
        with self._memory_watch.watch("the server"), self._seeded(server):
            method.aggregate(server, DecodedReplies(method, replies))

    def _check_plan(self, plan: Plan) -> None:
        """Raise if a plan has several requests for one site, or a request for an unknown site."""
        names = [request.to for request in plan.requests]
        unknown = sorted(set(names) - set(self._backend.sites))
        if unknown or len(set(names)) != len(names):
            raise ContractError(
                "invalid_plan",
                f"The method planned requests for {names}: expected at most one for each of {self._backend.sites}.",
                sites=names,
                known=list(self._backend.sites),
            )

    def _end_run(self, server: Server, commit: Commit, last: Commit, status: str, reason: str) -> Commit:
        """Commit the failure of a step: its rows are kept, and the server's state remains that of the previous step."""
        commit = replace(commit, status=status, reason=reason, rounds_done=last.rounds_done)
        server.state, _ = self._journal.at(last.step)
        self._commit(server.state, commit)
        return commit

    def _commit(self, state: State, commit: Commit) -> None:
        self._journal.commit(state, commit)
        self._on_commit(commit)

    # ---- evaluation

    def _due_evaluation(self, server: Server, last: Commit) -> Evaluation | None:
        """Return the evaluation of the last completed round if it is due and not committed yet, else None."""
        is_due = self._settings.is_evaluated_after(last.rounds_done) or self._is_patience_exhausted(last)
        if not is_due or last.rounds_done <= last.evaluated or last.round > last.rounds_done:
            return None
        return Evaluation(last.rounds_done, last.step, self._make_method().publish(server))

    def _finish(self, server: Server, last: Commit, evaluation: Evaluation | None) -> Commit:
        """Evaluate the last round, then the exported models across sites if the settings ask for it.

        The commit of a run that early stopping ended says ``finished``, so that a later call does not continue it. The
        commit of a run that reached its last round says ``running``, so that more rounds can be added.
        """
        if evaluation is None:
            return replace(last, status=FINISHED)
        steps_to_keep, step = self._steps_to_keep(last, evaluation), last.step + 1
        rows = self._backend.step(step, last.round, [], evaluation, steps_to_keep).scores
        best = self._best_round(last, evaluation, rows)
        if self._settings.cross_site_evaluation:
            rows += self._cross_site_rows(server, last, best)
        commit = replace(
            last,
            step=step,
            status=FINISHED if self._is_patience_exhausted(last) else RUNNING,
            evaluated=evaluation.round,
            rows=rows,
            best=best,
            keep=steps_to_keep,
            requested=[],
        )
        self._commit(server.state, commit)
        release_memory()
        self._on_round(evaluation.round, rows)
        return replace(commit, status=FINISHED)

    def _cross_site_rows(self, server: Server, last: Commit, best: BestEvaluation) -> list[MetricRow]:
        """Score the model that each site exports on every site's test data."""
        exported_server, exported = self._exported_state(server, last, best)
        published = self._make_method().publish(exported_server)
        return self._backend.evaluate_cross_site(Evaluation(exported.rounds_done, exported.step, published))

    def _outcome(self, server: Server, last: Commit) -> RunOutcome:
        """Return the run's outcome, with the models of the round that the sites export."""
        exported_server, exported = self._exported_state(server, last, last.best)
        method = self._make_method()
        return RunOutcome(
            status=last.status,
            rounds=last.rounds_done,
            round=exported.rounds_done,
            step=exported.step,
            best=last.best,
            reason=last.reason,
            published=method.publish(exported_server),
            models=method.models(exported_server),
            findings=method.findings(server),
            missed_rounds=last.missed_rounds,
            unavailable=last.unavailable,
        )

    # ---- the best round and early stopping

    def _best_round(self, last: Commit, evaluation: Evaluation | None, rows: list[MetricRow]) -> BestEvaluation:
        """Return the round with the best validation score, given the rows of an evaluation."""
        if evaluation is None:
            return last.best
        return last.best.after(evaluation.round, evaluation.step, rows, self._task.metrics[0])

    def _is_patience_exhausted(self, last: Commit) -> bool:
        """Whether validation scores have not improved for `patience` evaluations. True only between rounds."""
        patience = self._settings.patience
        return patience is not None and last.best.evaluations_since >= patience and last.round == last.rounds_done

    def _steps_to_keep(self, last: Commit, evaluation: Evaluation | None) -> list[int]:
        """Return the earlier steps whose states are needed: the best round's, and that of the round being evaluated."""
        if not self._settings.best_round:
            return []
        return sorted({last.best.step, evaluation.step if evaluation else 0} - {0})

    def _exported_state(self, server: Server, last: Commit, best: BestEvaluation) -> tuple[Server, Commit]:
        """Return the server's state after the round whose models the sites export: the last or the best one."""
        if not self._settings.best_round or not best.round:
            return server, last
        state, commit = self._journal.at(best.step)
        return self._server(state, commit), commit

    # ---- start and restart

    def _seeded(self, server: Server) -> AbstractContextManager[None]:
        """Return a context in which torch's global generator depends only on (seed, server, round)."""
        return seeded_generators(self._settings.seed, SERVER, server.round, "global")

    def _server(self, state: State, commit: Commit) -> Server:
        """Return the method's view of the server after a commit."""
        return Server(
            name=SERVER,
            round=commit.round,
            state=state,
            task=self._make_method().task_of(self._task),
            settings=self._settings,
            blobs=self._journal.store,
            sites=self._backend.sites,
            site_info=commit.site_info,
            rounds_done=commit.rounds_done,
            public=self._data.public,
        )

    def _set_up(self) -> tuple[Server, Commit]:
        """Initialise the method in a new run folder and commit step 0."""
        commit = Commit(site_info=self._backend.site_info())
        server = self._server(State(), commit)
        with self._seeded(server):
            self._make_method().setup(server)
        self._journal.begin(server.state, commit)
        return server, commit

    def _resume(self) -> tuple[Server, Commit] | None:
        """Return the newest commit from which every site can continue, or None in a new run folder.

        A site can lag behind the commit if its disk lost its last step. The loop then goes back by one step, if the
        previous commit still exists.
        """
        newest = self._journal.latest()
        if newest is None:
            return None
        state, last = newest
        site_steps = {site: self._backend.newest(site) for site in last.answered_steps}
        lagging = {site: step for site, step in site_steps.items() if step < last.answered_steps[site]}
        if any(last.answered_steps[site] == last.step for site in lagging) and self._journal.can_go_back(last):
            names = ", ".join(sorted(lagging))
            logger.warning("Going back to step %d, from which %s can continue.", last.step - 1, names)
            self._journal.go_back(last)
            return self._resume()
        for site in sorted(lagging):
            logger.warning(
                "%s continues after its step %d, though it had answered later steps: a file of its state was damaged, "
                "its state was lost, or another machine uses its name.",
                site,
                lagging[site],
            )
        for site, site_info in self._backend.site_info().items():
            if not last.site_info.get(site):  # the site was unavailable at the start
                last.site_info[site] = site_info
        self._journal.reconcile(last)
        logger.info("Continuing after step %d (%d rounds done).", last.step, last.rounds_done)
        return self._server(state, last), last

    def _retry_failed_step(self, last: Commit) -> tuple[Server, Commit]:
        """Delete the commit of the step that ended the run, so that the step is run again."""
        logger.warning("Round %d had ended as %s: %s Trying it again.", last.round, last.status, last.reason)
        state, previous = self._journal.go_back(last)
        self._journal.reconcile(previous)
        return self._server(state, previous), previous

    def _check_kept_rounds(self, server: Server, last: Commit) -> None:
        """Raise if the setting `keep_rounds` asks for models that this run can't keep."""
        if self._settings.keep_rounds:
            self._journal.check_keep_rounds(self._settings, self._make_method().models(server), last.rounds_done)


def _first_not_finite(tensors: Tensors) -> str | None:
    """Return the name of the first tensor with a value that is not finite, or None."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not all_finite(tensor):
            return name
    return None
