"""Records of the scores that sites disclose, validated wherever they are received, and the researcher's result file."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, ValidationError

from medfl.errors import RefusedError
from medfl.records.evaluation import DataRelation
from medfl.records.record import FileRecord
from medfl.settings import StrictModel
from medfl_flare.backend.messages import Message
from medfl_flare.federated_evaluation.evaluation_request import MAX_SCORES, ScoreName
from medfl_flare.statistics.site_statistics import Count, Sentence, Value


class DisclosedScore(StrictModel):
    """A score with its 95 % interval over the patients, rounded like all disclosed numbers."""

    value: Value
    """Score on the site's test images."""

    low: Value
    """Lower end of the interval."""

    high: Value
    """Upper end of the interval."""


class SiteScores(StrictModel):
    """Scores that one site discloses. The record has no field for a single image or patient."""

    scores: dict[ScoreName, DisclosedScore | None] = Field(max_length=MAX_SCORES)
    """Maps each requested score to its value; None if it is suppressed, or not defined for the site's images."""

    suppressed: list[ScoreName] = Field([], max_length=MAX_SCORES)
    """Names of the suppressed scores."""

    reason: Sentence = ""
    """Reason for the suppression; empty without one."""

    images: Count | None = None
    """Number of test images; None if it is suppressed or not disclosed."""

    patients: Count | None = None
    """Number of their patients; None if it is suppressed, not disclosed or unknown."""

    min_count: Annotated[int, Field(ge=1, le=10**9)]
    """Minimum number of patients (images, if patients are unknown) behind a disclosed number."""


def read_scores(message: Message, requested: list[str]) -> SiteScores:
    """Return the scores in a site's reply, after a check.

    Args:
        message: Reply of the site; untrusted.
        requested: Names of the requested scores.

    Raises:
        RefusedError: If the reply contains tensors, invalid scores, or other scores than the requested ones.
    """
    meta = {key: value for key, value in message.meta.items() if key != "refused"}
    try:
        scores = SiteScores.model_validate(meta)
    except ValidationError as error:
        places = sorted({".".join(map(str, problem["loc"]))[:80] for problem in error.errors()})
        raise RefusedError(
            "invalid_scores",
            f"expected valid scores, got invalid fields: {', '.join(places[:5])}",
            places=places[:5],
        ) from None
    if message.tensors or scores.scores.keys() != set(requested) or not set(scores.suppressed) <= set(requested):
        raise RefusedError(
            "undeclared_scores",
            f"expected exactly the requested scores {', '.join(requested)} and no tensors, got other ones",
            expected=list(requested),
        )
    if any(scores.scores[name] is not None for name in scores.suppressed):
        raise RefusedError("suppressed_score_with_value", "expected no value for a suppressed score, got one")
    return scores


class FederatedEvaluation(FileRecord):
    """Content of ``federated_evaluation.json``, the result of a federated evaluation.

    Attributes:
        evaluation: Name of the evaluation.
        model: Name of the evaluated model.
        weights: SHA-256 of the file of its weights.
        bundle: Name of the bundle in the sites' own files.
        requested: Names of the requested scores.
        relation: Relation of the images to the data of the run; always ``unchecked``, as the images stay at the sites.
        sites: Maps each site to the scores that it disclosed.
        missing: Maps each site without scores to the reason.
    """

    NAME: ClassVar[str] = "federated_evaluation.json"
    """Name of the file in its folder."""
    HAS_CHECKSUM: ClassVar[bool] = True
    """Whether the file holds a checksum of its other content, which the reader verifies."""
    REPAIR: ClassVar[str] = "Run `medfl federate evaluate` again."
    """Sentence that tells a user what to do about a damaged file."""

    evaluation: str
    model: str
    weights: str
    bundle: str
    requested: tuple[str, ...]
    relation: DataRelation
    sites: dict[str, SiteScores]
    missing: dict[str, str]
