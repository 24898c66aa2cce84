"""Interface between the server loop and a backend, with the data that a backend returns.

A backend transports requests and replies. A round of a method has one or more steps; in a step, the server sends
requests and receives replies. `medfl.engine.backends.local.LocalBackend` runs sites on this machine;
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
        step: Number of the last step of the round. The sites' states after this step contain the models to score.
        published: Tensors that the server published after this step, from which sites build their models.
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
        results: Results of the sites that responded, with a reply or a refusal.
        unavailable: Names of the requested sites that did not respond.
        scores: Scores of the earlier round whose evaluation ran at the same time as the step.
    """

    results: list[SiteResult]
    unavailable: list[str]
    scores: list[MetricRow]


class Backend(Protocol):
    """Interface of a backend, which runs the sites of a federation and exchanges messages with them for the server."""

    @property
    def sites(self) -> list[str]:
        """Names of the sites that can receive requests, sorted."""
        ...

    def site_info(self) -> dict[str, Meta]:
        """Return the information that each site discloses about itself at the start of the run, by site.

        For example, it says whether the site can train, and how many training images it has.
        """
        ...

    def newest(self, site: str) -> int:
        """Return the number of the newest valid step on a site's disk; 0 if there is none."""
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
            keep: Numbers of earlier steps whose states the sites must not delete.
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
        """Score each site's model on the test data of every site.

        Args:
            evaluation: Round to score.

        Returns:
            One row for each model, site and metric.
        """
        ...


EventListener = Callable[[Event], None]
"""Type of a callback that receives progress events. The callback must not raise an exception."""


def ignore_event(event: Event) -> None:
    """Discard a progress event: the callback of runs whose progress no one follows."""


MethodFactory = Callable[[], Method]
"""Type of a function that returns a new method object.

The engine calls it before every step, because a method object must keep nothing between steps.
"""
