"""The n x n algorithms of FedSKD's similarity loss: O(n^2 k) time. They are faster if n is not much above k.

H and K are the feature matrices of two models, with n rows of k features each. The loss compares the Gram matrices H
H^T and K K^T, which contain the similarities between rows.

Both Gram matrices are symmetric, and so are the matrices that their gradients are multiplied with.

Many rows are processed in tiles (`value_and_gradients`). Only tiles on and above the diagonal are computed, and each
serves its rows and its columns. Tiles that fit into memory are stored for the gradient; otherwise they are computed
again.

Few rows, such as a batch or the regions of an atlas, are processed at once (`value_and_weights`). There n is far below
k: one product of a model's features computes its Gram matrix, and one product computes its gradient. No other operation
touches the features.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from medfl_methods.fedskd.similarity_kxk import (
    RowScale,
    RowTerms,
    compute_row_scale,
    row_terms,
    scale_from_squared_norms,
)

CPU_TILE_ROWS = 512
"""Number of rows and columns of a tile of the n x n matrices on a CPU."""


GPU_TILE_ROWS = 4096
"""Number of rows and columns of a tile of the n x n matrices on a GPU."""


MAX_STORED_GRAM_BYTES = 2**28
"""Maximum size in bytes of one model's Gram matrix for which tiles are stored; above it they are computed twice."""


Tile = tuple[slice, slice]
"""Part of an n x n matrix: slice of rows and slice of columns. A tile off the diagonal also represents its mirror
image."""


def value_and_gradients(
    x: torch.Tensor, y: torch.Tensor, needed: tuple[bool, bool]
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Compute the similarity loss between two matrices and its gradients, from tiles of the n x n matrices.

    Args:
        x: Transpose of H, one column for each row of H, shape (k, n), float32 or float64.
        y: Transpose of K, shape (k', n).
        needed: Whether the gradients by `x` and by `y` are needed.

    Returns:
        The loss (float64 scalar), and the gradients in the shapes of `x` and `y`, None if not needed.
    """
    computation = _TiledComputation(x, y)
    terms = computation.terms()
    if any(needed):
        computation.add_gradients(terms, needed)
    return terms.loss.mean(), computation.a.gradient, computation.b.gradient


@dataclass
class _ModelFeatures:
    """One model's features and its gradient.

    Attributes:
        x: Features, scaled to the Frobenius norm 1, one column for each row, shape (k, n).
        scale: Scale of the features.
        gradient: Gradient, shape (k, n), or None.
        difference_weights: Weight of d of each row in the gradient, shape (n,).
        gram_weights: Weight of the model's own Gram row of each row in the gradient, shape (n,).
        factor: Factor of each column of the finished gradient, shape (n,).
    """

    x: torch.Tensor
    scale: RowScale
    gradient: torch.Tensor | None = None
    difference_weights: torch.Tensor | None = None
    gram_weights: torch.Tensor | None = None
    factor: torch.Tensor | None = None


class _TiledComputation:
    """Computation for one pair of matrices: sums over Gram rows, then the terms of each row, then the gradients."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.n = x.shape[1]
        self.dtype = x.dtype
        self.a, self.b = _model_features(x), _model_features(y)
        both = self.a.scale.nonzero & self.b.scale.nonzero
        balance = torch.where(both, self.a.scale.norms, 1.0) / torch.where(both, self.b.scale.norms, 1.0)
        self.balance = balance.to(self.dtype)
        self.stores_tiles = self.n**2 * self.dtype.itemsize <= MAX_STORED_GRAM_BYTES
        self.stored_tiles: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def terms(self) -> RowTerms:
        """Return the loss and the gradient weights of each row."""
        sums = torch.zeros(4, self.n, dtype=torch.float64, device=self.balance.device)
        for rows, columns in self._tiles():
            g, q = self._grams(rows, columns)
            by_rows, by_columns = self._differences(g, q, (rows, columns))
            sums[:, rows] += _tile_sums(g, q, by_rows, 1)
            if rows != columns:
                sums[:, columns] += _tile_sums(g, q, by_columns, 0)
        gg, qq, gd, dd = sums
        qq = qq * self.balance.double().square()
        return row_terms(gg, qq, gd, dd, self.a.scale, self.b.scale, self.dtype)

    def add_gradients(self, terms: RowTerms, needed: tuple[bool, bool]) -> None:
        """Compute the gradients of the models that need one, in place."""
        ones, balance = torch.ones_like(terms.weight), self.balance.double()
        self._prepare_gradient(self.a, needed[0], terms.weight, terms.along_g, ones, -2.0)
        self._prepare_gradient(self.b, needed[1], terms.weight, terms.along_q, balance, 2.0)
        for tile in self._tiles():
            g, q = self._grams(*tile)
            differences = self._differences(g, q, tile)
            for model, own in ((self.a, g), (self.b, q)):
                if model.gradient is not None:
                    self._add_tile(model, _tile_weights(differences, own, model, tile), tile)
        for model in (self.a, self.b):
            if model.gradient is not None and model.factor is not None:
                model.gradient.mul_(model.factor)

    def _prepare_gradient(
        self,
        model: _ModelFeatures,
        needed: bool,
        weight: torch.Tensor,
        along: torch.Tensor,
        balance: torch.Tensor,
        sign: float,
    ) -> None:
        """Allocate a model's gradient and set the weights of its rows, if it needs a gradient."""
        if not needed:
            return
        model.gradient = torch.empty_like(model.x)
        model.difference_weights = (weight * balance).to(self.dtype)
        model.gram_weights = (weight * along * balance.square()).to(self.dtype)
        model.factor = (model.scale.nonzero * (sign / self.n * model.scale.factor)).to(self.dtype)

    def _tiles(self) -> Iterator[Tile]:
        """Yield the tiles on and above the diagonal."""
        size = CPU_TILE_ROWS if self.balance.device.type == "cpu" else GPU_TILE_ROWS
        parts = [slice(i, min(self.n, i + size)) for i in range(0, self.n, size)]
        return ((rows, columns) for i, rows in enumerate(parts) for columns in parts[i:])

    def _grams(self, rows: slice, columns: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a tile of G and of Q. Store it if the matrices are small enough."""
        grams = self.stored_tiles.get((rows.start, columns.start))
        if grams is None:
            g, q = (model.x[:, rows].T @ model.x[:, columns] for model in (self.a, self.b))
            grams = g, q
            if self.stores_tiles:
                self.stored_tiles[rows.start, columns.start] = grams
        return grams

    def _differences(self, g: torch.Tensor, q: torch.Tensor, tile: Tile) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the tile of d = q - g twice: with q scaled by the balance of the rows, and of the columns."""
        rows, columns = tile
        return (q * self.balance[rows, None]).sub_(g), (q * self.balance[columns]).sub_(g)

    def _add_tile(self, model: _ModelFeatures, weights: torch.Tensor, tile: Tile) -> None:
        """Add a tile's part to a gradient in place.

        The first row of tiles overwrites each column instead, since the gradient starts as uninitialised memory.
        """
        assert model.gradient is not None
        rows, columns = tile
        model.gradient[:, columns].addmm_(model.x[:, rows], weights, beta=float(rows.start > 0))
        if rows != columns:
            model.gradient[:, rows].addmm_(model.x[:, columns], weights.T)


def _model_features(x: torch.Tensor) -> _ModelFeatures:
    """Scale the features of a model to the Frobenius norm 1."""
    scale = compute_row_scale(x)
    return _ModelFeatures(x * scale.factor.to(x.dtype), scale)


def _tile_sums(g: torch.Tensor, q: torch.Tensor, d: torch.Tensor, dim: int) -> torch.Tensor:
    """Return |g|^2, |q|^2, <g, d> and |d|^2 over one axis of a tile."""
    return torch.stack([_squares(g, dim), _squares(q, dim), (g * d).sum(dim), _squares(d, dim)]).double()


def _squares(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Return sums of squares. Along the last axis a norm is faster than squaring."""
    return torch.linalg.vector_norm(x, dim=1).square() if dim else x.square().sum(0)


def _tile_weights(
    differences: tuple[torch.Tensor, torch.Tensor], own: torch.Tensor, model: _ModelFeatures, tile: Tile
) -> torch.Tensor:
    """Return the n x n weights of a tile: w (d - along own) of its rows plus the same of its columns."""
    w, c = model.difference_weights, model.gram_weights
    assert w is not None
    assert c is not None
    (by_rows, by_columns), (rows, columns) = differences, tile
    weights = by_rows * w[rows, None]
    weights += by_columns * w[columns]
    weights -= (c[rows, None] + c[columns]) * own
    return weights


MAX_SMALL_ROWS = 512
"""Maximum number of rows for which `value_and_weights` is used instead of `value_and_gradients`."""


MAX_FLOAT64_ROWS = 64
"""Maximum number of rows for which n x n matrices are float64. Beside the products that costs nothing, and it avoids
rounding."""


MAX_PRODUCT_ELEMENTS = 4096
"""Maximum number of elements of a row in one product of single precision. Longer rows are sums of such products in
float64. Without this the gradient of the batch loss has an error of 1e-4 at 8 rows of 884,736 features, the first stage
of a 3-D ResNet at 48^3."""


def value_and_weights(
    x: torch.Tensor, y: torch.Tensor, needed: tuple[bool, bool]
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Compute the similarity loss between two matrices with few rows, and the n x n weights that give its gradients.

    Args:
        x: Transpose of H, one column for each row of H, shape (k, n), float32 or float64. The squared norm of H must
            fit into its dtype.
        y: Transpose of K, shape (k', n).
        needed: Whether the gradients by `x` and by `y` are needed.

    Returns:
        The loss (float64 scalar), and the weights w (n, n) with gradients x @ w and y @ w, None if not needed.
    """
    dtype = torch.float64 if x.shape[1] <= MAX_FLOAT64_ROWS else x.dtype
    g, a = _gram(x, dtype)
    q, b = _gram(y, dtype)
    both = a.nonzero & b.nonzero
    balance = torch.where(both, a.norms, 1.0) / torch.where(both, b.norms, 1.0)
    row = balance.to(dtype)[:, None]
    d = (q * row).sub_(g)
    gg, qq, dd = (torch.linalg.vector_norm(z, dim=1).double().square() for z in (g, q, d))
    terms = row_terms(gg, qq * row[:, 0].double().square(), (g * d).sum(1).double(), dd, a, b, dtype)
    wx = (
        _gradient_weights(d, g, terms, terms.along_g, torch.ones_like(balance), a, -2.0).to(x.dtype)
        if needed[0]
        else None
    )
    wy = _gradient_weights(d, q * row, terms, terms.along_q, balance, b, 2.0).to(y.dtype) if needed[1] else None
    return terms.loss.mean(), wx, wy


def multiply(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the matrix product x @ weights, in the memory layout of `x`."""
    return (weights.T @ x.T).T if x.stride(0) == 1 else x @ weights


def _gram(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, RowScale]:
    """Return the Gram matrix of the columns, with the features scaled to the Frobenius norm 1, and that scale."""
    whole = len(x) // MAX_PRODUCT_ELEMENTS * MAX_PRODUCT_ELEMENTS if len(x) > MAX_PRODUCT_ELEMENTS else 0
    total = x[whole:].T @ x[whole:]
    if whole:
        parts = x[:whole].unflatten(0, (-1, MAX_PRODUCT_ELEMENTS))
        total = total + torch.bmm(parts.transpose(1, 2), parts).sum(0, dtype=torch.float64)
    scale = scale_from_squared_norms(total.diagonal().double())
    return total.to(dtype).mul_(scale.factor.square()), scale


def _gradient_weights(
    d: torch.Tensor,
    own: torch.Tensor,
    terms: RowTerms,
    along: torch.Tensor,
    balance: torch.Tensor,
    scale: RowScale,
    sign: float,
) -> torch.Tensor:
    """Return w (d - along own) of each row plus the same of each column. The gradient of a zero row is 0."""
    half = (d - along.to(d.dtype)[:, None] * own) * (terms.weight * balance).to(d.dtype)[:, None]
    factor = scale.nonzero * (sign / len(d) * scale.factor.square())
    return (half + half.T) * factor.to(d.dtype)
