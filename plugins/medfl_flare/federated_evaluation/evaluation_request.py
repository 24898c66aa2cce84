"""Request for a federated evaluation: each site scores a finished model on its own test images.

The request names the scores that a site may return. The weights follow in a second message, after the site has accepted
the request. No code is sent: each site builds the network from its own copy of the bundle.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field, field_validator

from medfl.types import Meta
from medfl_flare.overrides import DATA_DEPENDENT_IDS, LOCAL_IDS, RUN_IDS
from medfl_flare.records.offer import Digest, Name, Text
from medfl_flare.records.site_request import SiteRequest

KIND = "evaluation"
"""Kind of the message with a request to a site. A job's content with this key is a request for an evaluation."""

MODEL_KIND = "evaluated_model"
"""Kind of the message with the weights; a site accepts it only after the request."""

VALUE_IDS = frozenset({*DATA_DEPENDENT_IDS, "mean", "std"})
"""Ids of the bundle whose values come from the exported bundle, and not from a site's data."""

MAX_SCORES = 100
"""Maximum number of scores in a request."""

ScoreName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
"""Type of the name of a score."""

OutputName = Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f{}]*$")]
"""Type of the name of a class or another output."""


class EvaluationRequest(SiteRequest):
    """A request for a federated evaluation; `SiteRequest` has further attributes.

    Attributes:
        evaluation: Name of the evaluation.
        bundle_version: ``version`` in the bundle's metadata.
        bundle_hash: Hash of the bundle's configurations and code (`medfl.bundle.bundle_folders.bundle_hash`).
        network: Name of the network in the bundle.
        values: Maps ids of the bundle (`is_evaluation_id`) to the values of the exported bundle.
        names: Names of the classes or outputs, in order; empty if the exported bundle does not name them.
        scores: Names of the scores, without duplicates. A site returns no other score.
        weights: SHA-256 of the file of weights.
    """

    NOUN: ClassVar[str] = "a request for an evaluation"
    """Kind of request, for messages."""
    INVALID: ClassVar[str] = "invalid_evaluation_request"
    """Code of the error for a value that is no JSON object."""

    evaluation: Name
    bundle_version: Text
    bundle_hash: Digest
    network: Text
    values: dict[str, Any]
    names: list[OutputName] = Field([], max_length=5000)
    scores: list[ScoreName] = Field(min_length=1, max_length=MAX_SCORES)
    weights: Digest

    @field_validator("scores")
    @classmethod
    def _unique(cls, scores: list[str]) -> list[str]:
        """Raise if a score is a duplicate."""
        if len(set(scores)) < len(scores):
            raise ValueError("expected each score once")
        return scores

    @property
    def run(self) -> str:
        """Name of the request's job: the name of the evaluation. `Offer` has an attribute of this name, too."""
        return self.evaluation


def is_evaluation_id(name: str, bundle: Meta) -> bool:
    """Return whether a request may set an id of the bundle: one of `VALUE_IDS`, or a number such as a network's width.

    Args:
        name: The id.
        bundle: Values of the bundle's own files (`medfl.engine.runs.provenance.bundle_values`).
    """
    is_number = type(bundle.get(name)) in (int, float) and name not in RUN_IDS | LOCAL_IDS
    return name in bundle and (name in VALUE_IDS or is_number)


def is_evaluation_request(meta: Any) -> bool:
    """Return whether the content of a job is a request for an evaluation, and not an offer of a run."""
    return isinstance(meta, dict) and KIND in meta
