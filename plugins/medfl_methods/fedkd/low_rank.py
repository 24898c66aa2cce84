"""Low-rank updates: truncation to the singular directions with most of the energy, and transfer as factors.

A tensor of more than one axis counts as a matrix of its first axis by all others: a kernel (out, in, h, w) is a matrix
of out by in h w.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import torch

from medfl.contract import PayloadKind
from medfl.types import Meta, Tensors

RELATIVE_ROUNDING = 1e-5
"""Fraction of the largest singular value below which other singular values count as rounding errors."""

MAX_MATRIX_ELEMENTS = 1 << 26
"""Maximum number of elements of a matrix that is sent as factors. The limit protects a receiver, which multiplies
them."""


def smallest_rank(singular: torch.Tensor, energy: float) -> int:
    """Return the smallest rank, >= 1, that keeps a given fraction of the energy (sum of squared singular values).

    Args:
        singular: Singular values, descending, (k,), k >= 1.
        energy: Fraction of the energy to keep, in (0, 1].
    """
    squares = singular.double().square().cumsum(0)
    return min(int((squares < energy * squares[-1]).sum()) + 1, len(singular))


def is_smaller_as_factors(rank: int, rows: int, columns: int) -> bool:
    """Return whether the factors u, s and v of this rank have fewer elements than a matrix of rows x columns."""
    return rank * (rows + columns + 1) < rows * columns


def truncate_rank(update: torch.Tensor, energy: float, max_rank: int | None = None) -> torch.Tensor:
    """Return an update truncated to the smallest rank that keeps the given fraction of its energy.

    Args:
        update: Tensor of any shape.
        energy: Fraction of the sum of squared singular values, in (0, 1].
        max_rank: Maximum rank, >= 1, or None.

    Returns:
        Tensor of the same shape and dtype. It is the update itself if it has one axis or no non-zero element, is not
        finite, or if factors would not be smaller.
    """
    if not _is_matrix(update) or not bool(update.isfinite().all()) or not bool(update.any()):
        return update
    u, s, v = singular_values(update.flatten(1).double())
    rank = min(smallest_rank(s, energy), max_rank or len(s))
    if not is_smaller_as_factors(rank, u.shape[0], v.shape[1]):
        return update
    return ((u[:, :rank] * s[:rank]) @ v[:rank]).to(update.dtype).reshape(update.shape)


def singular_values(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute the reduced singular value decomposition of a finite matrix.

    PyTorch uses LAPACK's divide-and-conquer routine on the CPU, which does not converge for some finite matrices (seen
    for an update with many rows and columns of zeros). For these the slower QR iteration is used.

    Args:
        matrix: Matrix of shape (m, n), in double precision.

    Returns:
        Factors u (m, k), s (k,) and v (k, n) with k = min(m, n), as from `torch.linalg.svd`.
    """
    try:
        u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    except torch.linalg.LinAlgError:
        from scipy.linalg import svd  # rarely needed, and slow to import

        factors = svd(matrix.cpu().numpy(), full_matrices=False, lapack_driver="gesvd")
        u, s, v = (torch.from_numpy(factor).to(matrix) for factor in factors)
    return u, s, v


class LowRankFactors:
    """Filter (`medfl.contract.Filter`) that sends a matrix of low rank as three factors.

    A filter changes the tensors of a message before sending (encode) and after receiving (decode). For an m x n matrix
    of rank r the factors are u (m, r), s (r,) and v (r, n), as in a singular value decomposition.
    """

    @property
    def kinds(self) -> Collection[PayloadKind]:
        """Kinds of tensors that the filter applies to: updates."""
        return frozenset[PayloadKind]({"update"})

    def encode(self, tensors: Tensors, rng: torch.Generator) -> tuple[Tensors, Meta]:
        """Replace matrices by their factors where these have fewer elements; leave other tensors unchanged.

        Args:
            tensors: Tensors of a message.
            rng: Random stream; not used.

        Returns:
            The encoded tensors, and metadata with the key ``shapes``: the shapes of the replaced matrices.
        """
        encoded, shapes = Tensors(), Meta()
        for name, tensor in tensors.items():
            if not _is_matrix(tensor) or tensor.numel() > MAX_MATRIX_ELEMENTS:
                encoded[name] = tensor
                continue
            u, s, v = singular_values(tensor.flatten(1).double())
            rank = max(int((s > RELATIVE_ROUNDING * s[0]).sum()), 1)
            if not is_smaller_as_factors(rank, u.shape[0], v.shape[1]):
                encoded[name] = tensor
                continue
            shapes[name] = list(tensor.shape)
            for part, factor in (("u", u[:, :rank]), ("s", s[:rank]), ("v", v[:rank])):
                encoded[f"{name}:{part}"] = factor.to(tensor.dtype).contiguous()
        return encoded, {"shapes": shapes}

    def decode(self, tensors: Tensors, meta: Meta) -> Tensors:
        """Replace the factors from `encode` by their products, the inverse of `encode`.

        Args:
            tensors: Encoded tensors.
            meta: Metadata from `encode`.

        Raises:
            ValueError: If a shape is too large.
        """
        decoded = dict(tensors)
        for name, shape in meta["shapes"].items():
            u, s, v = (decoded.pop(f"{name}:{part}") for part in "usv")
            if math.prod(shape) > MAX_MATRIX_ELEMENTS or u.shape[0] * v.shape[1] > MAX_MATRIX_ELEMENTS:
                raise ValueError(f"expected a matrix of at most {MAX_MATRIX_ELEMENTS} elements, got the shape {shape}")
            decoded[name] = ((u.double() * s.double()) @ v.double()).to(u.dtype).reshape(shape)
        return decoded


def _is_matrix(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a non-empty floating-point tensor with more than one axis."""
    return tensor.is_floating_point() and tensor.dim() > 1 and tensor.numel() > 0
