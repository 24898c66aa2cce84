"""The k x k form of the similarity loss: O(n k^2) time, O(n k + k^2) memory, exact. It pays where n is well above k.

Source: card A5.7 of FedSKD, the difference form, written around the middle of the two models. With M = (H + K) / 2 and
E = K - H the Gram rows of position i are, up to a factor that no cosine sees, g = H u and q = K v with the unit rows
u = h_i / |h_i| and v = k_i / |k_i|. Their difference is d = M e + E m with e = v - u and m = (u + v) / 2, so that all
inner products follow from the k x k blocks of [M E]^T [M E]; nothing cancels where the models are close.

With the Gram matrices G = H H^T and Q = K K^T of two models and their rows g and q, row i adds 2 (1 - cos(g, q)) to
the loss. It is computed from the difference d = q - g, since 1 - cos cancels where the models are close. For that, the
two rows are first brought to about the same length: row i of K counts times `balance` = |h_i| / |k_i|, which changes no
cosine. What each row needs (its norm, its share of the loss, its weights in the gradient) is the same in both forms.

Why the difference form alone, at 17 products of n k^2 against 14 of the plain k x k form: the plain form's gradient is
off by 5e-7 / sqrt(loss) in single precision, above 1e-5 for losses under 2.5e-3, and by 1e-3 where a row is far shorter
in one model than in the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional as F

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
    single = (has_g ^ has_q).to(loss.dtype)
    return RowTerms(torch.where(both, loss, single), both / length, gd / gg, (gd + dd) / qq)


CHUNK_ELEMENTS = 2**19  # of a k x chunk matrix on a CPU: as fast as any, and small beside the data


GPU_CHUNK_ELEMENTS = 2**23


@dataclass
class _Side:
    """One model in one chunk of rows: its unit rows, their products with its own k x k matrix, its length."""

    unit: torch.Tensor
    product: torch.Tensor
    square: torch.Tensor


def value_and_gradients(
    x: torch.Tensor, y: torch.Tensor, wanted: tuple[bool, bool]
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """The loss between two matrices, and its gradients, without any n x n matrix.

    Args:
        x: A column for each row of H, shape (k, n), float32 or float64.
        y: The same for K, shape (k', n).
        wanted: Whether the gradient by `x`, by `y` is needed.

    Returns:
        The loss (float64, shape ()), and the gradients in the shapes of `x` and `y`, None where not wanted.
    """
    width = max(x.shape[0], y.shape[0])
    loss, gx, gy = _Form(_padded(x, width), _padded(y, width)).run(wanted)
    return loss, None if gx is None else gx[: x.shape[0]], None if gy is None else gy[: y.shape[0]]


def _padded(x: torch.Tensor, width: int) -> torch.Tensor:
    return x if x.shape[0] == width else F.pad(x, (0, 0, 0, width - x.shape[0]))


class _Form:
    """The steps of the form: k x k blocks, then each row's terms and weighted blocks, then the gradients."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y
        self.k, self.n = x.shape
        self.sx, self.sy = scaled(x), scaled(y)
        self.middle, self.blocks = self._blocks()
        s, t, u = self.blocks[: self.k, : self.k], self.blocks[: self.k, self.k :], self.blocks[self.k :, self.k :]
        mixed = (t + t.T) / 2
        self.own_x, self.own_y = s - mixed + u / 4, s + mixed + u / 4  # H^T H and K^T K

    def run(self, wanted: tuple[bool, bool]) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Loss and wanted gradients."""
        gx = torch.empty_like(self.x) if wanted[0] else None
        gy = torch.empty_like(self.y) if wanted[1] else None
        wx, wy = (self.x.new_zeros(self.k, 2 * self.k) for _ in range(2))
        loss = torch.zeros((), dtype=torch.float64, device=self.x.device)
        for j in self._chunks():
            loss += self._rows(j, gx, gy, wx, wy)
        if gx is not None:
            self._finish(gx, wx, self.sx, -2.0)
        if gy is not None:
            self._finish(gy, wy, self.sy, 2.0)
        return loss / self.n, gx, gy

    def _chunks(self) -> Iterator[slice]:
        size = max(64, (CHUNK_ELEMENTS if self.x.device.type == "cpu" else GPU_CHUNK_ELEMENTS) // self.k)
        return (slice(i, min(self.n, i + size)) for i in range(0, self.n, size))

    def _blocks(self) -> tuple[torch.Tensor, torch.Tensor]:
        """[M; E], shape (2k, n), and its products with itself, shape (2k, 2k)."""
        k, middle = self.k, self.x.new_empty(2 * self.k, self.n)
        blocks = self.x.new_zeros(2 * k, 2 * k)
        for j in self._chunks():
            h, q = self.x[:, j].double() * self.sx.factor, self.y[:, j].double() * self.sy.factor
            middle[k:, j] = q - h
            middle[:k, j] = h.add_(q).div_(2)
            part = middle[:, j]
            blocks[:k].addmm_(part[:k], part.T)
            blocks[k:, k:].addmm_(part[k:], part[k:].T)
        blocks[k:, :k] = blocks[:k, k:].T
        return middle, blocks

    def _rows(
        self, j: slice, gx: torch.Tensor | None, gy: torch.Tensor | None, wx: torch.Tensor, wy: torch.Tensor
    ) -> torch.Tensor:
        """Loss of a chunk of rows; writes the first half of their gradients and adds to the weighted blocks."""
        dtype = self.x.dtype
        u, v = _unit(self.x[:, j], self.sx, j), _unit(self.y[:, j], self.sy, j)
        e, m = (v - u).to(dtype), ((u + v) / 2).to(dtype)
        a, b = _side(u.to(dtype), self.own_x), _side(v.to(dtype), self.own_y)
        difference = self.blocks @ torch.cat([e, m])
        by_m, by_e = difference[: self.k], difference[self.k :]
        to_x, to_y = by_m - by_e / 2, by_m + by_e / 2  # H^T d and K^T d
        gd, dd = _dot(to_x, a.unit), _dot(by_m, e) + _dot(by_e, m)
        terms = row_terms(a.square, b.square, gd, dd, _part(self.sx, j), _part(self.sy, j), dtype)
        if gx is not None:
            _add(gx[:, j], wx, a, terms, terms.along_g, to_x, (e, m), 0.5, _inverse(self.sx.norms[j]))
        if gy is not None:
            along = torch.where(terms.weight == 0, 0.0, _dot(to_y, b.unit) / b.square)
            _add(gy[:, j], wy, b, terms, along, to_y, (e, m), -0.5, _inverse(self.sy.norms[j]))
        return terms.loss.sum()

    def _finish(self, gradient: torch.Tensor, weighted: torch.Tensor, scale: Scaled, sign: float) -> None:
        """Add the second half of a gradient, then scale it; the gradient of a zero row is exactly 0."""
        factor = (scale.nonzero * (sign / self.n * scale.factor)).to(gradient.dtype)
        for j in self._chunks():
            gradient[:, j] = torch.addmm(gradient[:, j], weighted, self.middle[:, j]).mul_(factor[j])


def _add(
    gradient: torch.Tensor,
    weighted: torch.Tensor,
    side: _Side,
    terms: RowTerms,
    along: torch.Tensor,
    to_difference: torch.Tensor,
    pair: tuple[torch.Tensor, torch.Tensor],
    half: float,
    inverse: torch.Tensor,
) -> None:
    """One model's part of a chunk: the half of the gradient that rows get as left factors, and the weights of the rest.

    A row's gradient by its own Gram row is w (d - along g); it reaches row i directly (left factor) and all others
    through the right factor, which the weighted blocks collect.
    """
    dtype = gradient.dtype
    w, c, i = terms.weight.to(dtype), along.to(dtype), (terms.weight * inverse).to(dtype)
    torch.mul(to_difference - c * side.product, i, out=gradient)
    e, m = pair
    scaled_unit = c * side.unit
    weighted.addmm_(side.unit * w, torch.cat([e - scaled_unit, m + half * scaled_unit]).T)


def _unit(x: torch.Tensor, scale: Scaled, j: slice) -> torch.Tensor:
    """Columns of norm 1 (zero columns stay zero), in float64 so that the difference of two close ones is exact."""
    return x * (scale.factor * _inverse(scale.norms[j]))


def _inverse(norms: torch.Tensor) -> torch.Tensor:
    return torch.where(norms == 0, 0.0, 1 / norms)


def _side(unit: torch.Tensor, own: torch.Tensor) -> _Side:
    product = own @ unit
    return _Side(unit, product, _dot(product, unit))


def _dot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a * b).sum(0).double()


def _part(scale: Scaled, j: slice) -> Scaled:
    return Scaled(scale.factor, scale.norms[j])
