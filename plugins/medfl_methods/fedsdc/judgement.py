"""What sites find out about the heads of a pool: how often each is right, which agree, what their votes are worth."""

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
from medfl_methods.fedsdc.voting import elected

PerHead = Annotated[list[Count], Length("heads")]
"""Count for each head; the order's metadata have their number, ``heads``."""


@with_config(extra="forbid")
class Judgement(TypedDict):
    """Counts that `judge` returns."""

    images: Count
    right: PerHead
    agree: Annotated[list[PerHead], Length("heads")]
    votes: PerHead


def opinions(model: nn.Module, data: Dataset, site: Site) -> torch.Tensor:
    """Class probabilities by each head of a network: shape (heads, n, num_classes), float64, on the CPU.

    Args:
        model: With a `medfl_methods.fedsdc.voting.VotingHead`, on the task's device.
        data: n >= 1 images.
        site: Gives precision and device.
    """
    body, head = body_and_head(model.eval())
    features = logits(body, data, site.settings, site.task.device).to(site.task.device)
    with torch.no_grad(), autocast(site.settings, site.task.device):
        probabilities = [layer(features).double().softmax(dim=1).cpu() for layer in head.heads]  # type: ignore[union-attr]
    return torch.stack(probabilities)


def judge(probabilities: torch.Tensor, labels: torch.Tensor, ranking: Sequence[int] | None, vote: bool = True) -> Meta:
    """How often each head is right, how often each two agree, how often the best ones together are right.

    Args:
        probabilities: As `opinions` gives it.
        labels: Shape (n,).
        ranking: Heads from the best; None in their order.
        vote: Whether heads together vote; otherwise the mean of their probabilities counts.

    Returns:
        ``images``, n; ``right``, a count for each head; ``agree``, a count for each two heads; ``votes``, a count for
        the first head of the ranking, the first two, and so on.
    """
    chosen = probabilities.argmax(dim=2)
    order = list(range(len(probabilities)) if ranking is None else ranking)
    together = elected if vote else _likeliest
    return {
        "images": len(labels),
        "right": (chosen == labels).sum(dim=1).tolist(),
        "agree": (chosen[:, None] == chosen[None]).sum(dim=2).tolist(),
        "votes": [int((together(probabilities[order[: count + 1]]) == labels).sum()) for count in range(len(order))],
    }


def _likeliest(probabilities: torch.Tensor) -> torch.Tensor:
    return probabilities.sum(dim=0).argmax(dim=1)


def total(tables: Iterable[Mapping[str, Any]]) -> Meta:
    """The sums of what sites told, by key."""
    sums: dict[str, torch.Tensor] = {}
    for table in tables:
        for name, value in table.items():
            sums[name] = sums.get(name, torch.zeros((), dtype=torch.int64)) + torch.tensor(value)
    return {name: value.tolist() for name, value in sums.items()}


def rank(right: Sequence[int]) -> list[int]:
    """Heads from the one that is right most often; among equals the first comes first."""
    return sorted(range(len(right)), key=lambda head: (-right[head], head))


def kept_count(gamma: float, heads: int) -> int:
    """ceil(gamma * heads), at least 1.

    Args:
        gamma: Share of the heads that answer, in (0, 1].
        heads: Number of heads, >= 1.
    """
    return max(1, math.ceil(gamma * heads - 1e-9))  # 0.55 * 100 is 55, whatever floating point says
