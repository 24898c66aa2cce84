"""Find models that predict the same for every image, from their predictions.

A site is named if its model predicts the same for all of its images and at least two of them contradict it; a
single one may well be an ordinary error. All sites together are judged as one set as well: a model that predicts one
class everywhere is found even if each site holds images of one class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from medfl.records.summary import ConstantPrediction

if TYPE_CHECKING:
    import torch

    from medfl.objectives import Objective

CONTRADICTED = 2
"""Images of a site that must contradict its model before the site is named."""


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
        return ConstantPrediction(
            prediction=words,
            sites=tuple(sites),
            all_sites=everywhere,
            images=images,
            splits=splits,
            has_classes=objective.has_class_labels,
        )

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
