"""How much a site's update counts in a secure aggregation, and how the numbers of all are written."""

from __future__ import annotations

from typing import Any

from medfl.contract import Method
from medfl.engine.secure.fixed_point import FixedPoint
from medfl.errors import ContractError
from medfl.privacy.policy import policy_of
from medfl.settings import SecureAggregation, Settings
from medfl.types import Meta

CLIP = 100.0
"""Largest L2 norm of an update where neither `privacy` nor `secure_aggregation` says one."""


def weight_of(inner: Method, meta: Meta, settings: Settings) -> int:
    """The weight of a site's update: a whole number, for it is summed as well.

    Args:
        inner: The method. `Capability.ROBUST` promises that it weighs by sizes or uniformly.
        meta: Of its reply, as it is at the site.
        settings: Of the run; under privacy all weigh alike.

    Raises:
        ContractError: If the method breaks its promise.
    """
    weigh: Any = getattr(inner, "weight", lambda meta: meta.get("size", 1.0))
    weight = float(weigh(meta if policy_of(settings).discloses_metadata("private") else {}))
    if weight < 0 or weight != int(weight):
        raise ContractError(
            "wrong_weight",
            f"expected a weight by size, or 1, of a method that supports `Capability.ROBUST`; got {weight:g}",
            found=weight,
        )
    return int(weight)


def heaviest(inner: Method, settings: Settings) -> int:
    """The largest weight that a site may have; 1 where all weigh alike."""
    assert settings.secure_aggregation is not None
    by_size = weight_of(inner, {"size": 2}, settings) != weight_of(inner, {"size": 1}, settings)
    return settings.secure_aggregation.largest_size if by_size else 1


def clip_of(settings: Settings) -> float:
    """Largest L2 norm of a site's update."""
    secure = settings.secure_aggregation
    assert secure is not None
    if (clip := policy_of(settings).sum_clip()) is not None:
        return clip
    return CLIP if secure.clip is None else secure.clip


def fixed_point(inner: Method, settings: Settings, sites: int, numbers: int) -> tuple[FixedPoint, int]:
    """How numbers are written, the same at the server and at all sites; and the largest weight.

    Args:
        inner: The method.
        settings: Of the run.
        sites: How many may be summed.
        numbers: In an update.
    """
    secure = settings.secure_aggregation
    assert isinstance(secure, SecureAggregation)
    noise = policy_of(settings).sum_noise()
    return FixedPoint(secure.bits, sites, clip_of(settings), numbers, noise, secure.resolved_threshold), heaviest(
        inner, settings
    )
