"""Fixed-point format of updates: integers modulo 2^bits, whose sums are exact in any order, so that masks cancel.

The numbers of a site are clipped together to an L2 norm, scaled by a power of two, and rounded up or down at random, so
that the expected value does not change (stochastic rounding). The scale leaves room for the sum over all sites and for
noise. Masks are random numbers that sites add to their integers and that cancel in the sum over all sites. The integers
modulo 2^bits are stored as words: unsigned numpy integers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from medfl.engine.secure.masks import Words
from medfl.errors import SettingsError

TAIL = 12.0
"""Number of standard deviations of noise that the format has room for.

Noise beyond it wraps around modulo 2^bits, with a probability of 10^-32.
"""

MIN_SITE_NOISE = 10.0
"""Minimum standard deviation of a site's noise, in steps (smallest differences between two numbers of the format).

From this value on, the sum of discrete Gaussians is a discrete Gaussian up to tau = 10 exp(-pi^2 sigma^2) < 10^-400
(Kairouz et al., 2021, theorem 1). A 64-bit number can't distinguish that from 0.
"""


@dataclass(frozen=True)
class FixedPoint:
    """Fixed-point format of the numbers of one aggregation.

    A step is the smallest difference between two numbers, 1 / `scale`.

    Attributes:
        bits: Number of bits of a number, 32 or 40.
        sites: Maximum number of vectors in a sum, >= 1.
        clip: Largest L2 norm of one vector, > 0.
        numbers: Number of elements of a vector, >= 0.
        noise: Noise multiplier of the sum: standard deviation over `clip`, with `threshold` sites; 0 is no noise.
        threshold: Number of sites whose shares of noise together make up the noise `noise` of the sum.

    Raises:
        SettingsError: If the noise would be lost in rounding, because the format has too few bits.
    """

    bits: int
    sites: int
    clip: float
    numbers: int
    noise: float = 0.0
    threshold: int = 1

    def __post_init__(self) -> None:
        if self.noise and self.site_noise < MIN_SITE_NOISE:
            raise SettingsError(
                "noise_too_small",
                f"Noise of {self.site_noise:.3g} steps of the fixed point is lost in rounding: expected at least "
                f"{MIN_SITE_NOISE:g}. Give secure_aggregation.bits 40, a smaller clip, or fewer sites.",
                minimum=MIN_SITE_NOISE,
                found=self.site_noise,
            )

    @property
    def scale(self) -> float:
        """Factor from real numbers to integers (steps in 1).

        It is the largest power of two for which no sum over all sites, with noise, wraps around.
        """
        room = 2.0 ** (self.bits - 1) - 1 - self.sites
        spread = TAIL * self.noise * math.sqrt(self.sites / self.threshold)
        room -= spread * math.sqrt(self.numbers)
        exponent = math.floor(math.log2(room / (self.clip * (self.sites + spread)))) if room > 0 else -1074
        return math.ldexp(1.0, exponent)

    @property
    def reach(self) -> float:
        """Largest L2 norm of a rounded vector, in steps. Rounding moves each number by less than one step."""
        return self.clip * self.scale + math.sqrt(self.numbers)

    @property
    def site_noise(self) -> float:
        """Standard deviation of the noise that each site adds, in steps."""
        return self.noise * self.reach / math.sqrt(self.threshold)

    def rounded(self, values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Convert real numbers to integers (numbers of steps) by stochastic rounding.

        Args:
            values: N numbers of a vector, shape (N,), float64, with an L2 norm of at most `clip`.
            generator: Generator of the rounding. It need not be secret, only uniform.

        Returns:
            Integers, shape (N,), int64.
        """
        shift = torch.rand(values.shape, dtype=torch.float64, generator=generator)
        return (values * self.scale + shift).floor_().to(torch.int64)

    def words(self, steps: torch.Tensor) -> Words:
        """Convert integers to words modulo 2^bits, which can be masked.

        Args:
            steps: Integers, shape (N,), int64, as `rounded` returns them, possibly with noise.
        """
        return steps.numpy().astype(_word(self.bits))

    def values(self, words: Words) -> torch.Tensor:
        """Convert an unmasked sum of words to real numbers, shape (N,), float64.

        Args:
            words: Sum of the words of several vectors, modulo 2^bits.
        """
        return torch.from_numpy(to_signed(words, self.bits)).double() / self.scale


def to_signed(words: Words, bits: int) -> np.ndarray:
    """Convert words modulo 2^bits to signed integers in [-2^(bits-1), 2^(bits-1)), int64."""
    spare = 64 - bits
    return (words.astype(np.uint64) << np.uint64(spare)).view(np.int64) >> np.int64(spare)


def pack_words(words: Words, bits: int) -> torch.Tensor:
    """Convert words to bytes for a message, without unused high bytes.

    Returns:
        uint8, shape (N * bits / 8,).
    """
    size = bits // 8
    raw = np.ascontiguousarray(words).view(np.uint8).reshape(len(words), words.itemsize)
    return torch.from_numpy(np.ascontiguousarray(raw[:, :size]).reshape(-1))


def unpack_words(raw: torch.Tensor, bits: int) -> Words:
    """Convert bytes from `pack_words` back to words, modulo 2^bits.

    Args:
        raw: Bytes, uint8, whose number is a multiple of bits / 8.
        bits: Number of bits of a number.
    """
    size, kind = bits // 8, _word(bits)
    rows = np.zeros((raw.numel() // size, np.dtype(kind).itemsize), dtype=np.uint8)
    rows[:, :size] = raw.numpy().reshape(-1, size)
    return rows.view(kind).reshape(-1)


def empty(count: int, bits: int) -> Words:
    """Return words that are all zero, for example as the start of a sum.

    Args:
        count: Number of elements.
        bits: Number of bits of a number.
    """
    return np.zeros(count, dtype=_word(bits))


def _word(bits: int) -> type[np.unsignedinteger]:
    return np.uint32 if bits <= 32 else np.uint64
