"""Models that predict the same for every image: found from predictions, kept in ``summary.json``, told by one sentence.

A site is named if its model predicts the same for all of its images and at least two of them contradict it; a
single one may well be an ordinary error. All sites together are judged as one set as well: a model that predicts one
class everywhere is found even if each site holds images of one class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from medfl.types import Meta
from medfl.utils.text import names_and_more

if TYPE_CHECKING:
    import torch

    from medfl.objectives import Objective

KEY = "constant_predictions"
"""In ``summary.json``: a list of `ConstantPrediction`."""

CONTRADICTED = 2
"""Images of a site that must contradict its model before the site is named."""

SITES_NAMED = 5
"""Sites that a sentence names."""


@dataclass(frozen=True)
class Predictions:
    """A model's predictions for the images of a site, as `medfl.training.predict.predict` returns it.

    Attributes:
        judged: Predictions, (N, K).
        targets: Targets, (N, ...).
        split: ``test``, or ``val`` at a site without test images.
    """

    judged: torch.Tensor
    targets: torch.Tensor
    split: str


@dataclass(frozen=True)
class ConstantPrediction:
    """The same prediction for every image of one or more sites, although their targets differ.

    Attributes:
        answer: What is predicted (`medfl.objectives.constant.ConstantAnswer.words`).
        sites: Names of the sites.
        all_sites: True if these are all sites of the run that have images.
        images: Number of images.
        splits: Splits of the images: ``test``, ``val``.
        has_classes: True if each image is of one class.
    """

    answer: str
    sites: tuple[str, ...]
    all_sites: bool
    images: int
    splits: tuple[str, ...]
    has_classes: bool

    @property
    def sentence(self) -> str:
        """The fault, what it does to scores, and what to try."""
        kinds = " and ".join({"test": "test", "val": "validation"}[split] for split in self.splits)
        where = "of all sites" if self.all_sites else f"of {names_and_more(self.sites, SITES_NAMED)}"
        balance = ", or `--balance loss`" if self.has_classes else ""
        check = "how many images of each class the sites hold" if self.has_classes else "the targets of the sites"
        scores = " Accuracy then only tells how common that class is." if self.has_classes else ""
        return (
            f"The same prediction for every image: the model predicts {self.answer} for all {self.images} {kinds} "
            f"images {where}, although their targets differ.{scores} Try more rounds, a larger learning rate{balance}, "
            f"and check {check}."
        )


def find_constant_predictions(
    by_site: Mapping[str, Predictions], objective: Objective, classes: Sequence[str] = ()
) -> list[ConstantPrediction]:
    """Find models that predict the same for every image.

    Args:
        by_site: Predictions by site, of the model that the site keeps.
        objective: Objective of the task.
        classes: Names of the classes; empty uses their numbers.

    Returns:
        One entry if all sites share an answer, otherwise one for each answer, sorted; empty if there is none.
    """
    import torch  # not at the top: `medfl status` reads summaries, and torch takes seconds to import

    known = {site: part for site, part in sorted(by_site.items()) if len(part.judged)}
    if not known:
        return []

    def entry(words: str, sites: Sequence[str]) -> ConstantPrediction:
        parts = [known[site] for site in sites]
        images, splits = sum(len(part.judged) for part in parts), tuple(sorted({part.split for part in parts}))
        everywhere = len(sites) == len(known)
        return ConstantPrediction(words, tuple(sites), everywhere, images, splits, objective.has_class_labels)

    judged = torch.cat([part.judged for part in known.values()])
    targets = torch.cat([part.targets for part in known.values()])
    if (answer := objective.constant_answer(judged, targets, classes)) is not None:
        return [entry(answer.words, list(known))]
    sites_by_answer: dict[str, list[str]] = {}
    for site, part in known.items():
        answer = objective.constant_answer(part.judged, part.targets, classes)
        if answer is not None and answer.contradicted >= CONTRADICTED:
            sites_by_answer.setdefault(answer.words, []).append(site)
    return [entry(words, sites) for words, sites in sorted(sites_by_answer.items())]


def to_summary(predictions: Sequence[ConstantPrediction]) -> list[Meta]:
    """Return the entries as JSON, for ``summary.json``."""
    return [asdict(entry) | {"sites": list(entry.sites), "splits": list(entry.splits)} for entry in predictions]


def from_summary(summary: Meta) -> list[ConstantPrediction]:
    """Return the entries of a summary; none if it has none, as that of a run whose sites keep their predictions."""
    return [
        ConstantPrediction(**(entry | {"sites": tuple(entry["sites"]), "splits": tuple(entry["splits"])}))
        for entry in summary.get(KEY, ())
    ]
