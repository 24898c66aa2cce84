"""Check of the conformance suite in which a site sends false metadata and false replies."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import torch

from medfl.contract import Plan, Replies, Reply, Request, Server, Site
from medfl.engine.reply_checks import check_reply
from medfl.engine.store import copy_state
from medfl.errors import RefusedError
from medfl.testing.cohort import CLASSES, Case, bits, folders
from medfl.testing.suite import expect, finite, promise
from medfl.types import Meta, Tensors
from medfl.utils import wire
from medfl.utils.metadata import MAX_COUNT, MAX_TEXT_CHARACTERS

FALSE_VALUES: tuple[Any, ...] = (
    None, True, "x", "x" * (MAX_TEXT_CHARACTERS + 1), [], [0], [[]], {}, {"size": {"size": [None]}}, -1, 0, 0.5, 1,
    1e300, MAX_COUNT, 2**63, 10**400, math.nan, math.inf, -math.inf, [0] * CLASSES, [MAX_COUNT] * CLASSES,
    [-1] * CLASSES, [1] * 10_000,
)  # fmt: skip
"""False values for a site's metadata: of every type, and at and beyond the bounds."""


@promise
def dishonest_site_does_not_stop_run(case: Case) -> None:
    """Check that a run finishes with finite models although a site sends invalid metadata or misses tensors."""
    requests: dict[str, Request] = {}

    class WithDishonestSite(case.kind):  # type: ignore[name-defined]
        """The method, with a dishonest site-2; each aggregation is first tried with false replies of the last site."""

        supports: ClassVar[Any] = case.kind.supports

        def plan(self, server: Server) -> Plan | None:
            plan: Plan | None = super().plan(server)
            requests.clear()
            requests.update({request.to: request for request in plan.requests} if plan else {})
            return plan

        def execute(self, site: Site, request: Request) -> Reply:
            reply: Reply = super().execute(site, request)
            if site.name == "site-2":
                reply.meta = {} if site.round == 1 else dict.fromkeys(reply.meta, {"size": [math.nan]})
            return reply

        def aggregate(self, server: Server, replies: Replies) -> None:
            sent = {site: (tensors, replies.meta[site]) for site, tensors in replies}
            for site in sorted(sent)[-1:]:
                for what, tensors, meta in _false_replies(*sent[site], sorted(self.sends_meta)):
                    with contextlib.suppress(RefusedError):
                        check_reply(self, server.task, requests[site], tensors, meta, site)
                        self.check_false_reply(
                            server, _SentReplies(sent | {site: (tensors, meta)}, replies.missing), what
                        )
                if sent[site][0]:
                    self.check_emptied_reply(server, sent, replies.missing, site)
            super().aggregate(server, replies)

        def check_emptied_reply(
            self, server: Server, sent: dict[str, tuple[Tensors, Meta]], missing: list[str], site: str
        ) -> None:
            """Check that a reply without its tensors is refused, or has no effect on the aggregation."""
            with contextlib.suppress(RefusedError):
                check_reply(self, server.task, requests[site], {}, sent[site][1], site)
                emptied = _SentReplies(sent | {site: ({}, sent[site][1])}, missing)
                others = _SentReplies({name: sent[name] for name in sent if name != site}, [*missing, site])
                states = []
                for replies in (emptied, others):
                    copy = replace(server, state=copy_state(server.state))
                    super().aggregate(copy, replies)
                    states.append(copy.state.tensors)
                expect(
                    wire.tensors_equal(*states),
                    "a reply without tensors counts: refuse it in `check_tensors`, or ignore it in `aggregate`",
                )

        def check_false_reply(self, server: Server, replies: Replies, what: str) -> None:
            """Check that the server can aggregate, plan and publish with a false reply that was accepted."""
            copy = replace(server, state=copy_state(server.state))
            try:
                super().aggregate(copy, replies)
                super().plan(copy)
                super().publish(copy)
            except Exception as error:
                raise AssertionError(
                    f"a reply with {what} is not refused and ends the run ({type(error).__name__}: {error}): restrict "
                    "it in `sends_meta` or `check_tensors`"
                ) from error

    with folders(1) as (folder,):
        make_method = lambda: WithDishonestSite(**case.make_method().model_dump())  # noqa: E731
        result = case.run(folder, make_method=make_method, rounds=2)
        expect(result.outcome.status == "finished", f"ended as {result.outcome.status}: {result.outcome.reason}")
        finite(bits(result), "beside a dishonest site")


class _SentReplies:
    """Replies in memory."""

    def __init__(self, sent: dict[str, tuple[Tensors, Meta]], missing: list[str]) -> None:
        self._sent, self.missing = sent, missing
        self.meta = {site: meta for site, (_, meta) in sent.items()}

    def __iter__(self) -> Iterator[tuple[str, Tensors]]:
        for site, (tensors, _) in sorted(self._sent.items()):
            yield site, dict(tensors)

    def __len__(self) -> int:
        return len(self._sent)


def _false_replies(tensors: Tensors, meta: Meta, declared: list[str]) -> Iterator[tuple[str, Tensors, Meta]]:
    """Yield changed versions of a reply: a description of the change, the tensors, and the metadata."""
    for key in declared:
        for lie in FALSE_VALUES:
            yield f"'{key}' as {str(lie)[:40]}", tensors, meta | {key: lie}
        yield f"no '{key}'", tensors, {name: value for name, value in meta.items() if name != key}
    yield "no tensors", {}, meta
    for name in sorted(tensors)[:1] + sorted(tensors)[-1:]:
        others = {other: tensor for other, tensor in tensors.items() if other != name}
        yield f"no '{name}'", others, meta
        yield f"'{name}' of another shape", tensors | {name: torch.zeros(2, 2, 2, 2, 2)}, meta
        yield f"'{name}' as bool", tensors | {name: tensors[name].bool()}, meta
        yield f"'{name}' twice", tensors | {f"{name}.1": tensors[name]}, meta
