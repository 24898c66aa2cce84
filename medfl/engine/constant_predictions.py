"""Find models whose prediction is the same for every image.

A site is reported if its model predicts the same for all of its images, and the targets of at least two images differ
from that prediction; a single difference may be an ordinary error. The images of all sites are also checked as one set.
This finds a model that predicts one class everywhere, even if each site has images of one class only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from medfl.records.summary import ConstantPrediction

if TYPE_CHECKING:
    import torch

    from medfl.objectives import Objective
    from medfl.settings import Settings

MIN_CONTRADICTIONS = 2
"""Minimum number of a site's images whose targets must differ from the constant prediction."""


@dataclass(frozen=True)
class SitePredictions:
    """Predictions of a model for the images of a site, with the images' targets.

    Attributes:
        predictions: Predictions for N images, shape (N, K). A prediction has K numbers, such as probabilities of the
            classes; the objective defines them.
        targets: Targets of the images, shape (N, ...).
        split: ``test``, or ``val`` at a site without test images.
    """

    predictions: torch.Tensor
    targets: torch.Tensor
    split: str


def find_constant_predictions(
    by_site: Mapping[str, SitePredictions],
    objective: Objective,
    classes: Sequence[str] = (),
    settings: Settings | None = None,
) -> list[ConstantPrediction]:
    """Find models whose prediction is the same for every image.

    Args:
        by_site: Maps each site to the predictions of the model that it exports.
        objective: Objective of the task.
        classes: Names of the classes; if empty, their numbers are used.
        settings: Settings of the run, so that the remedies do not include a balance that is set or not permitted.

    Returns:
        Constant predictions with the sites that have them: one entry if the prediction is the same at all sites.
        Otherwise one entry for each constant prediction, sorted. Empty if no model has a constant prediction.
    """
    import torch  # not at the top: `medfl status` reads summaries, and torch takes seconds to import

    known = {site: part for site, part in sorted(by_site.items()) if len(part.predictions)}
    if not known:
        return []

    sample_level = settings is not None and settings.privacy is not None and settings.privacy.unit == "sample"
    can_balance = not sample_level and (settings is None or settings.balance == "none")

    def entry(words: str, sites: Sequence[str]) -> ConstantPrediction:
        parts = [known[site] for site in sites]
        images, splits = sum(len(part.predictions) for part in parts), tuple(sorted({part.split for part in parts}))
        everywhere = len(sites) == len(known)
        return ConstantPrediction(
            prediction=words,
            sites=tuple(sites),
            all_sites=everywhere,
            images=images,
            splits=splits,
            has_classes=objective.has_class_labels,
            can_balance=can_balance,
        )

    predictions = torch.cat([part.predictions for part in known.values()])
    targets = torch.cat([part.targets for part in known.values()])
    if (answer := objective.constant_answer(predictions, targets, classes)) is not None:
        return [entry(answer.words, list(known))]
    sites_by_answer: dict[str, list[str]] = {}
    for site, part in known.items():
        answer = objective.constant_answer(part.predictions, part.targets, classes)
        if answer is not None and answer.contradicted >= MIN_CONTRADICTIONS:
            sites_by_answer.setdefault(answer.words, []).append(site)
    return [entry(words, sites) for words, sites in sorted(sites_by_answer.items())]
