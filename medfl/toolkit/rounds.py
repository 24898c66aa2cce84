"""Rounds of several steps: a method declares its steps and their order, and `MultiStepMethod` plans and executes them.

The server's metadata list the committed steps of an unfinished round. Everything else is computed again before each
step, so a run that was killed resumes after its last committed step. A step is committed when the server has aggregated
the replies and saved its state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import astuple, dataclass

from medfl.contract import Plan, Replies, Reply, Request, Server, Site
from medfl.errors import ContractError
from medfl.toolkit.robust.rule import least_replies

COMMITTED_STEPS = "done"
"""Key of the server's metadata with the committed steps of an unfinished round, each as [name, repetition]."""


@dataclass(frozen=True)
class RoundStep:
    """One step of a round: requests to sites, computation at the sites, aggregation at the server.

    Attributes:
        name: Name of the step, which is also the `op` of its requests.
        requests: Function that returns the requests of the step; None for a step of the server alone.
        execute: Function that executes a request at a site; None if the site sends an empty reply.
        aggregate: Function that aggregates the replies into the server's state; None if no replies are aggregated.
        quorum: Number of replies that the step needs, or a function of the server that returns it. None means the run's
            `min_replies`, or all replies if fewer sites receive a request, but never fewer than the robust rule needs.
        updates: Prefixes under which each reply must contain updates of the request's tensors; None means all prefixes
            that the method sends. A reply without them is refused, because it would count as an update of zeros.
    """

    name: str
    requests: Callable[[Server], list[Request]] | None = None
    execute: Callable[[Site, Request], Reply] | None = None
    aggregate: Callable[[Server, Replies], None] | None = None
    quorum: Callable[[Server], int] | int | None = None
    updates: Collection[str] | None = None


@dataclass(frozen=True)
class ScheduledStep:
    """A step that is scheduled in the current round.

    Attributes:
        name: Name of the `RoundStep`.
        turn: Number of the occurrence, from 0, if the step is repeated in one round.
    """

    name: str
    turn: int = 0


class MultiStepMethod:
    """Base class of methods that declare the steps of a round.

    Implements `plan`, `execute` and `aggregate` of the contract.
    """

    # ---- methods to override

    def round_steps(self) -> tuple[RoundStep, ...]:
        """Return all steps that a round may contain, each with a different name."""
        raise NotImplementedError

    def remaining_steps(self, server: Server, done: Sequence[ScheduledStep]) -> Sequence[ScheduledStep]:
        """Return the remaining steps of this round, the next step first.

        By default each of `round_steps` is executed once.

        Called before each step. Only the first of the returned steps is executed before the next call. The round ends
        after that step if it is the only one. This must be a pure function of the server's state, the settings, and
        random numbers that depend on the round alone.

        Args:
            server: The server.
            done: Steps of this round that are committed, in the order of their execution.

        Returns:
            The remaining steps; at least one at the start of a round.
        """
        return [ScheduledStep(step.name) for step in self.round_steps()][len(done) :]

    # ---- helpers for subclasses

    def current_step(self, server: Server) -> ScheduledStep:
        """Return the step that is next or in progress.

        In `aggregate`, call this before you change the server's state.
        """
        return self._left(server)[0]

    # ---- the contract

    def plan(self, server: Server) -> Plan | None:
        """Return the plan of the round's next step, or None after the last round."""
        if server.rounds_done >= server.settings.rounds:
            return None
        left = self._left(server)
        if not left:
            return Plan(server.round, [])  # a continued run has changed settings, and no step of the round remains
        step = self._step(left[0].name)
        requests = step.requests(server) if step.requests else []
        if wrong := sorted({request.op for request in requests} - {step.name}):
            raise ContractError(
                "wrong_orders",
                f"expected requests with the op '{step.name}' in the step of that name, got {wrong}",
                expected=step.name,
                found=wrong,
            )
        quorum, aggregates = _quorum(server, step, len(requests)), step.aggregate is not None
        return Plan(server.round, requests, ends_round=len(left) == 1, quorum=quorum, aggregates=aggregates)

    def execute(self, site: Site, request: Request) -> Reply:
        """Execute a request by the function of its step."""
        step = self._step(request.op)
        return step.execute(site, request) if step.execute else Reply()

    def aggregate(self, server: Server, replies: Replies) -> None:
        """Aggregate the replies by the step's function, and record the step's end in the server's state."""
        done, left = _committed_steps(server), self._left(server)
        if left and (aggregate := self._step(left[0].name).aggregate):
            aggregate(server, replies)
        if len(left) > 1:
            server.state.meta[COMMITTED_STEPS] = [list(astuple(due)) for due in (*done, left[0])]
        else:
            server.state.meta.pop(COMMITTED_STEPS, None)

    # ---- private helpers

    def _left(self, server: Server) -> Sequence[ScheduledStep]:
        """Return the remaining steps of this round. Raise if a round begins without any."""
        done = _committed_steps(server)
        left = self.remaining_steps(server, done)
        if not left and not done:
            raise ContractError(
                "empty_schedule", f"expected a step in round {server.round}, got an empty schedule", round=server.round
            )
        return left

    def _step(self, name: str) -> RoundStep:
        """Return the declared step of this name. Raise if there is none."""
        steps = {step.name: step for step in self.round_steps()}
        if name not in steps:
            *others, last = steps
            names = f"{', '.join(others)} or {last}" if others else last
            raise ContractError(
                "unknown_order", f"expected a request with the op {names}, got '{name}'", name=name, known=list(steps)
            )
        return steps[name]


def _committed_steps(server: Server) -> list[ScheduledStep]:
    """Return the committed steps of this round."""
    return [ScheduledStep(name, turn) for name, turn in server.state.meta.get(COMMITTED_STEPS, [])]


def _quorum(server: Server, step: RoundStep, requests: int) -> int | None:
    """Return the number of replies that a step needs, given the number of its requests."""
    if step.requests is None:
        return None
    if step.quorum is None:
        return max(min(server.settings.min_replies, max(requests, 1)), least_replies(server.settings.robust))
    return step.quorum if isinstance(step.quorum, int) else step.quorum(server)
