"""The n x n form of the similarity loss for few rows: whole Gram matrices, whose weights wait for the backward pass.

Both Gram matrices are symmetric, so one product of each model's features makes its Gram matrix and one its gradient.
A batch and the regions of an atlas are of this kind, with n far below k: nothing but these products touches them.
"""

from __future__ import annotations

import torch

from medfl.losses.rows import RowTerms, Scaled, from_squares, row_terms

ROWS = 512
"""The most rows of this form."""

EXACT_ROWS = 64  # up to here, n x n matrices are float64: free beside the products, and it spares rounding
CHUNK = 4096
"""Elements of a row in one product of single precision. Longer rows are sums of such products, in float64: without, the
gradient of the batch form is off by 1e-4 at 8 rows of 884,736 features, the first stage of a 3-D ResNet at 48^3."""


def value_and_weights(
    x: torch.Tensor, y: torch.Tensor, wanted: tuple[bool, bool]
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """The loss between two matrices, and what to multiply them with for its gradients.

    Args:
        x: A column for each row of H, shape (k, n), float32 or float64. The squared norm of H must fit into its dtype.
        y: The same for K, shape (k', n).
        wanted: Whether the gradient by `x`, by `y` is needed.

    Returns:
        The loss (float64, shape ()), and the weights w (n, n) with gradients x @ w and y @ w, None where not wanted.
    """
    dtype = torch.float64 if x.shape[1] <= EXACT_ROWS else x.dtype
    g, a = _gram(x, dtype)
    q, b = _gram(y, dtype)
    both = a.nonzero & b.nonzero
    balance = torch.where(both, a.norms, 1.0) / torch.where(both, b.norms, 1.0)
    row = balance.to(dtype)[:, None]
    d = (q * row).sub_(g)
    gg, qq, dd = (torch.linalg.vector_norm(z, dim=1).double().square() for z in (g, q, d))
    terms = row_terms(gg, qq * row[:, 0].double().square(), (g * d).sum(1).double(), dd, a, b, dtype)
    wx = _step_weights(d, g, terms, terms.along_g, torch.ones_like(balance), a, -2.0).to(x.dtype) if wanted[0] else None
    wy = _step_weights(d, q * row, terms, terms.along_q, balance, b, 2.0).to(y.dtype) if wanted[1] else None
    return terms.loss.mean(), wx, wy


def multiply(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """x @ weights, in the memory layout of `x`."""
    return (weights.T @ x.T).T if x.stride(0) == 1 else x @ weights


def _gram(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, Scaled]:
    """Gram matrix of the columns, scaled to the Frobenius norm 1 of the features, and their norms."""
    whole = len(x) // CHUNK * CHUNK if len(x) > CHUNK else 0
    total = x[whole:].T @ x[whole:]
    if whole:
        parts = x[:whole].unflatten(0, (-1, CHUNK))
        total = total + torch.bmm(parts.transpose(1, 2), parts).sum(0, dtype=torch.float64)
    scale = from_squares(total.diagonal().double())
    return total.to(dtype).mul_(scale.factor.square()), scale


def _step_weights(
    d: torch.Tensor,
    own: torch.Tensor,
    terms: RowTerms,
    along: torch.Tensor,
    balance: torch.Tensor,
    scale: Scaled,
    sign: float,
) -> torch.Tensor:
    """w (d - along own) of each row, and of each column. Zero rows get no gradient, whatever the other model has."""
    half = (d - along.to(d.dtype)[:, None] * own) * (terms.weight * balance).to(d.dtype)[:, None]
    factor = scale.nonzero * (sign / len(d) * scale.factor.square())
    return (half + half.T) * factor.to(d.dtype)
