"""The k x k algorithm of FedSKD's similarity loss: O(n k^2) time, O(n k + k^2) memory, exact.

H and K are the feature matrices of two models, with n rows of k features each. The loss compares the similarities
between the rows of H, H H^T, with those between the rows of K.

It is faster than the n x n algorithms if n is well above k. Source: card A5.7 of FedSKD, the difference form, written
around the mean of the two models.

With the Gram matrices G = H H^T and Q = K K^T of two models and their rows g and q, row i adds 2 (1 - cos(g, q)) to the
loss. The code computes it from the difference d = q - g, because 1 - cos cancels where the models are close. It first
scales the two rows to about the same length: it multiplies row i of K by |h_i| / |k_i|, which changes no cosine. All
algorithms share `row_terms`, which computes the loss of each row and its weights in the gradient.

With M = (H + K) / 2 and E = K - H, the Gram rows of position i are, up to a factor that changes no cosine, g = H u and
q = K v with the unit rows u = h_i / |h_i| and v = k_i / |k_i|. Their difference is d = M e + E m with e = v - u and m =
(u + v) / 2. All inner products therefore follow from the k x k blocks of [M E]^T [M E], and nothing cancels where the
models are close.

The module has only the difference form, at 17 products of n k^2 against 14 of the plain k x k form. The gradient of the
plain form has an error of 5e-7 / sqrt(loss) in single precision. The error is above 1e-5 for losses under 2.5e-3, and
reaches 1e-3 if a row is far shorter in one model than in the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional as F

MIN_RELATIVE_NORM = 1e-16
"""Smallest norm of a row relative to the matrix's Frobenius norm. A shorter row counts as zero, because its gradient
would be above 1e16."""


_MAX_FLOAT64_ELEMENTS = 2**17  # elements that are converted to float64 at once


@dataclass
class RowScale:
    """Factor that scales a matrix to the Frobenius norm 1, and the row norms after scaling, in float64.

    Attributes:
        factor: 1 / Frobenius norm; 0 for a matrix of zeros. Scalar.
        norms: Norm of each row after scaling, shape (n,).
    """

    factor: torch.Tensor
    norms: torch.Tensor

    @property
    def nonzero(self) -> torch.Tensor:
        """True for each row longer than `MIN_RELATIVE_NORM`, shape (n,).

        A row with NaN counts as longer, so that NaN propagates.
        """
        return ~(self.norms <= MIN_RELATIVE_NORM)


@dataclass
class RowTerms:
    """Contribution of each row to the loss and the gradient, in float64, each of shape (n,).

    For each row, g and q are the rows of the Gram matrices H H^T and K K^T, and d = q - g.

    Attributes:
        loss: 2 (1 - cos(g, q)); 1 if the row is zero in exactly one model, 0 if it is zero in both.
        weight: 1 / (|g| |q|); 0 if either row is zero.
        along_g: <g, d> / |g|^2. The gradient by g is -2 weight (d - along_g g).
        along_q: <q, d> / |q|^2. The gradient by q is 2 weight (d - along_q q).
    """

    loss: torch.Tensor
    weight: torch.Tensor
    along_g: torch.Tensor
    along_q: torch.Tensor


def compute_row_scale(x: torch.Tensor) -> RowScale:
    """Return the factor that scales a matrix H to the Frobenius norm 1, with the row norms after scaling.

    Args:
        x: Transpose of H, one column for each row of H, shape (k, n).
    """
    parts = x.split(max(1, _MAX_FLOAT64_ELEMENTS // x.shape[1]))
    return scale_from_squared_norms(
        sum((part.double().square().sum(0) for part in parts), start=x.new_zeros((), dtype=torch.float64))
    )


def scale_from_squared_norms(squares: torch.Tensor) -> RowScale:
    """Return the same as `compute_row_scale`, from the squared norm of each row of the matrix, float64, shape (n,)."""
    total = squares.sum()
    factor = torch.where(total == 0, 0.0, total.rsqrt())
    return RowScale(factor, squares.sqrt() * factor)


def row_terms(
    gg: torch.Tensor, qq: torch.Tensor, gd: torch.Tensor, dd: torch.Tensor, g: RowScale, q: RowScale, dtype: torch.dtype
) -> RowTerms:
    """Return the loss and the gradient weights of each row, from inner products of the Gram rows g and q.

    Args:
        gg: |g|^2, float64, shape (n,) like the following three.
        qq: |q|^2.
        gd: <g, d> with d = q - g.
        dd: |d|^2.
        g: Scale of H. Zero rows are masked before any root or division.
        q: Scale of K.
        dtype: Dtype of the products behind the sums. A row whose squares underflow in it counts as zero, too.
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


CPU_CHUNK_ELEMENTS = 2**19
"""Number of elements of a k x chunk matrix on a CPU, where a chunk is the set of rows that are processed at once. Other
sizes are not faster, and this one is small compared with the data."""


GPU_CHUNK_ELEMENTS = 2**23
"""Number of elements of a k x chunk matrix on a GPU."""


@dataclass
class _ChunkRows:
    """One model's rows in one chunk.

    Attributes:
        unit: Unit rows as columns, shape (k, chunk).
        product: The model's k x k matrix times `unit`, shape (k, chunk).
        square: Inner product of `unit` and `product`, the squared length of each Gram row, shape (chunk,).
    """

    unit: torch.Tensor
    product: torch.Tensor
    square: torch.Tensor


def value_and_gradients(
    x: torch.Tensor, y: torch.Tensor, needed: tuple[bool, bool]
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Compute the similarity loss between two matrices and its gradients, without any n x n matrix.

    Args:
        x: Transpose of H, one column for each row of H, shape (k, n), float32 or float64.
        y: Transpose of K, shape (k', n).
        needed: Whether the gradients by `x` and by `y` are needed.

    Returns:
        The loss (float64 scalar), and the gradients in the shapes of `x` and `y`, None if not needed.
    """
    width = max(x.shape[0], y.shape[0])
    loss, gx, gy = _KxkComputation(_pad_rows(x, width), _pad_rows(y, width)).run(needed)
    return loss, None if gx is None else gx[: x.shape[0]], None if gy is None else gy[: y.shape[0]]


def _pad_rows(x: torch.Tensor, width: int) -> torch.Tensor:
    """Append rows of zeros until the matrix has `width` rows."""
    return x if x.shape[0] == width else F.pad(x, (0, 0, 0, width - x.shape[0]))


class _KxkComputation:
    """Computation of loss and gradients for one pair of matrices, in chunks of rows.

    Its steps: k x k blocks, then the terms and weighted blocks of each row, then the gradients.
    """

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y
        self.k, self.n = x.shape
        self.sx, self.sy = compute_row_scale(x), compute_row_scale(y)
        self.middle, self.blocks = self._blocks()
        s, t, u = self.blocks[: self.k, : self.k], self.blocks[: self.k, self.k :], self.blocks[self.k :, self.k :]
        mixed = (t + t.T) / 2
        self.own_x, self.own_y = s - mixed + u / 4, s + mixed + u / 4  # H^T H and K^T K

    def run(self, needed: tuple[bool, bool]) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Return the loss and the gradients that are needed."""
        gx = torch.empty_like(self.x) if needed[0] else None
        gy = torch.empty_like(self.y) if needed[1] else None
        wx, wy = (self.x.new_zeros(self.k, 2 * self.k) for _ in range(2))
        loss = torch.zeros((), dtype=torch.float64, device=self.x.device)
        for j in self._chunks():
            loss += self._add_chunk(j, gx, gy, wx, wy)
        if gx is not None:
            self._finish(gx, wx, self.sx, -2.0)
        if gy is not None:
            self._finish(gy, wy, self.sy, 2.0)
        return loss / self.n, gx, gy

    def _chunks(self) -> Iterator[slice]:
        """Yield slices of rows whose k x chunk matrices fit the limit of the device."""
        size = max(64, (CPU_CHUNK_ELEMENTS if self.x.device.type == "cpu" else GPU_CHUNK_ELEMENTS) // self.k)
        return (slice(i, min(self.n, i + size)) for i in range(0, self.n, size))

    def _blocks(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return [M; E], shape (2k, n), and its products with itself, shape (2k, 2k)."""
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

    def _add_chunk(
        self, j: slice, gx: torch.Tensor | None, gy: torch.Tensor | None, wx: torch.Tensor, wy: torch.Tensor
    ) -> torch.Tensor:
        """Add a chunk of rows to the loss and to the gradients, and return the chunk's loss.

        Write the first half of its gradients to `gx` and `gy`, and add to the weighted blocks `wx` and `wy` in place.
        """
        dtype = self.x.dtype
        u, v = _unit_columns(self.x[:, j], self.sx, j), _unit_columns(self.y[:, j], self.sy, j)
        e, m = (v - u).to(dtype), ((u + v) / 2).to(dtype)
        a, b = _chunk_rows(u.to(dtype), self.own_x), _chunk_rows(v.to(dtype), self.own_y)
        difference = self.blocks @ torch.cat([e, m])
        by_m, by_e = difference[: self.k], difference[self.k :]
        to_x, to_y = by_m - by_e / 2, by_m + by_e / 2  # H^T d and K^T d
        gd, dd = _dot(to_x, a.unit), _dot(by_m, e) + _dot(by_e, m)
        terms = row_terms(a.square, b.square, gd, dd, _slice_scale(self.sx, j), _slice_scale(self.sy, j), dtype)
        if gx is not None:
            _add_chunk_gradient(gx[:, j], wx, a, terms, terms.along_g, to_x, (e, m), 0.5, _inverse(self.sx.norms[j]))
        if gy is not None:
            along = torch.where(terms.weight == 0, 0.0, _dot(to_y, b.unit) / b.square)
            _add_chunk_gradient(gy[:, j], wy, b, terms, along, to_y, (e, m), -0.5, _inverse(self.sy.norms[j]))
        return terms.loss.sum()

    def _finish(self, gradient: torch.Tensor, weighted: torch.Tensor, scale: RowScale, sign: float) -> None:
        """Add the second half of a gradient and scale it, in place. The gradient of a zero row becomes exactly 0."""
        factor = (scale.nonzero * (sign / self.n * scale.factor)).to(gradient.dtype)
        for j in self._chunks():
            gradient[:, j] = torch.addmm(gradient[:, j], weighted, self.middle[:, j]).mul_(factor[j])


def _add_chunk_gradient(
    gradient: torch.Tensor,
    weighted: torch.Tensor,
    side: _ChunkRows,
    terms: RowTerms,
    along: torch.Tensor,
    to_difference: torch.Tensor,
    pair: tuple[torch.Tensor, torch.Tensor],
    half: float,
    inverse: torch.Tensor,
) -> None:
    """Write half of one model's gradient for a chunk, and add the chunk's weights of the other half.

    Both happen in place. The gradient of a row by its own Gram row is w (d - along g). It reaches row i directly as
    left factor, which is written to `gradient`. It reaches all other rows as right factor, which `weighted` collects.
    """
    dtype = gradient.dtype
    w, c, i = terms.weight.to(dtype), along.to(dtype), (terms.weight * inverse).to(dtype)
    torch.mul(to_difference - c * side.product, i, out=gradient)
    e, m = pair
    scaled_unit = c * side.unit
    weighted.addmm_(side.unit * w, torch.cat([e - scaled_unit, m + half * scaled_unit]).T)


def _unit_columns(x: torch.Tensor, scale: RowScale, j: slice) -> torch.Tensor:
    """Scale columns to norm 1 in float64; zero columns stay zero.

    In float64 the difference of two close columns is exact.
    """
    return x * (scale.factor * _inverse(scale.norms[j]))


def _inverse(norms: torch.Tensor) -> torch.Tensor:
    """Return 1 / norms, and 0 where the norm is 0."""
    return torch.where(norms == 0, 0.0, 1 / norms)


def _chunk_rows(unit: torch.Tensor, own: torch.Tensor) -> _ChunkRows:
    """Return one model's rows of a chunk with their products."""
    product = own @ unit
    return _ChunkRows(unit, product, _dot(product, unit))


def _dot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the inner products of the columns of two matrices, as float64."""
    return (a * b).sum(0).double()


def _slice_scale(scale: RowScale, j: slice) -> RowScale:
    """Return the scale of a slice of the rows."""
    return RowScale(scale.factor, scale.norms[j])
