"""The similarity loss between two matrices of features, in the form that is fastest for their size, with its gradient.

Source: FedSKD (Weng et al. 2025), eqs 6, 9 and 14: (1 / n^2) ||S(H) - S(K)||_F^2, S(H) = sqrt(n) H H^T with rows of
norm 1.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch.autograd.function import once_differentiable

from medfl_methods.fedskd import similarity_kxk as columns
from medfl_methods.fedskd import similarity_nxn as small
from medfl_methods.fedskd import similarity_nxn as tiles

Form = Literal["auto", "small", "tiles", "columns"]

_COLUMNS_FROM = (6.5, 6.0, 5.0)
"""The k x k form is faster where n is above this many times k: without gradient, with one, with two. Measured with
`benchmarks/similarity_loss.py`."""


def choose_form(n: int, k: int, gradients: int = 2) -> Literal["small", "tiles", "columns"]:
    """Which form is fastest.

    Args:
        n: Rows of both matrices.
        k: Columns of the wider one.
        gradients: How many of the two models need a gradient.
    """
    if n > _COLUMNS_FROM[gradients] * k:
        return "columns"
    return "small" if n <= small.ROWS else "tiles"


def gram_loss(x: torch.Tensor, y: torch.Tensor, form: Form = "auto") -> torch.Tensor:
    """How unlike the similarities within two sets of n feature vectors are.

    Args:
        x: Features of the first model, a column for each vector, shape (k, n), n >= 1.
        y: Of the second model, shape (k', n); k' may differ. Both may need a gradient.
        form: "small" (n x n at once), "tiles" (n x n by tiles), "columns" (k x k), or "auto", the fastest one by
            `choose_form`. All are exact.

    Returns:
        Shape (), in [0, 4], in [0, 2] if no feature is negative. 0 for equal matrices, exactly. Vectors of norm 0 have
        no similarity to any other: such a row counts 1 / n where it is zero in one model only, else 0, and has no
        gradient. Can be differentiated once.
    """
    dtype = torch.promote_types(torch.promote_types(x.dtype, y.dtype), torch.float32)
    x, y = x.to(dtype), y.to(dtype)
    gradients = torch.is_grad_enabled() * (x.requires_grad + y.requires_grad)
    chosen = choose_form(x.shape[1], max(len(x), len(y)), gradients) if form == "auto" else form
    if chosen == "small":
        return _SmallLoss.apply(x, y, torch.is_grad_enabled())
    return _LargeLoss.apply(x, y, torch.is_grad_enabled(), chosen)


class _SmallLoss(torch.autograd.Function):
    """Keeps the weights of the gradient: they are small, and the features are kept anyway."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor, enabled: bool) -> torch.Tensor:
        with _full_precision(x):
            loss, wx, wy = small.value_and_weights(x, y, _wanted(ctx, enabled))
        ctx.save_for_backward(x, y, wx, wy)
        return loss.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, y, wx, wy = ctx.saved_tensors
        with _full_precision(x):
            return *(None if w is None else small.multiply(z, w * scale) for z, w in ((x, wx), (y, wy))), None


class _LargeLoss(torch.autograd.Function):
    """Keeps the gradient: that is less than what it is made from, and one pass less over the data."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor, enabled: bool, form: str) -> torch.Tensor:
        compute = tiles.value_and_gradients if form == "tiles" else columns.value_and_gradients
        with _full_precision(x):
            loss, gx, gy = compute(x, y, _wanted(ctx, enabled))
        ctx.save_for_backward(gx, gy)
        return loss.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return *(None if gradient is None else gradient * scale for gradient in ctx.saved_tensors), None, None


def _wanted(ctx: Any, enabled: bool) -> tuple[bool, bool]:
    return enabled and ctx.needs_input_grad[0], enabled and ctx.needs_input_grad[1]


def _full_precision(x: torch.Tensor) -> torch.autocast:
    return torch.autocast(x.device.type, enabled=False)
