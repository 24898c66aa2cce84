"""Several sites at once: their trainings meet at each step, which one pass over a stack of models takes for all.

Each site's work runs in a thread of its own, only one of them at any time, and is what it is for a site alone but for
the steps of its training. There it waits, with its batch, until the others are as far; then those that wait with
batches of the same shape take their step (`medfl.training.stacked`), most first. Whoever has fewer batches is over
sooner, and the others go on without it. Batches and random numbers are those of each site alone.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from medfl.training.loop import PlainSteps
from medfl.training.stacked import Arrival, CommonLoss, SharedSteps, Stack
from medfl.types import Tensors
from medfl.utils.rng import GlobalStreams

T = TypeVar("T")


class Together:
    """Lets pieces of work take the steps of their trainings at once; it may be used again and again."""

    def __init__(self) -> None:
        self._stack = Stack()

    def run(self, works: Sequence[Callable[[], T]]) -> list[T]:
        """What the pieces of work return; the first error ends all of them.

        Args:
            works: Each one a site's. One alone is just done.

        Raises:
            SettingsError: If the loss or the network can't be computed for several sites at once.
        """
        if len(works) == 1:
            return [works[0]()]
        before, members = GlobalStreams.now(), [_Member(work) for work in works]
        try:
            for member in members:
                member.go_on()
            while waiting := [member for member in members if member.arrivals]:
                group = _largest_alike(waiting)
                losses = self._stack.step([member.arrivals[0] for member in group])
                for member, loss in zip(group, losses, strict=True):
                    member.go_on(loss)
            return [member.results[0] for member in members]
        finally:
            for member in members:
                member.end()
            before.restore()


def plain_steps(loss: CommonLoss, criterion: nn.Module, start: Tensors) -> Callable[..., PlainSteps]:
    """What takes plain steps here: `PlainSteps`, or in a piece of work of `Together` steps with the others.

    Args:
        loss: As for `SharedSteps`.
        criterion: As for `SharedSteps`.
        start: As for `SharedSteps`.
    """
    member = _MEMBER.get()
    return PlainSteps if member is None else partial(SharedSteps, member.wait, loss, criterion, start)


class _Abandoned(BaseException):
    """Another site's work failed, so this one ends, too. No plugin takes it for an error that it can mend."""


class _Member(Generic[T]):
    """A piece of work in a thread of its own, which runs only while somebody waits in `go_on`."""

    def __init__(self, work: Callable[[], T]) -> None:
        self.arrivals: list[Arrival] = []
        self.results: list[T] = []
        self._losses: list[torch.Tensor] = []
        self._error: BaseException | None = None
        self._abandoned = False
        self._streams = GlobalStreams.now()
        self._inner, self._outer = threading.Semaphore(0), threading.Semaphore(0)
        context = copy_context()
        context.run(_MEMBER.set, self)
        self._thread = threading.Thread(target=context.run, args=(self._do, work), daemon=True)

    def go_on(self, *loss: torch.Tensor) -> None:
        """Let it run until it waits again or is over, with the global random streams as it left them.

        Args:
            *loss: Of the step that it waits for; none at its start.
        """
        self._losses, self.arrivals = list(loss), []
        self._streams.restore()
        if loss:
            self._inner.release()
        else:
            self._thread.start()
        self._outer.acquire()
        self._streams = GlobalStreams.now()
        if self._error is not None:
            raise self._error

    def wait(self, arrival: Arrival) -> torch.Tensor:
        """In the thread: wait for a step; its loss."""
        self.arrivals = [arrival]
        self._outer.release()
        self._inner.acquire()
        if self._abandoned:
            raise _Abandoned
        return self._losses[0]

    def end(self) -> None:
        """End it wherever it is; nothing where it is over."""
        if self._thread.ident is not None:
            self._abandoned = True
            self._inner.release()
            self._thread.join()

    def _do(self, work: Callable[[], T]) -> None:
        try:
            self.results.append(work())
        except BaseException as error:  # raised by `go_on`
            self._error = error
        finally:
            self._outer.release()


_MEMBER: ContextVar[_Member[Any] | None] = ContextVar("member", default=None)
"""The piece of work that this code belongs to."""


def _largest_alike(waiting: Sequence[_Member[T]]) -> list[_Member[T]]:
    """Most of those that can take a step at once; the first of equals."""
    groups: dict[str, list[_Member[T]]] = defaultdict(list)
    for member in waiting:
        groups[member.arrivals[0].kind].append(member)
    return max(groups.values(), key=len)
