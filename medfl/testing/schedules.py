"""The check of the conformance suite for methods that declare the steps of their rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from medfl.contract import Server
from medfl.engine.store import copied
from medfl.testing.cohort import Case, folders
from medfl.testing.suite import expect, promise
from medfl.toolkit.rounds import Due, Rounds
from medfl.utils import wire


@promise
def schedules_are_pure(case: Case) -> None:
    """What is left of a round depends on the state alone and changes nothing: declared steps, none of them twice."""
    if not issubclass(case.kind, Rounds):
        return  # it has a `plan` of its own

    class Probed(case.kind):  # type: ignore[name-defined]
        """The method, asked twice each time."""

        supports: ClassVar[Any] = case.kind.supports

        def schedule(self, server: Server, done: Sequence[Due]) -> Sequence[Due]:
            names = [step.name for step in self.round_steps()]
            expect(len(set(names)) == len(names), f"steps of one name: {names}")
            before = wire.digest(server.state.tensors, server.state.meta)
            again = list(super().schedule(replace(server, state=copied(server.state)), list(done)))
            left = list(super().schedule(server, done))
            expect(left == again, f"round {server.round}: {again} and, asked again, {left}")
            expect(before == wire.digest(server.state.tensors, server.state.meta), "a schedule changes the state")
            expect({due.name for due in left} <= set(names), f"{left} are not all among the steps {names}")
            dues = [*done, *left]
            expect(len(set(dues)) == len(dues), f"round {server.round} has a step twice: {dues}")
            return left

    with folders(1) as (folder,):
        case.run(folder, make_method=lambda: Probed(**case.make_method().model_dump()), rounds=2)
