"""Who takes part in a round, and what the server does with replies: updates and their weighted mean."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping

import torch

from medfl.contract import PayloadKind, Replies, Server
from medfl.errors import RefusedError, SettingsError
from medfl.settings import participants
from medfl.types import MODEL, Meta, Tensors
from medfl.utils.memory import pieces
from medfl.utils.text import names_and_more
from medfl.utils.wire import select

logger = logging.getLogger(__name__)


def subtract(after: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """The update of a tensor; a boolean one is replaced, not subtracted."""
    return after.clone() if after.dtype is torch.bool else after - before


def add_update(old: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
    """Old plus update, summed in the update's precision and returned in the old one's."""
    if old.dtype is torch.bool:
        return update.to(old.dtype)
    new = torch.empty_like(old, memory_format=torch.contiguous_format)
    for target, before, change in pieces(new, old, update):
        target.copy_(before.to(change.dtype) + change)
    return new


def check_updates(
    updates: Tensors, originals: Tensors, sends: Mapping[str, PayloadKind], needed: Collection[str] = ()
) -> None:
    """Refuse updates that can't be added to what they are updates of.

    Args:
        updates: Of a reply.
        originals: Of the order: what they are updates of, by the same names.
        sends: `medfl.contract.Method.sends`. Under each of its prefixes that stands for updates a reply has an update
            of every floating tensor, or none at all; other tensors may be left out. What is no update is not looked at.
        needed: Prefixes under which there must be updates, if the order brought any such tensor. A reply without them
            would count as one of zeros.

    Raises:
        RefusedError: If a name, a shape or a dtype is another one, or a tensor is missing.
    """
    for prefix in (prefix for prefix, kind in sends.items() if kind == "update"):
        known = {name: tensor for name, tensor in originals.items() if name.startswith(prefix)}
        came = {name: tensor for name, tensor in updates.items() if name.startswith(prefix)}
        for name, tensor in came.items():
            old = known.get(name)
            if old is None or (old.shape, old.dtype) != (tensor.shape, tensor.dtype):
                expected = "no such name" if old is None else f"{old.dtype} {list(old.shape)}"
                raise RefusedError(
                    "wrong_tensor",
                    f"An update of {ascii(name)[:60]} was refused: expected {expected}, as in the order, got "
                    f"{tensor.dtype} {list(tensor.shape)}. The site needs the same network and version of medfl.",
                    tensor=ascii(name)[:60],
                    expected=expected,
                    found=f"{tensor.dtype} {list(tensor.shape)}",
                )
        lacking = [name for name, tensor in known.items() if name not in came and tensor.is_floating_point()]
        if lacking and not came and prefix in needed:
            raise RefusedError(
                "missing_updates",
                f"Expected updates of the {len(lacking)} tensors '{prefix}' that the order brought, got none. "
                "Such a reply does not count.",
                prefix=prefix,
                count=len(lacking),
            )
        if came and lacking:
            raise RefusedError(
                "missing_tensor",
                f"An update of '{lacking[0]}' is missing in a reply that has others: expected all.",
                tensor=lacking[0],
            )


def normalised(weights: dict[str, float], fallback: Mapping[str, Meta]) -> dict[str, float]:
    """Weights that sum to 1 (rule G-5).

    A weight vector that is all zero or holds a negative or non-finite value falls back to the sizes, with a warning.

    Args:
        weights: Site to weight.
        fallback: Site to meta with ``size``; sites without it count 1. Unusable sizes count alike.
    """
    if not _usable(weights):
        logger.warning("Aggregation weights are not usable (not finite, negative, or all zero); weighing by size.")
        weights = {name: float(meta.get("size", 1.0)) for name, meta in fallback.items()}
    if not _usable(weights):
        weights = dict.fromkeys(weights, 1.0)
    total = math.fsum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def _usable(weights: dict[str, float]) -> bool:
    total = sum(weights.values())  # not finite if any weight is not
    return math.isfinite(total) and total > 0 and min(weights.values()) >= 0


def mean_update(replies: Replies, weights: dict[str, float], prefix: str = MODEL) -> Tensors:
    """`mean_updates` under one prefix."""
    return mean_updates(replies, {prefix: weights})[prefix]


def mean_updates(replies: Replies, weights: Mapping[str, Mapping[str, float]]) -> dict[str, Tensors]:
    """The weighted means of updates in float64, one reply in memory at a time, in name order.

    Args:
        replies: Those of sites that a prefix's weights don't name are left out there.
        weights: Prefix to the weights of the sites, which sum to 1. No other tensors are looked at.

    Returns:
        Prefix to name to float64 mean; integer and boolean buffers take the largest value (rule G-2).
    """
    means: dict[str, Tensors] = {prefix: {} for prefix in weights}
    for site, tensors in replies:
        for prefix, shares in weights.items():
            if site in shares:
                _add(means[prefix], select(tensors, prefix), shares[site])
        del tensors  # before the next one is read
    return means


def _add(mean: Tensors, tensors: Tensors, weight: float) -> None:
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            mean[name] = torch.maximum(mean[name], tensor) if name in mean else tensor.clone()
        elif name in mean:
            for total, piece in pieces(mean[name], tensor):
                total.add_(piece.double(), alpha=weight)
        else:
            mean[name] = torch.empty(tensor.shape, dtype=torch.float64)
            for total, piece in pieces(mean[name], tensor):
                total.copy_(piece).mul_(weight)


def sample(names: list[str], fraction: float, generator: torch.Generator) -> list[str]:
    """`participants` of the names without replacement (rule G-3).

    Args:
        names: Candidates, sorted as strings.
        fraction: In (0, 1]; 1 means all of them.
        generator: Keyed by (seed, "participation", round), so that all methods share one schedule.

    Returns:
        The chosen names, sorted; empty if there is no candidate.
    """
    if not names:
        return []
    chosen = torch.randperm(len(names), generator=generator)[: participants(len(names), fraction)]
    return sorted(names[index] for index in chosen.tolist())


def check_validation(server: Server, why: str) -> None:
    """Refuse a run in which a site with training images has none for validation.

    Args:
        server: In `setup`; a site of which nothing is known yet is let through.
        why: What method needs them and for what, for the message.

    Raises:
        SettingsError: Naming sites.
    """
    if lacking := [name for name in server.trainable() if not server.site_info.get(name, {}).get("validates", True)]:
        raise SettingsError(
            "no_images",
            f"{why}: expected validation images at each, got none at {names_and_more(lacking, 3)}. Give them a "
            "validation split, or choose the method 'fedavg'.",
            split="val",
            sites=lacking,
        )
