"""Interface between the server loop and a backend, with the data that a backend returns.

A backend transports requests and replies. `medfl.engine.backends.local.LocalBackend` runs sites on this machine;
`medfl_flare` runs them on other machines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from medfl.contract import Method, Replies, Request
from medfl.engine.evaluation import MetricRow
from medfl.engine.store import StepNumbers
from medfl.records.progress import Event
from medfl.types import Meta, Tensors


@dataclass
class Evaluation:
    """A completed round whose models are to be scored.

    Attributes:
        round: Number of the round, from 1.
        step: Last step of the round; the sites' models are those of their states after this step.
        published: Tensors that the server published after this step (`Method.publish`).
    """

    round: int
    step: int
    published: Tensors


@dataclass
class SiteResult:
    """Result of a step at one site. The tensors of the reply stay in a file until they are aggregated.

    Attributes:
        site: Name of the site.
        step: Step number.
        refused: Reason why the site sent no reply, or None if it replied.
        meta: Metadata of the reply.
        rows: Scores and costs of the step at this site.
    """

    site: str
    step: int
    refused: str | None = None
    meta: Meta = field(default_factory=dict)
    rows: list[MetricRow] = field(default_factory=list)


class StepResult(NamedTuple):
    """Result of a step at all requested sites.

    Attributes:
        results: Results of the sites that responded, including refusals.
        unavailable: Names of the requested sites that did not respond.
        scores: Rows of the evaluation that ran beside the step.
    """

    results: list[SiteResult]
    unavailable: list[str]
    scores: list[MetricRow]


class Backend(Protocol):
    """Runs the sites of a federation and transports messages between them and the server loop."""

    @property
    def sites(self) -> list[str]:
        """Names of the sites that can receive requests, sorted."""
        ...

    def site_info(self) -> dict[str, Meta]:
        """Return the information that each site discloses about itself, by site (`medfl.contract.Server.site_info`)."""
        ...

    def newest(self, site: str) -> int:
        """Return the newest valid step on a site's disk; 0 if there is none."""
        ...

    def step(
        self,
        step: int,
        round_: int,
        requests: list[Request],
        evaluation: Evaluation | None = None,
        keep: StepNumbers = (),
    ) -> StepResult:
        """Send requests to the sites, wait for their results, and evaluate an earlier round meanwhile.

        Args:
            step: Step number.
            round_: Round of the step.
            requests: Requests of the step, at most one per site.
            evaluation: Round to evaluate beside the step, or None.
            keep: Earlier steps whose states the sites must not delete.
        """
        ...

    def replies(self, results: list[SiteResult], missing: list[str]) -> Replies:
        """Return the replies that belong to results without a refusal.

        Args:
            results: Results of a step whose sites replied.
            missing: Names of the requested sites without a usable reply.
        """
        ...

    def evaluate_cross_site(self, evaluation: Evaluation) -> list[MetricRow]:
        """Score each site's model on the test data of every other site."""
        ...


EventListener = Callable[[Event], None]
"""Callback that receives progress events. It must not raise."""


def ignore_event(event: Event) -> None:
    """Discard a progress event."""


MethodFactory = Callable[[], Method]
"""Creates a method object. The engine calls it before every step, because a method must keep nothing between steps."""
