"""The n x n form of the similarity loss: O(n^2 k) time. It pays where n is not much above k.

Both Gram matrices are symmetric, and so is what their gradients multiply. Many rows go tile by tile: only tiles on and
above the diagonal are made, each serves its rows and its columns, and they are kept for the gradient where they are
small, else made again. For few rows, such as a batch or the regions of an atlas, with n far below k, one product of
each model's features makes its whole Gram matrix and one its gradient; nothing but these products touches them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from medfl_methods.fedskd.similarity_kxk import RowTerms, Scaled, from_squares, row_terms, scaled

TILE = 512  # rows of a tile on a CPU


GPU_TILE = 4096


KEPT_BYTES = 2**28  # tiles of both models together that may be kept


Tile = tuple[slice, slice]
"""Rows and columns; a tile off the diagonal stands for its mirror image, too."""


def value_and_gradients(
    x: torch.Tensor, y: torch.Tensor, wanted: tuple[bool, bool]
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """The loss between two matrices, and its gradients, from tiles of the n x n matrices.

    Args:
        x: A column for each row of H, shape (k, n), float32 or float64.
        y: The same for K, shape (k', n).
        wanted: Whether the gradient by `x`, by `y` is needed.

    Returns:
        The loss (float64, shape ()), and the gradients in the shapes of `x` and `y`, None where not wanted.
    """
    form = _Form(x, y)
    terms = form.terms()
    if any(wanted):
        form.add_gradients(terms, wanted)
    return terms.loss.mean(), form.a.gradient, form.b.gradient


@dataclass
class _Model:
    """One model: its features (k, n) and their norms; its gradient, each row's weights of d and of its own Gram row."""

    x: torch.Tensor
    scale: Scaled
    gradient: torch.Tensor | None = None
    of_difference: torch.Tensor | None = None
    of_own: torch.Tensor | None = None
    factor: torch.Tensor | None = None


class _Form:
    """The steps of the form: sums over Gram rows, then each row's terms, then the gradients."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.n = x.shape[1]
        self.dtype = x.dtype
        self.a, self.b = _model(x), _model(y)
        both = self.a.scale.nonzero & self.b.scale.nonzero
        balance = torch.where(both, self.a.scale.norms, 1.0) / torch.where(both, self.b.scale.norms, 1.0)
        self.balance = balance.to(self.dtype)
        self.keep = self.n**2 * self.dtype.itemsize <= KEPT_BYTES
        self.kept: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def terms(self) -> RowTerms:
        """Loss and weights of each row."""
        sums = torch.zeros(4, self.n, dtype=torch.float64, device=self.balance.device)
        for rows, columns in self._tiles():
            g, q = self._grams(rows, columns)
            by_rows, by_columns = self._differences(g, q, (rows, columns))
            sums[:, rows] += _sums(g, q, by_rows, 1)
            if rows != columns:
                sums[:, columns] += _sums(g, q, by_columns, 0)
        gg, qq, gd, dd = sums
        qq = qq * self.balance.double().square()
        return row_terms(gg, qq, gd, dd, self.a.scale, self.b.scale, self.dtype)

    def add_gradients(self, terms: RowTerms, wanted: tuple[bool, bool]) -> None:
        """Fill in the gradients of the models that want one."""
        ones, balance = torch.ones_like(terms.weight), self.balance.double()
        self._prepare(self.a, wanted[0], terms.weight, terms.along_g, ones, -2.0)
        self._prepare(self.b, wanted[1], terms.weight, terms.along_q, balance, 2.0)
        for tile in self._tiles():
            g, q = self._grams(*tile)
            differences = self._differences(g, q, tile)
            for model, own in ((self.a, g), (self.b, q)):
                if model.gradient is not None:
                    self._add(model, _weights(differences, own, model, tile), tile)
        for model in (self.a, self.b):
            if model.gradient is not None and model.factor is not None:
                model.gradient.mul_(model.factor)

    def _prepare(
        self, model: _Model, wanted: bool, weight: torch.Tensor, along: torch.Tensor, balance: torch.Tensor, sign: float
    ) -> None:
        if not wanted:
            return
        model.gradient = torch.empty_like(model.x)
        model.of_difference = (weight * balance).to(self.dtype)
        model.of_own = (weight * along * balance.square()).to(self.dtype)
        model.factor = (model.scale.nonzero * (sign / self.n * model.scale.factor)).to(self.dtype)

    def _tiles(self) -> Iterator[Tile]:
        size = TILE if self.balance.device.type == "cpu" else GPU_TILE
        parts = [slice(i, min(self.n, i + size)) for i in range(0, self.n, size)]
        return ((rows, columns) for i, rows in enumerate(parts) for columns in parts[i:])

    def _grams(self, rows: slice, columns: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """A tile of G and of Q."""
        grams = self.kept.get((rows.start, columns.start))
        if grams is None:
            g, q = (model.x[:, rows].T @ model.x[:, columns] for model in (self.a, self.b))
            grams = g, q
            if self.keep:
                self.kept[rows.start, columns.start] = grams
        return grams

    def _differences(self, g: torch.Tensor, q: torch.Tensor, tile: Tile) -> tuple[torch.Tensor, torch.Tensor]:
        """d = q - g, with q brought to the length of g by the balance of the rows, and by that of the columns."""
        rows, columns = tile
        return (q * self.balance[rows, None]).sub_(g), (q * self.balance[columns]).sub_(g)

    def _add(self, model: _Model, weights: torch.Tensor, tile: Tile) -> None:
        """Add a tile's part of a gradient; the first row of tiles meets every column for the first time."""
        assert model.gradient is not None
        rows, columns = tile
        model.gradient[:, columns].addmm_(model.x[:, rows], weights, beta=float(rows.start > 0))
        if rows != columns:
            model.gradient[:, rows].addmm_(model.x[:, columns], weights.T)


def _model(x: torch.Tensor) -> _Model:
    scale = scaled(x)
    return _Model(x * scale.factor.to(x.dtype), scale)


def _sums(g: torch.Tensor, q: torch.Tensor, d: torch.Tensor, dim: int) -> torch.Tensor:
    """|g|^2, |q|^2, <g, d> and |d|^2 over one axis of a tile."""
    return torch.stack([_squares(g, dim), _squares(q, dim), (g * d).sum(dim), _squares(d, dim)]).double()


def _squares(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Sums of squares; a norm is the faster way to them along the last axis only."""
    return torch.linalg.vector_norm(x, dim=1).square() if dim else x.square().sum(0)


def _weights(
    differences: tuple[torch.Tensor, torch.Tensor], own: torch.Tensor, model: _Model, tile: Tile
) -> torch.Tensor:
    """What a tile multiplies the features with: w (d - along own) of its rows, and of its columns."""
    w, c = model.of_difference, model.of_own
    assert w is not None
    assert c is not None
    (by_rows, by_columns), (rows, columns) = differences, tile
    weights = by_rows * w[rows, None]
    weights += by_columns * w[columns]
    weights -= (c[rows, None] + c[columns]) * own
    return weights


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
