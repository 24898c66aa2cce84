"""Evaluation of the heads of a pool: accuracy of each head, agreement of pairs, and accuracy of the ensembles.

A head is a classifier on the features of a shared body. An ensemble is a set of heads that predict together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import torch
from pydantic import with_config
from torch import nn
from typing_extensions import TypedDict  # before Python 3.12 pydantic refuses that of `typing`

from medfl.contract import Site
from medfl.networks.parts import body_and_head
from medfl.training.precision import autocast
from medfl.training.predict import logits
from medfl.types import Dataset, Meta
from medfl.utils.metadata import Count, Length
from medfl_methods.fedsdc.voting import elect_class

PerHead = Annotated[list[Count], Length("heads")]
"""Type of a list with a count for each head. The request's metadata state the length of the list as ``heads``."""


@with_config(extra="forbid")
class HeadEvaluation(TypedDict):
    """Metadata schema of the counts that a site reports; `evaluate_heads` computes them."""

    images: Count
    """Number of images on which the heads were evaluated."""
    right: PerHead
    """Number of correct predictions of each head."""
    agree: Annotated[list[PerHead], Length("heads")]
    """Matrix with the number of equal predictions of each two heads."""
    votes: PerHead
    """Number of correct predictions of the best head, of the best two heads together, and so on."""


def head_probabilities(model: nn.Module, data: Dataset, site: Site) -> torch.Tensor:
    """Return the class probabilities of each head of a network, (heads, n, num_classes), float64, on the CPU.

    Sets the model to evaluation mode.

    Args:
        model: Network with a `medfl_methods.fedsdc.voting.VotingHead`, on the task's device.
        data: Data with n >= 1 images.
        site: Site with its settings and device.
    """
    body, head = body_and_head(model.eval())
    features = logits(body, data, site.settings, site.task.device).to(site.task.device)
    with torch.no_grad(), autocast(site.settings, site.task.device):
        probabilities = [layer(features).double().softmax(dim=1).cpu() for layer in head.heads]  # type: ignore[union-attr]
    return torch.stack(probabilities)


def evaluate_heads(
    probabilities: torch.Tensor, labels: torch.Tensor, ranking: Sequence[int] | None, vote: bool = True
) -> Meta:
    """Count correct predictions of each head, agreements of each two heads, and correct predictions of the best heads.

    Args:
        probabilities: Class probabilities from `head_probabilities`.
        labels: Class labels, shape (n,).
        ranking: Numbers of the heads, best first; None means their order in the pool.
        vote: Whether the heads vote; otherwise the mean of their probabilities decides.

    Returns:
        Dict with the keys ``images``, the number n; ``right``, the number of correct predictions of each head;
        ``agree``, a matrix with the number of equal predictions of each two heads; ``votes``, the number of correct
        predictions of the first head of the ranking, of the first two together, and so on.
    """
    predicted = probabilities.argmax(dim=2)
    best_first = list(range(len(probabilities)) if ranking is None else ranking)
    together = elect_class if vote else _most_probable_class
    return {
        "images": len(labels),
        "right": (predicted == labels).sum(dim=1).tolist(),
        "agree": (predicted[:, None] == predicted[None]).sum(dim=2).tolist(),
        "votes": [
            int((together(probabilities[best_first[: last + 1]]) == labels).sum()) for last in range(len(best_first))
        ],
    }


def _most_probable_class(probabilities: torch.Tensor) -> torch.Tensor:
    """Return the class with the largest sum of probabilities, shape (B,)."""
    return probabilities.sum(dim=0).argmax(dim=1)


def sum_counts(tables: Iterable[Mapping[str, Any]]) -> Meta:
    """Add the counts of several sites, key by key; each table has the keys of `HeadEvaluation`."""
    sums: dict[str, torch.Tensor] = {}
    for table in tables:
        for name, value in table.items():
            sums[name] = sums.get(name, torch.zeros((), dtype=torch.int64)) + torch.tensor(value)
    return {name: value.tolist() for name, value in sums.items()}


def rank_heads(right: Sequence[int]) -> list[int]:
    """Return the numbers of the heads, best first: by decreasing number of correct predictions, then by number.

    Args:
        right: Number of correct predictions of each head.
    """
    return sorted(range(len(right)), key=lambda head: (-right[head], head))


def count_ensemble_heads(gamma: float, heads: int) -> int:
    """Return the number of heads in the ensemble, ceil(gamma * heads), at least 1.

    Args:
        gamma: Fraction of the heads in the ensemble, in (0, 1].
        heads: Number of heads, >= 1.
    """
    return max(1, math.ceil(gamma * heads - 1e-9))  # in floating point 0.55 * 100 is above 55
