"""Aggregation of updates at the server: sampling of sites, validation of updates, weights, and weighted means.

An update is a tensor after local training minus the tensor before. A prefix is the start of tensor names that belong
together, for example ``model/``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping

import torch
from torch.optim.swa_utils import get_ema_multi_avg_fn

from medfl.contract import Capability, Method, PayloadKind, Replies, Server
from medfl.errors import RefusedError, SettingsError
from medfl.networks.transfer.adapters.tensors import (
    FACTOR_A,
    FACTOR_B,
    RESIDUAL,
    is_factor,
    is_residual,
    low_rank_product,
)
from medfl.settings import Settings, participant_count
from medfl.types import MODEL_PREFIX, Meta, Tensors
from medfl.utils.memory import pieces
from medfl.utils.text import names_and_more
from medfl.utils.wire import select

logger = logging.getLogger(__name__)
"""Logger of this module."""

MAX_FACTOR = 1e15
"""Largest absolute value in the factors of adapters with exact aggregation. Their products then can't overflow."""


def subtract(after: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """Return the update of a tensor, ``after - before``; for a boolean tensor return a copy of `after`."""
    return after.clone() if after.dtype is torch.bool else after - before


def add_update(old: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
    """Return `old` plus `update`, computed in the update's dtype and converted to the dtype of `old`.

    For a boolean tensor the update replaces the old value.
    """
    if old.dtype is torch.bool:
        return update.to(old.dtype)
    new = torch.empty_like(old, memory_format=torch.contiguous_format)
    for target, before, change in pieces(new, old, update):
        target.copy_(before.to(change.dtype) + change)
    return new


def moving_average(average: Tensors, model: Tensors, decay: float) -> Tensors:
    """Return the exponential moving average of a model's tensors after one more model, as torch's `AveragedModel`.

    A floating tensor becomes decay * average + (1 - decay) * model. All other tensors are those of the model.

    Args:
        average: The average so far; empty before the first model, which is then the average.
        model: The next model, with the same names.
        decay: Decay of the average, in (0, 1).
    """
    after = {name: tensor.clone() for name, tensor in model.items()}
    floating = [name for name, tensor in model.items() if tensor.is_floating_point()]
    if average and floating:
        after |= {name: average[name].clone() for name in floating}
        get_ema_multi_avg_fn(decay)([after[name] for name in floating], [model[name] for name in floating], None)
    return after


def check_updates(
    updates: Tensors, originals: Tensors, sends: Mapping[str, PayloadKind], needed: Collection[str] = ()
) -> None:
    """Raise if a reply's updates can't be added to the tensors of the request that they update.

    Under each prefix of kind ``update`` in `sends`, a reply contains an update of every floating tensor of the request
    except the residuals of adapters, which only the server changes, or no tensor at all. It may leave out other
    tensors. Tensors of other kinds are not checked.

    Args:
        updates: Tensors of a reply, by name.
        originals: Tensors of the request, by the same names.
        sends: Kind of the sent tensors by name prefix, as in `medfl.contract.Method.sends`.
        needed: Prefixes under which updates are required if the request contains tensors with this prefix. Without this
            check, a reply that lacks them would count as an update of zeros.

    Raises:
        RefusedError: If a tensor's name, shape or dtype differs from the request, or a tensor is missing.
    """
    for prefix in (prefix for prefix, kind in sends.items() if kind == "update"):
        known = {name: t for name, t in originals.items() if name.startswith(prefix) and not is_residual(name)}
        came = {name: tensor for name, tensor in updates.items() if name.startswith(prefix)}
        for name, tensor in came.items():
            old = known.get(name)
            if old is None or (old.shape, old.dtype) != (tensor.shape, tensor.dtype):
                expected = "no such name" if old is None else f"{old.dtype} {list(old.shape)}"
                raise RefusedError(
                    "wrong_tensor",
                    f"An update of {ascii(name)[:60]} was refused: expected {expected}, as in the request, got "
                    f"{tensor.dtype} {list(tensor.shape)}. The site needs the same network and version of medfl.",
                    tensor=ascii(name)[:60],
                    expected=expected,
                    found=f"{tensor.dtype} {list(tensor.shape)}",
                )
        lacking = [name for name, tensor in known.items() if name not in came and tensor.is_floating_point()]
        if lacking and not came and prefix in needed:
            raise RefusedError(
                "missing_updates",
                f"Expected updates of the {len(lacking)} tensors '{prefix}' of the request, got none. "
                "The reply was refused.",
                prefix=prefix,
                count=len(lacking),
            )
        if came and lacking:
            raise RefusedError(
                "missing_tensor",
                f"The reply has no update of '{lacking[0]}', but updates of other tensors: expected all or none.",
                tensor=lacking[0],
            )


def check_factors(updates: Tensors, originals: Tensors) -> None:
    """Raise if a reply's factors of adapters are so large that a product of two sites' factors could overflow.

    Args:
        updates: Tensors of a reply, by name.
        originals: Tensors of the request. The check applies only if it contains residuals of adapters.

    Raises:
        RefusedError: If a factor has an element above `MAX_FACTOR`.
    """
    if not any(map(is_residual, originals)):
        return
    for name, update in updates.items():
        if is_factor(name) and name in originals and update.numel():
            largest = float((originals[name].double() + update.double()).abs().max())
            if largest > MAX_FACTOR:
                raise RefusedError(
                    "factor_too_large",
                    f"An update of {ascii(name)[:60]} was refused: expected factors of adapters of at most "
                    f"{MAX_FACTOR:g}, got {largest:.6g}. The training diverged; lower the learning rate.",
                    tensor=ascii(name)[:60],
                    found=largest,
                    maximum=MAX_FACTOR,
                )


def normalised_weights(weights: dict[str, float], fallback: Mapping[str, Meta]) -> dict[str, float]:
    """Return weights that sum to 1.

    If the weights are all zero, or one is negative or not finite, log a warning and weight by the sizes instead. If the
    sizes are unusable too, weight all sites equally.

    Args:
        weights: Mapping from each site to its weight.
        fallback: Mapping from each site to its metadata with ``size``; a site without ``size`` has size 1.

    Returns:
        Mapping from each site to its normalised weight.
    """
    if not _are_usable(weights):
        logger.warning("Aggregation weights are not usable (not finite, negative, or all zero); weighing by size.")
        weights = {name: float(meta.get("size", 1.0)) for name, meta in fallback.items()}
    if not _are_usable(weights):
        weights = dict.fromkeys(weights, 1.0)
    total = math.fsum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def _are_usable(weights: dict[str, float]) -> bool:
    """Return True if all weights are finite and not negative, and at least one is positive."""
    total = sum(weights.values())  # not finite if any weight is not
    return math.isfinite(total) and total > 0 and min(weights.values()) >= 0


def mean_update(replies: Replies, weights: dict[str, float], prefix: str = MODEL_PREFIX) -> Tensors:
    """Compute the weighted mean of the updates under one prefix.

    Args:
        replies: Replies of the sites.
        weights: Weights of the sites by name, which sum to 1.
        prefix: Prefix of the averaged tensors.

    Returns:
        Mean tensors by name, without the prefix, as in `mean_updates`.
    """
    return mean_updates(replies, {prefix: weights})[prefix]


def mean_updates(replies: Replies, weights: Mapping[str, Mapping[str, float]]) -> dict[str, Tensors]:
    """Compute the weighted means of the updates in float64.

    Reads the replies in the order of their sites' names and keeps one in memory at a time.

    Args:
        replies: Replies of the sites.
        weights: Mapping from each prefix to the weights of the sites, which sum to 1. A site without a weight is left
            out of that prefix. Tensors with other prefixes are ignored.

    Returns:
        Mapping from each prefix to its mean tensors by name, without the prefix, in float64. Integer and boolean
        buffers take the largest value over the sites.
    """
    means: dict[str, Tensors] = {prefix: {} for prefix in weights}
    for site, tensors in replies:
        for prefix, shares in weights.items():
            if site in shares:
                _add_weighted(means[prefix], select(tensors, prefix), shares[site])
        del tensors  # frees the memory before the next reply is read
    return means


def _add_weighted(mean: Tensors, tensors: Tensors, weight: float) -> None:
    """Add `weight` times the tensors to the running mean, in place."""
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


def mean_residuals(old: Tensors, new: Tensors, replies: Replies, weights: Mapping[str, float]) -> Tensors:
    """Compute the residuals of low-rank adapters after a round, with which the mean of the sites' models is exact.

    The mean of the products B_k A_k differs from the product of the mean factors. For each layer with a residual R, the
    new residual is R + sum_k p_k B_k A_k - B A, with the new factors A and B, computed in float64. Source: FedEx-LoRA,
    Singhal et al., ACL 2025.

    Args:
        old: Shared tensors that the sites started from.
        new: New shared tensors.
        replies: Replies of the sites, with updates of the factors.
        weights: Weights p_k of the sites by name, which sum to 1.

    Returns:
        The new residuals by name; empty if no layer has one. A site without factors in its reply has kept the old
        ones.
    """
    layers = {name: name.removesuffix(RESIDUAL) for name in old if is_residual(name)}
    if not layers:
        return {}
    before = {name: _adapter_change(old, layer) for name, layer in layers.items()}
    residuals = {
        name: old[name].double() + before[name] - _adapter_change(new, layer) for name, layer in layers.items()
    }
    for site, tensors in replies:
        if site in weights:
            changes = {name: change.double() for name, change in select(tensors, MODEL_PREFIX).items()}
            trained = old | {name: old[name].double() + change for name, change in changes.items() if is_factor(name)}
            for name, layer in layers.items():
                residuals[name].add_(_adapter_change(trained, layer) - before[name], alpha=weights[site])
        del tensors  # as in the mean of the replies
    return {name: tensor.to(old[name].dtype) for name, tensor in residuals.items()}


def _adapter_change(tensors: Tensors, layer: str) -> torch.Tensor:
    """Return the product B A of a layer's adapter in float64, given the prefix of the layer's names."""
    return low_rank_product(tensors[layer + FACTOR_A].double(), tensors[layer + FACTOR_B].double())


def sample_sites(names: list[str], fraction: float, generator: torch.Generator) -> list[str]:
    """Draw sites without replacement.

    Args:
        names: Names of the candidates, sorted as strings.
        fraction: Share of the candidates to draw, in (0, 1], see `medfl.settings.participant_count`.
        generator: Random generator with the key (seed, "participation", round), so that all methods draw the same
            sites.

    Returns:
        Names of the drawn sites, sorted; an empty list if there is no candidate.
    """
    if not names:
        return []
    chosen = torch.randperm(len(names), generator=generator)[: participant_count(len(names), fraction)]
    return sorted(names[index] for index in chosen.tolist())


def check_exact_adapters(name: str, method: Method, settings: Settings) -> None:
    """Check that low-rank adapters can be averaged exactly, in a run whose networks have residuals.

    The server needs each site's factors, and its new model must be the weighted mean of the sites' models.

    Args:
        name: Name of the method.
        method: The method.
        settings: Settings of the run.

    Raises:
        SettingsError: If the method does not support it, or the run has a robust rule or secure aggregation.
    """
    advice = "Set 'lora.aggregation' to 'frozen_a', whose mean is exact for every method, or to 'naive'."
    if Capability.EXACT_ADAPTERS not in method.active_supports:
        raise SettingsError(
            "method_not_supported",
            f"Exact aggregation of adapters needs a server whose new model is the weighted mean of the sites' models, "
            f"and method '{name}' does not promise that (`Capability.EXACT_ADAPTERS` in `supports`). {advice}",
            feature="exact_adapters",
            method=name,
        )
    for setting, reason in (
        ("robust", "a robust rule replaces the mean of the updates, so no mean of the weight changes exists"),
        ("secure_aggregation", "secure aggregation gives the server only the sum of the factors, not their products"),
    ):
        if getattr(settings, setting) is not None:
            raise SettingsError(
                "incompatible_settings",
                f"Exact aggregation of adapters is not possible: {reason}. {advice}",
                settings=["lora.aggregation", setting],
            )


def check_validation(server: Server, why: str) -> None:
    """Raise if a site that has training images has no validation images. Call this in a method's `setup`.

    A site whose site information is unknown passes.

    Args:
        server: The server.
        why: Reason why the method needs validation images, for the message.

    Raises:
        SettingsError: If validation images are missing; the message lists the sites.
    """
    if lacking := [name for name in server.trainable() if not server.site_info.get(name, {}).get("validates", True)]:
        raise SettingsError(
            "no_images",
            f"{why}: expected validation images at each, got none at {names_and_more(lacking, 3)}. Give them a "
            "validation split, or choose the method 'fedavg'.",
            split="val",
            sites=lacking,
        )
