"""What the similarity loss needs to know about each row: its norm, its share of the loss, its weights in the gradient.

With the Gram matrices G = H H^T and Q = K K^T of two models and their rows g and q, row i adds 2 (1 - cos(g, q)) to the
loss. It is computed from the difference d = q - g, since 1 - cos cancels where the models are close. For that, the two
rows are first brought to about the same length: row i of K counts times `balance` = |h_i| / |k_i|, which changes no
cosine.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

SHORTEST = 1e-16
"""A row not longer than this part of the Frobenius norm counts as zero: its gradient would be above 1e16."""

_PART = 2**17  # elements that become float64 at once


@dataclass
class Scaled:
    """How to scale a matrix to the Frobenius norm 1, in float64.

    Attributes:
        factor: 1 / Frobenius norm; 0 for a matrix of zeros. Shape ().
        norms: Norm of each row after scaling, shape (n,).
    """

    factor: torch.Tensor
    norms: torch.Tensor

    @property
    def nonzero(self) -> torch.Tensor:
        """Which rows are longer than `SHORTEST`, shape (n,); one with NaN counts as such, so that NaN shows."""
        return ~(self.norms <= SHORTEST)


@dataclass
class RowTerms:
    """Share of each row in loss and gradient, in float64, each of shape (n,).

    Attributes:
        loss: 2 (1 - cos), or 1 where the row is zero in exactly one model, or 0 where it is zero in both.
        weight: 1 / (|g| |q|), 0 where either row is zero.
        along_g: <g, d> / |g|^2: the gradient by g is -2 weight (d - along_g g).
        along_q: <q, d> / |q|^2: the gradient by q is 2 weight (d - along_q q).
    """

    loss: torch.Tensor
    weight: torch.Tensor
    along_g: torch.Tensor
    along_q: torch.Tensor


def scaled(x: torch.Tensor) -> Scaled:
    """Frobenius norm and row norms, from sums in float64.

    Args:
        x: A column for each row of H, shape (k, n).
    """
    parts = x.split(max(1, _PART // x.shape[1]))
    return from_squares(
        sum((part.double().square().sum(0) for part in parts), start=x.new_zeros((), dtype=torch.float64))
    )


def from_squares(squares: torch.Tensor) -> Scaled:
    """The same from the squared norm of each row, float64, shape (n,)."""
    total = squares.sum()
    factor = torch.where(total == 0, 0.0, total.rsqrt())
    return Scaled(factor, squares.sqrt() * factor)


def row_terms(
    gg: torch.Tensor, qq: torch.Tensor, gd: torch.Tensor, dd: torch.Tensor, g: Scaled, q: Scaled, dtype: torch.dtype
) -> RowTerms:
    """Loss and weights of each row, from sums over its Gram rows.

    Args:
        gg: |g|^2, float64, shape (n,) like all others.
        qq: |q|^2.
        gd: <g, d> with d = q - g.
        dd: |d|^2.
        g: Norms of the rows of H. Zero rows are masked before any root or division.
        q: Norms of the rows of K.
        dtype: Of the products behind the sums. A row whose squares it can't hold counts as zero, too.
    """
    smallest = torch.finfo(dtype).tiny * 1e6
    has_g, has_q = g.nonzero & ~(gg < smallest), q.nonzero & ~(qq < smallest)
    both = has_g & has_q
    gg, qq = torch.where(both, gg, 1.0), torch.where(both, qq, 1.0)
    gd, dd = torch.where(both, gd, 0.0), torch.where(both, dd, 0.0)
    length, product = (gg * qq).sqrt(), gg + gd
    close = (gg * dd - gd.square()).clamp_min(0) / (length * (length + product.clamp_min(0)))
    far = 1 - product / length
    loss = 2 * torch.where(product < 0, far, close)
    one = (has_g ^ has_q).to(loss.dtype)
    return RowTerms(torch.where(both, loss, one), both / length, gd / gg, (gd + dd) / qq)
