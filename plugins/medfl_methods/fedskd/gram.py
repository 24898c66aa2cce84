"""Similarity loss between two feature matrices with its gradient, by the fastest of three exact algorithms.

Source: FedSKD (Weng et al. 2025), equations 6, 9 and 14: (1 / n^2) ||S(H) - S(K)||_F^2, where S(H) is sqrt(n) H H^T
with rows scaled to norm 1. H and K are the feature matrices of two models: n rows (for example the images of a batch)
of k features each. H H^T contains the similarities between rows.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch.autograd.function import once_differentiable

from medfl_methods.fedskd import similarity_kxk, similarity_nxn

Algorithm = Literal["auto", "small", "tiles", "columns"]
"""Algorithm of `gram_loss`; all give the same value. "small": n x n matrices as a whole; "tiles": n x n matrices tile
by tile; "columns": k x k matrices; "auto": the fastest of these."""

_MIN_COLUMNS_RATIO = (6.5, 6.0, 5.0)
"""Ratio n / k above which the k x k algorithm is faster, by the number of gradients: none, one, two. Measured with
`benchmarks/similarity_loss.py`."""


def choose_algorithm(n: int, k: int, gradients: int = 2) -> Literal["small", "tiles", "columns"]:
    """Return the name of the fastest algorithm for `gram_loss`.

    Args:
        n: Number of rows of both matrices.
        k: Number of columns of the wider matrix.
        gradients: Number of models that need a gradient, 0 to 2.
    """
    if n > _MIN_COLUMNS_RATIO[gradients] * k:
        return "columns"
    return "small" if n <= similarity_nxn.MAX_SMALL_ROWS else "tiles"


def gram_loss(x: torch.Tensor, y: torch.Tensor, algorithm: Algorithm = "auto") -> torch.Tensor:
    """Return the loss that measures how much the similarities within two sets of n feature vectors differ.

    Args:
        x: Features of the first model, one column for each vector, shape (k, n), n >= 1.
        y: Features of the second model, shape (k', n); k' may differ. Both may need a gradient.
        algorithm: Algorithm, or "auto" for the choice of `choose_algorithm`. All are exact.

    Returns:
        Scalar in [0, 4], in [0, 2] if no feature is negative, exactly 0 for equal matrices. A vector of norm 0 is
        similar to no other: its row adds 1 / n if it is zero in one model only and 0 otherwise, and has no gradient.
        The result can be differentiated once.
    """
    dtype = torch.promote_types(torch.promote_types(x.dtype, y.dtype), torch.float32)
    x, y = x.to(dtype), y.to(dtype)
    gradients = torch.is_grad_enabled() * (x.requires_grad + y.requires_grad)
    if algorithm == "auto":
        algorithm = choose_algorithm(x.shape[1], max(len(x), len(y)), gradients)
    if algorithm == "small":
        return _SmallLoss.apply(x, y, torch.is_grad_enabled())
    return _LargeLoss.apply(x, y, torch.is_grad_enabled(), algorithm)


class _SmallLoss(torch.autograd.Function):
    """Autograd function of the "small" algorithm. It saves the n x n weights of the gradients, which are small."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor, enabled: bool) -> torch.Tensor:
        with _disable_autocast(x):
            loss, wx, wy = similarity_nxn.value_and_weights(x, y, _needed_gradients(ctx, enabled))
        ctx.save_for_backward(x, y, wx, wy)
        return loss.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, y, wx, wy = ctx.saved_tensors
        with _disable_autocast(x):
            return *(None if w is None else similarity_nxn.multiply(z, w * scale) for z, w in ((x, wx), (y, wy))), None


class _LargeLoss(torch.autograd.Function):
    """Autograd function of "tiles" and "columns".

    It saves the gradients themselves: they are smaller than their inputs, and the backward pass does not read the
    features again.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor, enabled: bool, algorithm: str) -> torch.Tensor:
        module = similarity_nxn if algorithm == "tiles" else similarity_kxk
        compute = module.value_and_gradients
        with _disable_autocast(x):
            loss, gx, gy = compute(x, y, _needed_gradients(ctx, enabled))
        ctx.save_for_backward(gx, gy)
        return loss.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return *(None if gradient is None else gradient * scale for gradient in ctx.saved_tensors), None, None


def _needed_gradients(ctx: Any, enabled: bool) -> tuple[bool, bool]:
    """Return whether the gradients by x and by y are needed."""
    return enabled and ctx.needs_input_grad[0], enabled and ctx.needs_input_grad[1]


def _disable_autocast(x: torch.Tensor) -> torch.autocast:
    """Return a context that disables autocast on the device of `x`."""
    return torch.autocast(x.device.type, enabled=False)
