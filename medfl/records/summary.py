"""Schema of ``summary.json``: status, scores and costs of a run that is over.

It is the last file that a run writes. A run folder that contains it also has all other results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pydantic import ConfigDict

from medfl.records.privacy_account import PrivacyAccount
from medfl.records.record import FileRecord, Record
from medfl.utils.text import names_and_more

SITES_NAMED = 5
"""Maximum number of sites that a sentence names; it only counts the others."""


class MetricScores(Record):
    """Scores of one metric for one kind of model on one split, in the last round that was evaluated.

    Attributes:
        mean: Mean over the sites with a defined score; None if there is none.
        worst: Worst score of a site; None if no score is defined.
        sites: Maps each site to its score; None if the score is not defined, for example an AUC of a single class.
        server_test: Score on the server's test set; None without one.
        public_test: Score on the public test set; None without one.
    """

    mean: float | None
    worst: float | None
    sites: dict[str, float | None]
    server_test: float | None = None
    public_test: float | None = None


@dataclass(frozen=True, slots=True)
class SiteCosts:
    """Resources that a site spent in the whole run.

    It is no `Record`, which takes seven times the memory: a run can have 100,000 sites.

    Attributes:
        bytes_up: Bytes sent to the server.
        bytes_down: Bytes received from the server.
        bytes_to_peers: Bytes sent to other sites.
        train_seconds: Seconds of training.
        evaluate_seconds: Seconds of evaluation.
    """

    bytes_up: float
    bytes_down: float
    bytes_to_peers: float
    train_seconds: float
    evaluate_seconds: float

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")


class Attendance(Record):
    """Participation of the sites in the rounds of a run.

    Attributes:
        sites: Number of sites of the run.
        unavailable: Names of the sites that sent no usable reply to their last request.
        missed_rounds: Maps each site that missed rounds to its stretches of consecutive missed rounds, each as (first
            round, last round).
    """

    sites: int
    unavailable: tuple[str, ...] = ()
    missed_rounds: dict[str, tuple[tuple[int, int], ...]] = {}


class BestRound(Record):
    """Round with the best validation score.

    Attributes:
        round: Number of the round; None if no score was defined.
        metric: Name of the metric that rounds are compared by.
        score: Mean validation score of the round; None if no score was defined.
        scored_on: Images that the score was computed on, in words.
        is_exported: True if the models of that round are in the exported bundles.
        ended_early: True if the run stopped before its last round because the score did not improve.
    """

    round: int | None
    metric: str
    score: float | None
    scored_on: str
    is_exported: bool
    ended_early: bool


class ImageCounts(Record):
    """Number of images of each class, by site and split.

    Attributes:
        classes: Names of the classes.
        sites: Maps each site to its splits, and each split to one count for each class.
    """

    classes: tuple[str, ...]
    sites: dict[str, dict[str, tuple[int, ...]]]


class ConstantPrediction(Record):
    """The same prediction for every image of one or more sites, although their targets differ.

    Attributes:
        prediction: Prediction in words.
        sites: Names of the sites.
        all_sites: True if these are all sites of the run that have images.
        images: Number of images.
        splits: Splits of the images: ``test``, ``val``.
        has_classes: True if each image is of one class.
        can_balance: True if the run has not set ``balance`` and its privacy setting does not forbid it.
    """

    prediction: str
    sites: tuple[str, ...]
    all_sites: bool
    images: int
    splits: tuple[str, ...]
    has_classes: bool
    can_balance: bool = True

    @property
    def sentence(self) -> str:
        """Sentences about the fault, its effect on scores, and possible remedies."""
        kinds = " and ".join({"test": "test", "val": "validation"}[split] for split in self.splits)
        where = "of all sites" if self.all_sites else f"of {names_and_more(self.sites, SITES_NAMED)}"
        balance = ", or `--balance loss`" if self.has_classes and self.can_balance else ""
        check = "how many images of each class the sites hold" if self.has_classes else "the targets of the sites"
        scores = " Accuracy then only tells how common that class is." if self.has_classes else ""
        return (
            f"The same prediction for every image: the model predicts {self.prediction} for all {self.images} {kinds} "
            f"images {where}, although their targets differ.{scores} Try more rounds, a larger learning rate{balance}, "
            f"and check {check}."
        )


class Summary(FileRecord):
    """Content of ``summary.json``.

    Attributes:
        method: Name of the method.
        status: ``finished``, ``diverged`` or ``incomplete``.
        reason: Reason why the run ended early; empty if it did not.
        rounds: Number of rounds that were completed.
        evaluated_round: Round that `scores` belong to; None if no round was evaluated.
        models_round: Round of the exported models.
        best_round: Round with the best validation score; None if the run did not compare rounds.
        scores: Maps kind of model (``global``, ``personal``), split and metric to the scores.
        costs: Maps each site to the resources that it spent.
        attendance: Participation of the sites.
        holdings: Number of images by site, split and class; None in a run between machines, whose sites do not disclose
            these numbers.
        leaks: Sentences about violations of the splits that the user allowed.
        names: Names of the network's outputs if cases are of no class; empty if no one named them.
        privacy: Maps each site to its privacy account.
        constant_predictions: Models that predict the same for every image.
        unavailable_reasons: Maps each unavailable site of a run between machines to the reason.
    """

    NAME: ClassVar[str] = "summary.json"
    """Name of the file in its folder."""
    REPAIR: ClassVar[str] = "Give the command of the run again, or put the file back from a copy."
    """Sentence that tells a user what to do about a damaged file."""

    method: str
    status: str
    reason: str = ""
    rounds: int
    evaluated_round: int | None
    models_round: int
    best_round: BestRound | None = None
    scores: dict[str, dict[str, dict[str, MetricScores]]] = {}
    costs: dict[str, SiteCosts] = {}
    attendance: Attendance
    holdings: ImageCounts | None = None
    leaks: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    privacy: dict[str, PrivacyAccount] = {}
    constant_predictions: tuple[ConstantPrediction, ...] = ()
    unavailable_reasons: dict[str, str] = {}

    def score(self, model: str, split: str, metric: str) -> MetricScores | None:
        """Return the scores of a metric for a kind of model on a split; None if the model was not evaluated on it.

        Args:
            model: ``global`` or ``personal``.
            split: Name of the split, such as ``test``.
            metric: Name of the metric.
        """
        return self.scores.get(model, {}).get(split, {}).get(metric)
