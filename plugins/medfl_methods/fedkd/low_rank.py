"""Updates of low rank: cut to the directions that hold most of their energy, and sent as factors.

A tensor of more than one axis is a matrix of its first axis by all others: a kernel (out, in, h, w) is out by in h w.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import torch

from medfl.contract import PayloadKind
from medfl.types import Meta, Tensors

NOISE = 1e-5
"""Singular values below this share of the largest are rounding."""

LARGEST = 1 << 26
"""Numbers of a matrix above which it is sent as it is: what a receiver makes of factors is never larger."""


def rank_of(singular: torch.Tensor, energy: float) -> int:
    """The smallest rank that holds this share of the sum of squares, >= 1.

    Args:
        singular: Singular values, descending, (k,), k >= 1.
        energy: In (0, 1].
    """
    squares = singular.double().square().cumsum(0)
    return min(int((squares < energy * squares[-1]).sum()) + 1, len(singular))


def pays(rank: int, rows: int, columns: int) -> bool:
    """Whether factors of this rank have fewer numbers than the matrix."""
    return rank * (rows + columns + 1) < rows * columns


def cut(update: torch.Tensor, energy: float, max_rank: int | None = None) -> torch.Tensor:
    """An update of the smallest rank that holds this share of its energy.

    Args:
        update: Any tensor.
        energy: In (0, 1].
        max_rank: Of the result, >= 1, or None.

    Returns:
        Of the same shape and dtype; the update itself where it has one axis, is not finite, or nothing is saved.
    """
    if not _is_matrix(update) or not bool(update.isfinite().all()) or not bool(update.any()):
        return update
    u, s, v = singular_values(update.flatten(1).double())
    rank = min(rank_of(s, energy), max_rank or len(s))
    if not pays(rank, u.shape[0], v.shape[1]):
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
    """A filter (`medfl.contract.Filter`) that sends a matrix of low rank as u (m, r), s (r,), v (r, n)."""

    @property
    def kinds(self) -> Collection[PayloadKind]:
        """Updates."""
        return frozenset[PayloadKind]({"update"})

    def encode(self, tensors: Tensors, rng: torch.Generator) -> tuple[Tensors, Meta]:
        """Factors where these have fewer numbers, and the shapes of what they are of."""
        encoded, shapes = Tensors(), Meta()
        for name, tensor in tensors.items():
            if not _is_matrix(tensor) or tensor.numel() > LARGEST:
                encoded[name] = tensor
                continue
            u, s, v = singular_values(tensor.flatten(1).double())
            rank = max(int((s > NOISE * s[0]).sum()), 1)
            if not pays(rank, u.shape[0], v.shape[1]):
                encoded[name] = tensor
                continue
            shapes[name] = list(tensor.shape)
            for part, factor in (("u", u[:, :rank]), ("s", s[:rank]), ("v", v[:rank])):
                encoded[f"{name}:{part}"] = factor.to(tensor.dtype).contiguous()
        return encoded, {"shapes": shapes}

    def decode(self, tensors: Tensors, meta: Meta) -> Tensors:
        """The products.

        Raises:
            ValueError: If shapes are too large.
        """
        decoded = dict(tensors)
        for name, shape in meta["shapes"].items():
            u, s, v = (decoded.pop(f"{name}:{part}") for part in "usv")
            if math.prod(shape) > LARGEST or u.shape[0] * v.shape[1] > LARGEST:
                raise ValueError(f"expected a matrix of at most {LARGEST} numbers, got {shape}")
            decoded[name] = ((u.double() * s.double()) @ v.double()).to(u.dtype).reshape(shape)
        return decoded


def _is_matrix(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dim() > 1 and tensor.numel() > 0
