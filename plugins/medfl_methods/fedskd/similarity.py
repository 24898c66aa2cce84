"""Similarity knowledge distillation: two models agree on which samples, positions and regions resemble each other.

Source: FedSKD (Weng et al. 2025), eqs 5 to 14. Each form turns a feature map F (B, C, *spatial) into rows of features
H (n x p) and compares S(H) = sqrt(n) row-normalised H H^T of the two models: (1 / n^2) ||S - S'||_F^2, in [0, 4], in
[0, 2] for features without negative values, 0 for equal maps. The maps may be 2-D or 3-D and differ in channels and in
size. Both get gradients; detach one to spare it. Half precision is computed in single precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch.nn import functional as F

from medfl.errors import ContractError, SettingsError, did_you_mean
from medfl_methods.fedskd.gram import Form, gram_loss
from medfl_methods.fedskd.regions import pool

KINDS = ("batch", "pixel", "region")

_PIXEL_NORMS = ("hw_sq", "hw_times")

Regions = torch.Tensor | Sequence[torch.Tensor] | None
"""Weights of regions: one tensor for all layers, or one for each."""


def batch_similarity_loss(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """How unlike the similarities between the samples of a batch are: n = B rows of all features of a sample.

    Args:
        a: Features of one model, shape (B, C, *spatial), two or three spatial axes.
        b: Of the other model for the same samples; channels and size may differ.

    Returns:
        Shape (), in [0, 4]. See `medfl_methods.fedskd.gram.gram_loss` for samples whose features are all 0.

    Raises:
        ContractError: If the maps have unlike batches or numbers of axes.
    """
    _check_pair(a, b)
    return gram_loss(a.reshape(len(a), -1).T, b.reshape(len(b), -1).T)


def pixel_similarity_loss(
    a: torch.Tensor, b: torch.Tensor, pixel_norm: Literal["hw_sq", "hw_times"] = "hw_sq", form: Form = "auto"
) -> torch.Tensor:
    """How unlike the similarities between positions are: n = h w (or d h w) rows of B C features.

    Of unlike sizes, the larger map is resized to the smaller one (bilinear or trilinear, align_corners=False).

    Args:
        a: Features of one model, shape (B, C, *spatial), two or three spatial axes.
        b: Of the other model for the same samples; channels and size may differ.
        pixel_norm: What the squared distance is divided by: "hw_sq" (h w)^2, as in the other two forms; "hw_times" the
            literal h w^2 of eq. 9 (in 3-D d h w^2), which depends on the orientation of the image.
        form: How it is computed, see `gram_loss`; the value is the same.

    Returns:
        Shape (), in [0, 4] with "hw_sq".

    Raises:
        ContractError: If the maps have unlike batches or numbers of axes.
        SettingsError: If `pixel_norm` is unknown.
    """
    if pixel_norm not in _PIXEL_NORMS:
        hint = did_you_mean(pixel_norm, _PIXEL_NORMS)
        raise SettingsError(
            "unknown_choice",
            f"expected a divisor of the pixel loss, got '{pixel_norm}'. {hint}",
            what="divisor of the pixel loss",
            choice=pixel_norm,
        )
    _check_pair(a, b)
    a, b = _same_size(a, b)
    channels = max(a.shape[1], b.shape[1])
    loss = gram_loss(_positions(a, channels), _positions(b, channels), form)
    return loss if pixel_norm == "hw_sq" else loss * (a[0, 0].numel() / a.shape[-1])


def region_similarity_loss(a: torch.Tensor, b: torch.Tensor, regions: torch.Tensor | None) -> torch.Tensor:
    """How unlike the similarities between regions of an atlas are: n = R rows of B C mean features.

    A region's feature is its weighted mean, sum(w F) / sum(w), over each map's own grid. Regions without any weight are
    left out of both models and of n. A sample that lacks a region counts as 0 there.

    Args:
        a: Features of one model, shape (B, C, *spatial), two or three spatial axes.
        b: Of the other model for the same samples; channels and size may differ.
        regions: Weights >= 0 from `region_weights`, shape (R, *spatial) for all samples, or (B, R, *spatial), or (1, R,
            *spatial). On another grid than a map's they are average-pooled to it.

    Returns:
        Shape (), in [0, 4].

    Raises:
        ContractError: If the maps have unlike batches or numbers of axes, or the regions do not fit them.
        SettingsError: If there are no regions, or none of them has weight.
    """
    _check_pair(a, b)
    if regions is None:
        raise SettingsError(
            "missing_regions",
            "expected regions for the region loss, got none. Name an atlas, or leave 'region' out of the kinds.",
        )
    weights = _region_batch(regions, a)
    held = _mass(weights).amax(0) > 0
    if not held.any():
        raise SettingsError(
            "weightless_regions",
            f"expected a region with weight on the feature maps, got none of {len(held)} regions. Use soft regions, "
            "or an atlas on the grid of the images.",
            count=len(held),
        )
    weights = weights if held.all() else weights[:, held]
    ours, theirs = (_region_means(x, pool(weights, x.shape[2:])) for x in (a, b))
    return gram_loss(ours, theirs)


def similarity_loss(
    features_a: Sequence[torch.Tensor],
    features_b: Sequence[torch.Tensor],
    kinds: Sequence[str] | None = None,
    regions: Regions = None,
    pixel_norm: Literal["hw_sq", "hw_times"] = "hw_sq",
) -> torch.Tensor:
    """Sum over the kinds of the mean over the layers.

    Args:
        features_a: Outputs of the stages of one model, each (B, C, *spatial).
        features_b: Of the other model, as many.
        kinds: Any of "batch", "pixel", "region". None: batch and pixel, and region where there are regions.
        regions: For the region loss, see `region_similarity_loss`: one tensor for all layers (each step pools it to
            each layer's grid), or one for each layer.
        pixel_norm: See `pixel_similarity_loss`.

    Returns:
        Shape (), at most 4 for each kind.

    Raises:
        ContractError: If two maps of a layer do not fit each other.
        SettingsError: If the depths are unlike, a kind is unknown or none is named, or a region loss has no regions.
    """
    if len(features_a) != len(features_b) or not len(features_a):
        raise SettingsError(
            "unlike_stage_counts",
            f"expected two models with equally many stages (at least 1), got {len(features_a)} and {len(features_b)}. "
            "Widths may differ, depths may not.",
            counts=(len(features_a), len(features_b)),
        )
    chosen = _kinds(kinds, regions)
    by_layer = _by_layer(regions, len(features_a))
    total = torch.zeros((), device=features_a[0].device)
    for kind in chosen:
        for a, b, layer_regions in zip(features_a, features_b, by_layer, strict=True):
            if kind == "batch":
                loss = batch_similarity_loss(a, b)
            elif kind == "pixel":
                loss = pixel_similarity_loss(a, b, pixel_norm)
            else:
                loss = region_similarity_loss(a, b, layer_regions)
            total = total + loss / len(features_a)
    return total


def _kinds(kinds: Sequence[str] | None, regions: Regions) -> tuple[str, ...]:
    if kinds is None:
        return KINDS if regions is not None else KINDS[:2]
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise SettingsError(
            "unknown_choice",
            f"expected kinds of similarity, got '{unknown[0]}'. {did_you_mean(unknown[0], KINDS)}",
            what="kind of similarity",
            choice=unknown[0],
        )
    if not kinds:
        raise SettingsError(
            "missing_setting",
            f"expected at least one kind of similarity, got none. Known: {', '.join(KINDS)}.",
            setting="kinds",
        )
    return tuple(kind for kind in KINDS if kind in kinds)


def _by_layer(regions: Regions, layers: int) -> Sequence[torch.Tensor | None]:
    if regions is None or isinstance(regions, torch.Tensor):
        return [regions] * layers
    if len(regions) != layers:
        raise SettingsError(
            "wrong_region_count",
            f"expected regions for each of {layers} layers, got {len(regions)}.",
            expected=layers,
            found=len(regions),
        )
    return regions


def _check_pair(a: torch.Tensor, b: torch.Tensor) -> None:
    if a.dim() != b.dim() or a.dim() not in (4, 5) or len(a) != len(b) or not (a.numel() and b.numel()):
        raise ContractError(
            "wrong_shape",
            "expected feature maps (B, C, *spatial) of two models for the same samples, both 2-D or both 3-D and not "
            f"empty, got the shapes {tuple(a.shape)} and {tuple(b.shape)}.",
            found=(tuple(a.shape), tuple(b.shape)),
        )


def _same_size(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Resize the map with more positions to the size of the other one (of equally many, the second)."""
    if a.shape[2:] == b.shape[2:]:
        return a, b
    if a[0, 0].numel() > b[0, 0].numel():
        return _resized(a, b), b
    return a, _resized(b, a)


def _resized(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    mode = "bilinear" if x.dim() == 4 else "trilinear"
    return F.interpolate(x.to(_at_least_single(x)), size=like.shape[2:], mode=mode, align_corners=False)


def _at_least_single(x: torch.Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _positions(x: torch.Tensor, channels: int) -> torch.Tensor:
    """A column of B C features for each position. Channels of zeros change no similarity and keep samples aligned."""
    if x.shape[1] < channels:
        x = F.pad(x, [0, 0] * (x.dim() - 2) + [0, channels - x.shape[1]])
    return x.reshape(x.shape[0] * channels, -1)


def _region_batch(regions: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """Weights as (B or 1, R, *spatial)."""
    batch = regions[None] if regions.dim() == a.dim() - 1 else regions
    if batch.dim() != a.dim() or len(batch) not in (1, len(a)):
        raise ContractError(
            "wrong_shape",
            f"expected regions of shape (R, *spatial) or ({len(a)}, R, *spatial) with {a.dim() - 2} spatial axes, got "
            f"{tuple(regions.shape)}.",
            axes=a.dim() - 2,
            found=tuple(regions.shape),
        )
    return batch.to(a.device, _at_least_single(a))


def _mass(weights: torch.Tensor) -> torch.Tensor:
    """Sum of the weights of each sample's regions, shape (B, R)."""
    return weights.flatten(2).sum(2)


def _region_means(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """A column of B C mean features for each region, shape (B C, R)."""
    mass = _mass(weights)
    with torch.autocast(x.device.type, enabled=False):
        sums = x.to(weights.dtype).flatten(2) @ weights.flatten(2).transpose(1, 2)
    return (sums / torch.where(mass > 0, mass, 1.0)[:, None]).reshape(-1, weights.shape[1])
