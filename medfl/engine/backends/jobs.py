"""Jobs of the local backend, which it runs in this process or in a worker.

A job is one site's request of a step, a part of an evaluation, or the cross-site evaluation of one model.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import ClassVar, Self

from medfl.contract import Request
from medfl.types import Meta, Tensors


@dataclass(frozen=True, kw_only=True)
class BackendJob:
    """Base class of the jobs. All fields except the tensors are JSON, so a job can be sent through a pipe.

    Attributes:
        name: Name of the kind of job, for messages and progress events.
        tensors: Input tensors. Several jobs may share one object.
    """

    name: ClassVar[str]
    tensors: Tensors = field(repr=False)

    @property
    def participants(self) -> list[str]:
        """Names of the sites, or of the test set, that the job is for."""
        raise NotImplementedError

    @property
    def participants_text(self) -> str:
        """The names in `participants`, separated by commas."""
        return ", ".join(self.participants)

    def fields_to_json(self) -> Meta:
        """Return all fields except the tensors, as JSON."""
        return {name: value for name, value in vars(self).items() if name != "tensors"}

    def copy(self) -> Self:
        """Return a deep copy of the job, as a worker would receive it."""
        fields = json.loads(json.dumps(self.fields_to_json()))
        return type(self)(**fields, tensors={name: tensor.clone() for name, tensor in self.tensors.items()})


@dataclass(frozen=True, kw_only=True)
class StepJob(BackendJob):
    """Job that executes the request for one site.

    Attributes:
        request: ``to``, ``op`` and ``meta`` of the request.
        digest: `medfl.utils.wire.digest` of the request's tensors.
        step: Number of the step.
        round: Round that the step belongs to.
        keep: Earlier steps after which the site's state is still needed.
    """

    name: ClassVar[str] = "step"
    request: Meta
    digest: str
    step: int
    round: int
    keep: list[int]

    @property
    def participants(self) -> list[str]:
        """Name of the site, in a list."""
        return [self.request["to"]]

    def to_request(self) -> Request:
        """Return the request with the job's tensors."""
        return Request(**self.request, tensors=self.tensors)


@dataclass(frozen=True, kw_only=True)
class EvaluateJob(BackendJob):
    """Job that scores the models of some sites on their own data. Its tensors are the published tensors of the server.

    Attributes:
        sites: Names of the sites.
        step: Last step of the round.
        round: The evaluated round.
        score_caches: Maps each site to the last scores of its models (`medfl.engine.evaluation.ScoreCache`).
    """

    name: ClassVar[str] = "evaluate"
    sites: list[str]
    step: int
    round: int
    score_caches: dict[str, Meta]

    @property
    def participants(self) -> list[str]:
        """Names of the sites."""
        return self.sites


@dataclass(frozen=True, kw_only=True)
class PredictJob(BackendJob):
    """Job that predicts some cases of a test set of the server. Its tensors are the published tensors of the server.

    Attributes:
        test_set: Name of the test set.
        cases: First case, and the case after the last one.
        step: Last step of the round.
        round: The evaluated round.
    """

    name: ClassVar[str] = "predict"
    test_set: str
    cases: tuple[int, int]
    step: int
    round: int

    @property
    def participants(self) -> list[str]:
        """Name of the test set, in a list."""
        return [self.test_set]


@dataclass(frozen=True, kw_only=True)
class CrossSiteJob(BackendJob):
    """Job that scores one site's model on every site's test data. Its tensors are the published tensors of the server.

    Attributes:
        owner: Site that the model belongs to.
        step: Last step of the round.
        round: The evaluated round.
    """

    name: ClassVar[str] = "cross_site_evaluation"
    owner: str
    step: int
    round: int

    @property
    def participants(self) -> list[str]:
        """Name of the model's owner, in a list."""
        return [self.owner]


JOB_KINDS: tuple[type[BackendJob], ...] = (StepJob, EvaluateJob, PredictJob, CrossSiteJob)
"""All kinds of jobs."""
