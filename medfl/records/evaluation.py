"""Schema of ``evaluation.json``: scores of finished models on data of one site, and the relation to the run's data."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import NonNegativeInt, PositiveInt

from medfl.records.calibration_evaluation import CalibrationEvaluation
from medfl.records.record import FileRecord, Record
from medfl.utils.formats import count, join_words

RelationKind = Literal["external", "internal", "unchecked"]
"""Relation of evaluated images to the run that trained the model.

``external``: no image and no patient was in the run's data. ``internal``: the site took part in the run, or an image or
a patient was in its data. ``unchecked``: the comparison was not possible.
"""

RelationReason = Literal[
    "nothing_shared",
    "participating_site",
    "shared_cases",
    "no_run",
    "missing_data",
    "changed_data",
    "earlier_run",
    "not_comparable",
    "other_machine",
]
"""Reason for a relation.

``no_run``: the run that trained the model is unknown. ``missing_data`` and ``changed_data``: the run's data are not at
their recorded place, or are not the same any more. ``earlier_run``: the run started from weights of another run of
medfl, whose data are unknown. ``not_comparable``: the bundle reads the evaluated files in its own way.
``other_machine``: the evaluated images stay on the machine of their site.
"""

REASON_CLAUSES: dict[RelationReason, str] = {
    "nothing_shared": "no image and no patient was in the run's data",
    "participating_site": "these data were part of the run",
    "shared_cases": "images or patients were in the run's data",
    "no_run": "the run that trained the model is unknown",
    "missing_data": "the data of the run are not at their recorded place",
    "changed_data": "the data of the run have changed since",
    "earlier_run": "the run started from weights of another run, whose data are unknown",
    "not_comparable": "the bundle reads these files in its own way, so they can't be compared with the run's data",
    "other_machine": "the images stay at their site, so they can't be compared with the run's data",
}
"""Maps each reason to a clause for reports."""


class ScoreEstimate(Record):
    """Score with its 95 % confidence interval.

    Attributes:
        value: Score on the test images (point estimate).
        low: Lower end of the interval.
        high: Upper end of the interval.
    """

    value: float
    low: float
    high: float


class SharedCases(Record):
    """Images and patients that the evaluated images share with a part of the run's data.

    Attributes:
        site: Name of the site in the run; ``global`` is the server's test set.
        split: ``training``, ``validation`` or ``test``.
        images: Number of distinct identical images.
        patients: Number of patients, as far as they can be compared.
    """

    site: str
    split: str
    images: NonNegativeInt
    patients: NonNegativeInt


class DataRelation(Record):
    """Relation of the evaluated images to the data of the run that trained the model.

    Attributes:
        kind: Kind of the relation.
        reason: Reason for the kind.
        shared: Images and patients that both share, by site and split of the run.
    """

    kind: RelationKind
    reason: RelationReason
    shared: tuple[SharedCases, ...] = ()

    @property
    def sentence(self) -> str:
        """Sentence that states the relation, its reason, and the shared images and patients."""
        opening = {
            "external": "External validation",
            "internal": "Not an external validation",
            "unchecked": "Not verified as an external validation",
        }[self.kind]
        places = [
            f"{count(part.images, 'image')} and {count(part.patients, 'patient')} of {part.site}/{part.split}"
            for part in self.shared
        ]
        return f"{opening}: {REASON_CLAUSES[self.reason]}{f' ({join_words(places)})' if places else ''}."


class EvaluatedModel(Record):
    """A model that was evaluated.

    Attributes:
        name: ``global``, or the name of the site whose model it is.
        weights: SHA-256 of the file of its weights.
        predictions: SHA-256 of the file of its predictions; empty if the predictions stay at the site.
        scores: Maps each metric to the score of the model's own predictions, with its interval over the patients; None
            if it is not defined.
        calibrated: Evaluation of the bundle's calibration; None if the bundle is not calibrated.
    """

    name: str
    weights: str
    predictions: str
    scores: dict[str, ScoreEstimate | None]
    calibrated: CalibrationEvaluation | None = None


class Evaluation(FileRecord):
    """Content of ``evaluation.json``.

    Attributes:
        models: The evaluated models: one, or the models of all sites of a run without a global model.
        method: Name of the method that trained them; empty if the run is unknown.
        seed: Seed of the run; None if the run is unknown.
        run: Name of the run folder; empty if the run is unknown.
        site: Name of the evaluated site, or of the folder of images.
        dataset: Name of the evaluated data set; empty if it has none.
        data: SHA-256 digest of the evaluated data; empty if the data stay on another machine.
        split: ``test``; ``all`` for the images of all splits; ``files`` for image files that a table labels;
            ``federated`` for the test images of a site of a federation, whose predictions stay there.
        images: Number of evaluated images; None if the site did not disclose it.
        patients: Number of their patients; None if each image counts as one.
        relation: Relation of the images to the run's data.
        scores: Maps each metric to the score, with its interval over the patients. For several models it is the mean of
            their scores. None if it is not defined.
    """

    NAME: ClassVar[str] = "evaluation.json"
    """Name of the file in its folder."""
    HAS_CHECKSUM: ClassVar[bool] = True
    """Whether the file holds a checksum of its other content, which the reader verifies."""
    REPAIR: ClassVar[str] = "Run `medfl evaluate` again."
    """Sentence that tells a user what to do about a damaged file."""

    models: tuple[EvaluatedModel, ...]
    method: str = ""
    seed: int | None = None
    run: str = ""
    site: str
    dataset: str
    data: str
    split: Literal["test", "all", "files", "federated"]
    images: PositiveInt | None
    patients: PositiveInt | None
    relation: DataRelation
    scores: dict[str, ScoreEstimate | None]

    @property
    def is_external(self) -> bool:
        """True if no image and no patient of the evaluated data was in the run's data."""
        return self.relation.kind == "external"

    @property
    def has_prediction_sets(self) -> bool:
        """False for image files, whose predictions are in the format of an inference, and for a federation's sites."""
        return self.split in ("test", "all")

    @property
    def model(self) -> str:
        """Name of the evaluated model, or ``mean of N models``."""
        return self.models[0].name if len(self.models) == 1 else f"mean of {len(self.models)} models"
