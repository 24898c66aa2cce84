"""The n x n form of the similarity loss, tile by tile: O(n^2 k) time. It pays where n is not much above k.

Both Gram matrices are symmetric, and so is what their gradients multiply: only tiles on and above the diagonal are
made, each serves its rows and its columns. They are kept for the gradient where they are small, else made again. Few
rows are the matter of `medfl.losses.small`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from medfl.losses.rows import RowTerms, Scaled, row_terms, scaled

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
        one, balance = torch.ones_like(terms.weight), self.balance.double()
        self._prepare(self.a, wanted[0], terms.weight, terms.along_g, one, -2.0)
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
        found = self.kept.get((rows.start, columns.start))
        if found is None:
            g, q = (model.x[:, rows].T @ model.x[:, columns] for model in (self.a, self.b))
            found = g, q
            if self.keep:
                self.kept[rows.start, columns.start] = found
        return found

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
