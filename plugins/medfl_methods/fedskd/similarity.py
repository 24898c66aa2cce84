"""FedSKD's similarity losses between the feature maps of two models: over samples, positions and atlas regions.

Source: FedSKD (Weng et al. 2025), equations 5 to 14. Each loss turns a feature map F (B, C, *spatial) into n rows of
features H (n x p). It compares S(H) = sqrt(n) row-normalised H H^T of the two models:

(1 / n^2) ||S - S'||_F^2

It is in [0, 4], in [0, 2] for features without negative values, and 0 for equal maps. The maps may be 2-D or 3-D and
may differ in channels and in size. Both maps get gradients; detach a map to stop its gradient. Half precision is
computed in single precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch.nn import functional as F

from medfl.errors import ContractError, SettingsError, did_you_mean
from medfl_methods.fedskd.gram import Algorithm, gram_loss
from medfl_methods.fedskd.regions import pool

KINDS = ("batch", "pixel", "region")
"""Kinds of similarity, in the order in which their losses are summed. "batch": between samples; "pixel": between
positions of the feature maps; "region": between atlas regions."""

_PIXEL_NORMS = ("hw_sq", "hw_times")

Regions = torch.Tensor | Sequence[torch.Tensor] | None
"""Type of region weights: one tensor for all layers, one tensor (or None) for each layer, or None. A weight is the
fraction of a cell of the feature map that a region covers."""


def batch_similarity_loss(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the loss that measures how much two models differ in the similarities between the samples of a batch.

    There are n = B rows; a row contains all features of a sample.

    Args:
        a: Features of one model, shape (B, C, *spatial), two or three spatial axes.
        b: Features of the other model for the same samples. Channels and size may differ.

    Returns:
        Scalar in [0, 4]. See `medfl_methods.fedskd.gram.gram_loss` for samples whose features are all 0.

    Raises:
        ContractError: If the numbers of samples or axes differ, or a map is empty.
    """
    _check_pair(a, b)
    return gram_loss(a.reshape(len(a), -1).T, b.reshape(len(b), -1).T)


def pixel_similarity_loss(
    a: torch.Tensor, b: torch.Tensor, pixel_norm: Literal["hw_sq", "hw_times"] = "hw_sq", algorithm: Algorithm = "auto"
) -> torch.Tensor:
    """Return the loss that measures how much two models differ in the similarities between positions of feature maps.

    There are n = h w (in 3-D d h w) rows, one for each position, of B C features. If the maps differ in size, the
    larger one is resized to the smaller one (bilinear or trilinear, align_corners=False).

    Args:
        a: Features of one model, shape (B, C, *spatial), two or three spatial axes.
        b: Features of the other model for the same samples. Channels and size may differ.
        pixel_norm: Divisor of the squared distance: "hw_sq" is (h w)^2, as in the other two losses; "hw_times" is the
            literal h w^2 of equation 9 (in 3-D d h w^2), which depends on the orientation of the image.
        algorithm: Algorithm of `gram_loss`; it does not change the value.

    Returns:
        Scalar, in [0, 4] with "hw_sq".

    Raises:
        ContractError: If the numbers of samples or axes differ, or a map is empty.
        SettingsError: If `pixel_norm` is unknown.
    """
    if pixel_norm not in _PIXEL_NORMS:
        hint = did_you_mean(pixel_norm, _PIXEL_NORMS)
        raise SettingsError(
            "unknown_choice",
            f"unknown divisor of the pixel loss '{pixel_norm}'. {hint}",
            what="divisor of the pixel loss",
            choice=pixel_norm,
        )
    _check_pair(a, b)
    a, b = _resize_larger(a, b)
    channels = max(a.shape[1], b.shape[1])
    loss = gram_loss(_position_columns(a, channels), _position_columns(b, channels), algorithm)
    return loss if pixel_norm == "hw_sq" else loss * (a[0, 0].numel() / a.shape[-1])


def region_similarity_loss(a: torch.Tensor, b: torch.Tensor, regions: torch.Tensor | None) -> torch.Tensor:
    """Return the loss that measures how much two models differ in the similarities between R atlas regions.

    There are n = R rows of B C mean features. The feature of a region is its weighted mean, sum(w F) / sum(w), on each
    map's own grid. A region whose weights are 0 in all samples is left out of both models and of n. A sample without a
    region counts as 0 there.

    Args:
        a: Features of one model, shape (B, C, *spatial), two or three spatial axes.
        b: Features of the other model for the same samples. Channels and size may differ.
        regions: Weights >= 0 from `region_weights`, shape (R, *spatial) for all samples, or (B, R, *spatial), or (1, R,
            *spatial). Weights on another grid than a map's are average-pooled to it.

    Returns:
        Scalar in [0, 4].

    Raises:
        ContractError: If the numbers of samples or axes differ, a map is empty, or the regions do not fit the maps.
        SettingsError: If `regions` is None or all weights are 0.
    """
    _check_pair(a, b)
    if regions is None:
        raise SettingsError(
            "missing_regions",
            "expected region weights for the region loss, got None. Add an atlas, or remove 'region' from the kinds.",
        )
    weights = _batch_regions(regions, a)
    has_weight = _region_weight_sums(weights).amax(0) > 0
    if not has_weight.any():
        raise SettingsError(
            "weightless_regions",
            f"expected at least one region with weight above 0 on the feature maps, got none in "
            f"{len(has_weight)} regions. Use soft regions, or an atlas on the grid of the images.",
            count=len(has_weight),
        )
    weights = weights if has_weight.all() else weights[:, has_weight]
    means_a, means_b = (_region_means(x, pool(weights, x.shape[2:])) for x in (a, b))
    return gram_loss(means_a, means_b)


def similarity_loss(
    features_a: Sequence[torch.Tensor],
    features_b: Sequence[torch.Tensor],
    kinds: Sequence[str] | None = None,
    regions: Regions = None,
    pixel_norm: Literal["hw_sq", "hw_times"] = "hw_sq",
) -> torch.Tensor:
    """Return the similarity loss of two models: for each kind the mean over the layers, summed over the kinds.

    Args:
        features_a: Outputs of the stages of one model, each (B, C, *spatial).
        features_b: Outputs of the stages of the other model, equally many.
        kinds: Any of "batch", "pixel", "region". None means batch and pixel, and also region if `regions` is not None.
        regions: Region weights, see `region_similarity_loss`: one tensor for all layers, which is pooled to each
            layer's grid, or one tensor for each layer.
        pixel_norm: Divisor of the pixel loss, see `pixel_similarity_loss`.

    Returns:
        Scalar, at most 4 for each kind.

    Raises:
        ContractError: If the two maps of a layer do not fit each other.
        SettingsError: If the numbers of layers differ, a kind is unknown, `kinds` is empty, or the region loss has no
            regions.
    """
    if len(features_a) != len(features_b) or not len(features_a):
        raise SettingsError(
            "unlike_stage_counts",
            f"expected two models with equally many stages (at least 1), got {len(features_a)} and {len(features_b)} "
            "stages. Widths may differ, depths may not.",
            counts=(len(features_a), len(features_b)),
        )
    chosen = _ordered_kinds(kinds, regions)
    by_layer = _regions_by_layer(regions, len(features_a))
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


def _ordered_kinds(kinds: Sequence[str] | None, regions: Regions) -> tuple[str, ...]:
    """Return the chosen kinds in the order of `KINDS`. Raise if one is unknown or `kinds` is empty."""
    if kinds is None:
        return KINDS if regions is not None else KINDS[:2]
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise SettingsError(
            "unknown_choice",
            f"unknown kind of similarity '{unknown[0]}'. {did_you_mean(unknown[0], KINDS)}",
            what="kind of similarity",
            choice=unknown[0],
        )
    if not kinds:
        raise SettingsError(
            "missing_setting",
            f"expected at least one kind of similarity, got an empty list. Known: {', '.join(KINDS)}.",
            setting="kinds",
        )
    return tuple(kind for kind in KINDS if kind in kinds)


def _regions_by_layer(regions: Regions, layers: int) -> Sequence[torch.Tensor | None]:
    """Return one region tensor for each layer. Raise if their number is wrong."""
    if regions is None or isinstance(regions, torch.Tensor):
        return [regions] * layers
    if len(regions) != layers:
        raise SettingsError(
            "wrong_region_count",
            f"expected one region tensor for each of {layers} layers, got {len(regions)}.",
            expected=layers,
            found=len(regions),
        )
    return regions


def _check_pair(a: torch.Tensor, b: torch.Tensor) -> None:
    """Raise if the maps are empty or not 2-D or 3-D maps of the same number of samples and axes."""
    if a.dim() != b.dim() or a.dim() not in (4, 5) or len(a) != len(b) or not (a.numel() and b.numel()):
        raise ContractError(
            "wrong_shape",
            "expected feature maps (B, C, *spatial) of two models for the same samples, both 2-D or both 3-D and not "
            f"empty, got the shapes {tuple(a.shape)} and {tuple(b.shape)}.",
            found=(tuple(a.shape), tuple(b.shape)),
        )


def _resize_larger(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Resize the map with more positions to the size of the other map.

    If both have equally many, resize the second one.
    """
    if a.shape[2:] == b.shape[2:]:
        return a, b
    if a[0, 0].numel() > b[0, 0].numel():
        return _interpolate(a, b), b
    return a, _interpolate(b, a)


def _interpolate(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Interpolate a map to the spatial size of another one, in single precision or above."""
    mode = "bilinear" if x.dim() == 4 else "trilinear"
    return F.interpolate(x.to(_computation_dtype(x)), size=like.shape[2:], mode=mode, align_corners=False)


def _computation_dtype(x: torch.Tensor) -> torch.dtype:
    """Return float32 for half precision, otherwise the map's own dtype."""
    return torch.promote_types(x.dtype, torch.float32)


def _position_columns(x: torch.Tensor, channels: int) -> torch.Tensor:
    """Return a matrix (B channels, n) with one column for each of the n positions.

    A map with fewer channels is padded with channels of zeros. This changes no similarity and keeps the samples
    aligned.
    """
    if x.shape[1] < channels:
        x = F.pad(x, [0, 0] * (x.dim() - 2) + [0, channels - x.shape[1]])
    return x.reshape(x.shape[0] * channels, -1)


def _batch_regions(regions: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """Return the region weights as (B or 1, R, *spatial). Raise if their shape does not fit the map."""
    batch = regions[None] if regions.dim() == a.dim() - 1 else regions
    if batch.dim() != a.dim() or len(batch) not in (1, len(a)):
        raise ContractError(
            "wrong_shape",
            f"expected region weights of shape (R, *spatial) or ({len(a)}, R, *spatial) with {a.dim() - 2} spatial "
            f"axes, got the shape {tuple(regions.shape)}.",
            axes=a.dim() - 2,
            found=tuple(regions.shape),
        )
    return batch.to(a.device, _computation_dtype(a))


def _region_weight_sums(weights: torch.Tensor) -> torch.Tensor:
    """Return the sum of the weights of each region in each sample, shape (B, R)."""
    return weights.flatten(2).sum(2)


def _region_means(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return a matrix (B C, R) with one column of mean features for each region."""
    weight_sums = _region_weight_sums(weights)
    with torch.autocast(x.device.type, enabled=False):
        sums = x.to(weights.dtype).flatten(2) @ weights.flatten(2).transpose(1, 2)
    return (sums / torch.where(weight_sums > 0, weight_sums, 1.0)[:, None]).reshape(-1, weights.shape[1])
