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
        step: Step of the request, or last step of the evaluated round.
        round: Round of the step, or the evaluated round.
        tensors: Input tensors. Several jobs may share one dictionary of tensors.
    """

    name: ClassVar[str]
    step: int
    round: int
    tensors: Tensors = field(repr=False)

    @property
    def participants(self) -> list[str]:
        """Names of the sites, or of the test set, that the job is for."""
        raise NotImplementedError

    @property
    def participants_text(self) -> str:
        """Names in `participants`, separated by commas, for messages."""
        return ", ".join(self.participants)

    def fields_to_json(self) -> Meta:
        """Return all fields except the tensors by name, as JSON values."""
        return {name: value for name, value in vars(self).items() if name != "tensors"}

    def copy(self) -> Self:
        """Return a deep copy of the job, as a worker would receive it."""
        fields = json.loads(json.dumps(self.fields_to_json()))
        return type(self)(**fields, tensors={name: tensor.clone() for name, tensor in self.tensors.items()})


@dataclass(frozen=True, kw_only=True)
class StepJob(BackendJob):
    """Job that executes the server's request at one site.

    Attributes:
        request: Request without its tensors: ``to`` (name of the site), ``op`` (operation) and ``meta`` (metadata).
        digest: SHA-256 of the request's tensors.
        keep: Numbers of earlier steps whose states the site must not delete.
    """

    name: ClassVar[str] = "step"
    """Name of the kind of job, for messages and progress events."""
    request: Meta
    digest: str
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
    """Job that scores the models of some sites on the data of these sites.

    The tensors of the job are those that the server published, from which sites build their models.

    Attributes:
        sites: Names of the sites.
        score_caches: Maps each site to the last scores of its models, which are reused for unchanged models.
    """

    name: ClassVar[str] = "evaluate"
    """Name of the kind of job, for messages and progress events."""
    sites: list[str]
    score_caches: dict[str, Meta]

    @property
    def participants(self) -> list[str]:
        """Names of the sites."""
        return self.sites


@dataclass(frozen=True, kw_only=True)
class PredictJob(BackendJob):
    """Job that predicts some cases of a test set of the server.

    The tensors of the job are those that the server published, from which the global model is built.

    Attributes:
        test_set: Name of the test set.
        cases: Range of the cases: (number of the first case, number after that of the last case).
    """

    name: ClassVar[str] = "predict"
    """Name of the kind of job, for messages and progress events."""
    test_set: str
    cases: tuple[int, int]

    @property
    def participants(self) -> list[str]:
        """Name of the test set, in a list."""
        return [self.test_set]


@dataclass(frozen=True, kw_only=True)
class CrossSiteJob(BackendJob):
    """Job that scores one site's model on every site's test data.

    The tensors of the job are those that the server published, from which the site's model is built.

    Attributes:
        owner: Name of the site that the model belongs to.
    """

    name: ClassVar[str] = "cross_site_evaluation"
    """Name of the kind of job, for messages and progress events."""
    owner: str

    @property
    def participants(self) -> list[str]:
        """Name of the site that owns the model, in a list."""
        return [self.owner]


JOB_KINDS: tuple[type[BackendJob], ...] = (StepJob, EvaluateJob, PredictJob, CrossSiteJob)
"""All kinds of jobs."""
