"""What the server's loop asks of a carrier, and what a carrier hands back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from medfl.contract import Method, Replies, Request
from medfl.engine.evaluation import Row
from medfl.engine.store import Steps
from medfl.records.progress import Event
from medfl.types import Meta, Tensors


class Backend(Protocol):
    """What the loop needs of a carrier."""

    @property
    def sites(self) -> list[str]:
        """Names of the sites that can be ordered, sorted."""
        ...

    def site_info(self) -> dict[str, Meta]:
        """What each site tells about itself."""
        ...

    def newest(self, site: str) -> int:
        """The newest valid step on a site's disk; 0 if none."""
        ...

    def step(
        self, step: int, round_: int, requests: list[Request], evaluation: Evaluation | None = None, keep: Steps = ()
    ) -> tuple[list[SiteResult], list[str], list[Row]]:
        """Carry out orders, and beside them an evaluation; answers, absent sites, rows of the evaluation.

        The sites keep what they had after the steps in `keep`.
        """
        ...

    def replies(self, results: list[SiteResult], missing: list[str]) -> Replies:
        """The replies behind answers that were not refused."""
        ...

    def evaluate_cross_site(self, evaluation: Evaluation) -> list[Row]:
        """Each site's model on every site's test data."""
        ...


@dataclass
class Evaluation:
    """A round to be scored: the sites' states after `step`, and what the server published then."""

    round: int
    step: int
    published: Tensors


@dataclass
class SiteResult:
    """What the server learns of a site's step. The reply's tensors stay in a file until they are folded.

    Attributes:
        site: Who answers.
        step: Which step.
        refused: Why nothing is sent, or None.
        meta: The reply's meta, as it left the site.
        rows: Scores and costs.
    """

    site: str
    step: int
    refused: str | None = None
    meta: Meta = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)


Note = Callable[[Event], None]
"""Callback that receives progress events and raises nothing."""


def unnoted(event: Event) -> None:
    """Discard a progress event."""


MethodFactory = Callable[[], Method]
"""Makes the method anew; called before every step, since nothing may live on a method object."""
