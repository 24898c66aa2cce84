"""A round of one or more steps: a method declares them and says what is left of the round; the machine here does it.

What is kept of a round under way is the list of its steps that are committed, in the server's meta. All else is asked
for anew before each step, so a run that was killed goes on behind the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import astuple, dataclass

from medfl.contract import Plan, Replies, Reply, Request, Server, Site
from medfl.errors import ContractError
from medfl.toolkit.robust.rule import least_replies

DONE = "done"
"""In the server's meta, while a round is under way: its steps that are committed, each as [name, turn]."""


@dataclass(frozen=True)
class Step:
    """One exchange of a round.

    Attributes:
        name: The op of its orders.
        orders: The orders of the step; without any function it is a step of the server alone.
        work: What a site does with one; without it a site replies with nothing.
        fold: Takes the replies into the server's state; without it there is nothing to take.
        quorum: How many replies are needed to go on. None is the run's `min_replies`, or all where fewer are ordered,
            and never fewer than a robust rule needs.
        updates: Prefixes under which a reply must hold updates of what the order brought; None is all that the method
            sends. A reply without them is refused: it would count as one of zeros.
    """

    name: str
    requests: Callable[[Server], list[Request]] | None = None
    execute: Callable[[Site, Request], Reply] | None = None
    aggregate: Callable[[Server, Replies], None] | None = None
    quorum: Callable[[Server], int] | int | None = None
    updates: Collection[str] | None = None


@dataclass(frozen=True)
class Due:
    """A step of this round.

    Attributes:
        name: Of the step.
        turn: Tells the occurrences of a step in one round from each other.
    """

    name: str
    turn: int = 0


class Rounds:
    """The machine: `plan`, `work` and `fold` of the contract, for a method that declares its steps."""

    # ---- what a method overrides

    def round_steps(self) -> tuple[Step, ...]:
        """All steps that a round may have, each under another name."""
        raise NotImplementedError

    def schedule(self, server: Server, done: Sequence[Due]) -> Sequence[Due]:
        """What is left of this round, the next step first; by default each step once, in the order of `round_steps`.

        Called before each step. Only the first is carried out before the next call, and the round ends after it if it
        is alone. A pure function of the server's state, the settings and randomness that depends on the round alone.

        Args:
            server: In the round.
            done: The steps of this round that are committed, in their order.

        Returns:
            At least one where none is done.
        """
        return [Due(step.name) for step in self.round_steps()][len(done) :]

    # ---- for a method's steps

    def due(self, server: Server) -> Due:
        """The step that is next or under way; ask before the server's state is changed in a `fold`."""
        return self._left(server)[0]

    # ---- the contract

    def plan(self, server: Server) -> Plan | None:
        """The next step of the round, or None after the last round."""
        if server.rounds_done >= server.settings.rounds:
            return None
        left = self._left(server)
        if not left:
            return Plan(server.round, [])  # the settings were changed when the run was continued: nothing is left
        step = self._step(left[0].name)
        requests = step.requests(server) if step.requests else []
        if wrong := sorted({request.op for request in requests} - {step.name}):
            raise ContractError(
                "wrong_orders",
                f"expected orders '{step.name}' in the step of that name, got {wrong}",
                expected=step.name,
                found=wrong,
            )
        quorum, aggregates = _quorum(server, step, len(requests)), step.aggregate is not None
        return Plan(server.round, requests, ends_round=len(left) == 1, quorum=quorum, aggregates=aggregates)

    def execute(self, site: Site, request: Request) -> Reply:
        """What the step does that the order belongs to."""
        step = self._step(request.op)
        return step.execute(site, request) if step.execute else Reply()

    def aggregate(self, server: Server, replies: Replies) -> None:
        """What the step makes of the replies; then it is done, and after the last step the round is."""
        done, left = _done(server), self._left(server)
        if left and (aggregate := self._step(left[0].name).aggregate):
            aggregate(server, replies)
        if len(left) > 1:
            server.state.meta[DONE] = [list(astuple(due)) for due in (*done, left[0])]
        else:
            server.state.meta.pop(DONE, None)

    # ---- pieces

    def _left(self, server: Server) -> Sequence[Due]:
        done = _done(server)
        left = self.schedule(server, done)
        if not left and not done:
            raise ContractError(
                "empty_schedule", f"expected a step in round {server.round}, got an empty schedule", round=server.round
            )
        return left

    def _step(self, name: str) -> Step:
        steps = {step.name: step for step in self.round_steps()}
        if name not in steps:
            *others, last = steps
            names = f"{', '.join(others)} or {last}" if others else last
            raise ContractError(
                "unknown_order", f"expected an order {names}, got '{name}'", name=name, known=list(steps)
            )
        return steps[name]


def _done(server: Server) -> list[Due]:
    return [Due(name, turn) for name, turn in server.state.meta.get(DONE, [])]


def _quorum(server: Server, step: Step, requests: int) -> int | None:
    if step.requests is None:
        return None
    if step.quorum is None:
        return max(min(server.settings.min_replies, max(requests, 1)), least_replies(server.settings.robust))
    return step.quorum if isinstance(step.quorum, int) else step.quorum(server)
