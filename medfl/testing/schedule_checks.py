"""Check of the conformance suite for methods that declare the steps of their rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from medfl.contract import Server
from medfl.engine.store import copy_state
from medfl.testing.cohort import Case, folders
from medfl.testing.suite import expect, promise
from medfl.toolkit.rounds import MultiStepMethod, ScheduledStep
from medfl.utils import wire


@promise
def schedules_are_pure(case: Case) -> None:
    """Check that a method's remaining steps are declared and unique, and that computing them has no side effect."""
    if not issubclass(case.kind, MultiStepMethod):
        return  # the method implements `plan` itself

    class Probed(case.kind):  # type: ignore[name-defined]
        """The method; it computes the remaining steps twice each time."""

        supports: ClassVar[Any] = case.kind.supports

        def remaining_steps(self, server: Server, done: Sequence[ScheduledStep]) -> Sequence[ScheduledStep]:
            names = [step.name for step in self.round_steps()]
            expect(len(set(names)) == len(names), f"steps of one name: {names}")
            before = wire.digest(server.state.tensors, server.state.meta)
            again = list(super().remaining_steps(replace(server, state=copy_state(server.state)), list(done)))
            left = list(super().remaining_steps(server, done))
            expect(left == again, f"round {server.round}: {again} at the first call and {left} at the second")
            expect(
                before == wire.digest(server.state.tensors, server.state.meta),
                "computing the remaining steps changes the state",
            )
            expect({due.name for due in left} <= set(names), f"{left} are not all among the steps {names}")
            dues = [*done, *left]
            expect(len(set(dues)) == len(dues), f"round {server.round} has a step twice: {dues}")
            return left

    with folders(1) as (folder,):
        case.run(folder, make_method=lambda: Probed(**case.make_method().model_dump()), rounds=2)
