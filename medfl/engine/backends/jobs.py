"""What the local carrier has done in this process or in a worker: one step, an evaluation or a part of one, a row of
the global test."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import ClassVar, Self

from medfl.contract import Request
from medfl.types import Meta, Tensors


@dataclass(frozen=True, kw_only=True)
class Job:
    """A piece of work that shares nothing with others; all but its tensors is JSON.

    Attributes:
        name: What is done, for messages.
        tensors: What it needs; several jobs may name the same object.
    """

    name: ClassVar[str]
    tensors: Tensors = field(repr=False)

    @property
    def whose(self) -> list[str]:
        """The sites that it is for."""
        raise NotImplementedError

    @property
    def who(self) -> str:
        """The same in words."""
        return ", ".join(self.whose)

    def facts(self) -> Meta:
        """All but the tensors, as JSON."""
        return {name: value for name, value in vars(self).items() if name != "tensors"}

    def copy(self) -> Self:
        """The same job as a worker would get it: nothing in it belongs to anybody else."""
        facts = json.loads(json.dumps(self.facts()))
        return type(self)(**facts, tensors={name: tensor.clone() for name, tensor in self.tensors.items()})


@dataclass(frozen=True, kw_only=True)
class StepJob(Job):
    """Carry out one site's order.

    Attributes:
        order: ``to``, ``op`` and ``meta`` of the order.
        digest: `medfl.utils.wire.digest` of its tensors.
        step: The step's number.
        round: Its round.
        keep: Earlier steps after which the site's state is still needed.
    """

    name: ClassVar[str] = "step"
    request: Meta
    digest: str
    step: int
    round: int
    keep: list[int]

    @property
    def whose(self) -> list[str]:
        """The site."""
        return [self.request["to"]]

    def unpacked(self) -> Request:
        """Return the order with the job's tensors."""
        return Request(**self.request, tensors=self.tensors)


@dataclass(frozen=True, kw_only=True)
class EvaluateJob(Job):
    """Score the models of some sites; the tensors are what the server published.

    Attributes:
        sites: Their names.
        step: The round's last step.
        round: The round.
        known: Site to what its models scored before (`medfl.engine.evaluation.Known`).
    """

    name: ClassVar[str] = "evaluate"
    sites: list[str]
    step: int
    round: int
    known: dict[str, Meta]

    @property
    def whose(self) -> list[str]:
        """The sites."""
        return self.sites


@dataclass(frozen=True, kw_only=True)
class PredictJob(Job):
    """Predict some cases of a test set that the server holds; the tensors are what the server published.

    Attributes:
        holder: Name of the test set.
        cases: The first case, and that after the last.
        step: The round's last step.
        round: The round.
    """

    name: ClassVar[str] = "predict"
    participant: str
    cases: tuple[int, int]
    step: int
    round: int

    @property
    def whose(self) -> list[str]:
        """The name of the test set."""
        return [self.participant]


@dataclass(frozen=True, kw_only=True)
class CrossSiteJob(Job):
    """Score one site's model on every site's test data; the tensors are what the server published.

    Attributes:
        owner: The site whose model it is.
        step: The round's last step.
        round: The round.
    """

    name: ClassVar[str] = "exchange"
    owner: str
    step: int
    round: int

    @property
    def whose(self) -> list[str]:
        """The owner of the model."""
        return [self.owner]


JOBS: tuple[type[Job], ...] = (StepJob, EvaluateJob, PredictJob, CrossSiteJob)
"""All of them."""
