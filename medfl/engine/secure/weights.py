"""Weight of a site's update in a secure aggregation, and the fixed-point format of the updates."""

from __future__ import annotations

from typing import Any

from medfl.contract import Method
from medfl.engine.secure.fixed_point import FixedPoint
from medfl.errors import ContractError
from medfl.privacy.policy import policy_of
from medfl.settings import SecureAggregation, Settings
from medfl.types import Meta

CLIP = 100.0
"""Largest L2 norm of an update if neither the setting ``privacy`` nor ``secure_aggregation`` has a clip."""


def weight_of(inner: Method, meta: Meta, settings: Settings) -> int:
    """Return the weight of a site's update, which is an integer because the weights are summed too.

    Args:
        inner: The method, which weights updates equally or by the sites' numbers of training images (as it promises by
            `Capability.ROBUST`).
        meta: Metadata of the reply, before it leaves the site.
        settings: Settings of the run. With a privacy setting, all updates have the same weight.

    Raises:
        ContractError: If the method returns another weight.
    """
    weigh: Any = getattr(inner, "weight", lambda meta: meta.get("size", 1.0))
    weight = float(weigh(meta if policy_of(settings).discloses_metadata("private") else {}))
    if weight < 0 or weight != int(weight):
        raise ContractError(
            "wrong_weight",
            f"expected a weight by size, or 1, from a method that supports `Capability.ROBUST`; got {weight:g}",
            found=weight,
        )
    return int(weight)


def heaviest(inner: Method, settings: Settings) -> int:
    """Return the largest weight that a site's update may have; 1 if all updates have the same weight.

    Args:
        inner: The method.
        settings: Settings of the run.
    """
    assert settings.secure_aggregation is not None
    by_size = weight_of(inner, {"size": 2}, settings) != weight_of(inner, {"size": 1}, settings)
    return settings.secure_aggregation.largest_size if by_size else 1


def clip_of(settings: Settings) -> float:
    """Return the L2 norm to which a site's update is clipped: the clip in the settings, or `CLIP`."""
    secure = settings.secure_aggregation
    assert secure is not None
    if (clip := policy_of(settings).sum_clip()) is not None:
        return clip
    return CLIP if secure.clip is None else secure.clip


def fixed_point(inner: Method, settings: Settings, sites: int, numbers: int) -> tuple[FixedPoint, int]:
    """Return the fixed-point format of the updates and the largest weight of an update.

    Both are the same at the server and at all sites.

    Args:
        inner: The method.
        settings: Settings of the run.
        sites: Maximum number of updates in the sum.
        numbers: Number of elements of an update.
    """
    secure = settings.secure_aggregation
    assert isinstance(secure, SecureAggregation)
    noise = policy_of(settings).sum_noise()
    return FixedPoint(secure.bits, sites, clip_of(settings), numbers, noise, secure.resolved_threshold), heaviest(
        inner, settings
    )
