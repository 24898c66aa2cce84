"""Clipping of an update by its norm over all tensors together."""

from __future__ import annotations

import math

import torch

from medfl.contract import Tensors
from medfl.errors import RefusedError


def l2_norm(tensors: Tensors) -> float:
    """L2 norm over all floating tensors together, in float64; 0 if there are none. Integers and bools don't count."""
    return math.hypot(
        *(
            float(torch.linalg.vector_norm(t.detach(), dtype=torch.float64))
            for t in tensors.values()
            if t.is_floating_point()
        )
    )


def clip_by_norm(tensors: Tensors, bound: float) -> Tensors:
    """Scale all floating tensors by min(1, bound / norm), where the norm goes over all of them together.

    Clipping each tensor on its own would let the whole update be larger than the bound, which the noise is made for.

    Args:
        tensors: An update, of any shapes. Integer and bool tensors pass unchanged and don't count.
        bound: Largest L2 norm allowed, > 0.

    Returns:
        New tensors of the same dtypes and shapes; the very same ones when the norm is within the bound.

    Raises:
        RefusedError: If the norm is not finite.

    Example:
        >>> clip_by_norm({"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([0.0, 4.0])}, 2.5)
        {'a': tensor([1.5000, 0.0000]), 'b': tensor([0., 2.])}
    """
    norm = l2_norm(tensors)
    if not math.isfinite(norm):
        raise RefusedError(f"expected an update of finite norm to clip, got {norm}. The training diverged.")
    if norm <= bound:
        return dict(tensors)
    scale = bound / norm
    return {name: (t.double() * scale).to(t.dtype) if t.is_floating_point() else t for name, t in tensors.items()}
