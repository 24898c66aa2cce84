"""Uniform quantisation of a tensor between its minimum and maximum, and packing of the codes.

Source: the quantiser of the method PFedCDP, with rounding to nearest. The codes are integers of a given number of bits.
With s = 2^bits - 1, minimum lo and maximum hi of the tensor, value x and decoded value x', code = round((x - lo) / (hi
- lo) * s) and x' = lo + code / s * (hi - lo). The error |x - x'| is at most (hi - lo) / (2 s).
"""

from __future__ import annotations

import math

import torch

from medfl.errors import ContractError, RefusedError


def quantise(t: torch.Tensor, bits: int) -> tuple[torch.Tensor, float, float]:
    """Quantise a tensor: replace each value by the code of the nearest of 2^bits levels from minimum to maximum.

    Args:
        t: Tensor of finite floating values, any shape.
        bits: Bits of a code, 1 to 16.

    Returns:
        Codes in [0, 2^bits - 1] of the shape of `t` (uint8, above 8 bits uint16), the minimum and the maximum. All
        codes of a constant tensor are 0 and decode exactly. The range of an empty tensor is (0, 0).

    Raises:
        RefusedError: If the range from minimum to maximum is not finite.

    Example:
        >>> quantise(torch.tensor([-1.0, 0.0, 0.25, 2.0]), 8)
        (tensor([  0,  85, 106, 255], dtype=torch.uint8), -1.0, 2.0)
    """
    steps, kind = _steps(bits), torch.uint8 if bits <= 8 else torch.uint16
    if not t.numel():
        return torch.empty(t.shape, dtype=kind), 0.0, 0.0
    x = t.detach().cpu().double()
    lo, hi = (float(bound) for bound in x.aminmax())
    if not math.isfinite(hi - lo):
        raise RefusedError(
            "not_finite",
            f"expected finite values to quantise, got a range from {lo} to {hi}. The training diverged.",
            minimum=lo,
            maximum=hi,
        )
    if lo == hi:
        return torch.zeros(t.shape, dtype=kind), lo, hi
    return ((x - lo) / (hi - lo) * steps).round_().to(kind), lo, hi


def dequantise(
    codes: torch.Tensor, lo: float, hi: float, bits: int, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Return the values of quantised codes.

    Args:
        codes: Codes from `quantise`, any shape.
        lo: Minimum, which code 0 decodes to exactly.
        hi: Maximum, which the largest code decodes to exactly.
        bits: Bits of a code, with which `quantise` made the codes.
        dtype: Floating dtype of the result.

    Returns:
        Values of the shape of `codes`. Quantising them again gives the same codes, if `dtype` can represent 2^bits
        levels in this range.
    """
    share = codes.double() / _steps(bits)
    return torch.where(share == 0, lo, lo * (1 - share) + hi * share).to(dtype)


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack two 4-bit codes into each byte, the first in the lower half. Codes of 8 and 16 bits stay unchanged.

    Args:
        codes: Codes from `quantise`, n codes in any shape.
        bits: Bits of a code: 4, 8 or 16.

    Returns:
        For 4 bits, uint8 of shape (ceil(n / 2),); otherwise `codes`.
    """
    if bits != 4:
        return codes
    flat = codes.reshape(-1)
    if flat.numel() % 2:
        flat = torch.cat([flat, flat.new_zeros(1)])
    return flat[0::2] | (flat[1::2] << 4)


def unpack(packed: torch.Tensor, bits: int, shape: list[int]) -> torch.Tensor:
    """Return the codes that `pack` packed.

    Args:
        packed: Result of `pack`.
        bits: Bits of a code: 4, 8 or 16.
        shape: Shape of the codes.

    Raises:
        ContractError: If the number of elements of `packed` does not fit `shape`.
    """
    count = math.prod(shape)
    expected = (count + 1) // 2 if bits == 4 else count
    if packed.numel() != expected:
        raise ContractError(
            "wrong_code_count",
            f"expected {expected} elements for {bits}-bit codes of shape {shape}, got {packed.numel()}. "
            "Decode with the parameters that the sender wrote with the codes.",
            expected=expected,
            found=packed.numel(),
            bits=bits,
        )
    if bits == 4:
        packed = torch.stack([packed & 15, packed >> 4], dim=1).reshape(-1)[:count]
    return packed.reshape(shape)


def _steps(bits: int) -> int:
    if not 1 <= bits <= 16:
        raise ContractError(
            "unsupported_bits",
            f"expected 1 to 16 bits for each code, got {bits}. Runs support 4, 8 and 16.",
            found=bits,
            minimum=1,
            maximum=16,
        )
    return int(2**bits - 1)
