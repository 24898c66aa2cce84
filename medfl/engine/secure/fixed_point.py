"""Real numbers as whole ones modulo 2^bits, so that a sum is exact whatever its order, and masks cancel to the bit.

A site's numbers are clipped together to an L2 norm, scaled by a power of two and rounded up or down at random, so that
nothing is lost on average (stochastic rounding). The scale leaves room for the sum of all sites and for noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from medfl.engine.secure.masks import Words
from medfl.errors import SettingsError

TAIL = 12.0
"""Standard deviations of noise for which there is room: beyond them a number would wrap, once in 10^32."""

FAINTEST_NOISE = 10.0
"""Smallest standard deviation of a site's noise, in steps. From there on the sum of discrete Gaussians is one, up to
tau = 10 exp(-pi^2 sigma^2) < 10^-400 (Kairouz et al., 2021, theorem 1), which no number of 64 bits can tell from 0."""


@dataclass(frozen=True)
class FixedPoint:
    """How the numbers of one aggregation are written.

    Attributes:
        bits: Of a number, 32 or 40.
        sites: How many vectors are summed at most, >= 1.
        clip: Largest L2 norm of one of them, > 0.
        numbers: In a vector, >= 0.
        noise: Noise multiplier of the sum: standard deviation over clip with `threshold` sites; 0 is no noise.
        threshold: How many sites' shares of noise make that up.

    Raises:
        SettingsError: If so few bits have no room, or the noise would be lost in rounding.
    """

    bits: int
    sites: int
    clip: float
    numbers: int
    noise: float = 0.0
    threshold: int = 1

    def __post_init__(self) -> None:
        if self.noise and self.site_noise < FAINTEST_NOISE:
            raise SettingsError(
                "noise_too_small",
                f"Noise of {self.site_noise:.3g} steps of the fixed point is lost in rounding: expected at least "
                f"{FAINTEST_NOISE:g}. Give secure_aggregation.bits 40, a smaller clip, or fewer sites.",
                minimum=FAINTEST_NOISE,
                found=self.site_noise,
            )

    @property
    def scale(self) -> float:
        """Steps in a unit: the largest power of two for which sums of all sites, noise included, don't wrap."""
        room = 2.0 ** (self.bits - 1) - 1 - self.sites
        spread = TAIL * self.noise * math.sqrt(self.sites / self.threshold)
        room -= spread * math.sqrt(self.numbers)
        exponent = math.floor(math.log2(room / (self.clip * (self.sites + spread)))) if room > 0 else -1074
        return math.ldexp(1.0, exponent)

    @property
    def reach(self) -> float:
        """Largest L2 norm of a rounded vector, in steps: each number moves by less than one."""
        return self.clip * self.scale + math.sqrt(self.numbers)

    @property
    def site_noise(self) -> float:
        """Standard deviation of the noise that each site adds, in steps."""
        return self.noise * self.reach / math.sqrt(self.threshold)

    def rounded(self, values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Values in steps, rounded at random.

        Args:
            values: (N,), float64, of an L2 norm of `clip` at most.
            generator: For the rounding; it hides nothing, and only an even draw matters.

        Returns:
            (N,), int64.
        """
        shift = torch.rand(values.shape, dtype=torch.float64, generator=generator)
        return (values * self.scale + shift).floor_().to(torch.int64)

    def words(self, steps: torch.Tensor) -> Words:
        """Whole numbers modulo 2^bits, ready to be masked.

        Args:
            steps: (N,), int64.
        """
        return steps.numpy().astype(_word(self.bits))

    def values(self, words: Words) -> torch.Tensor:
        """The real numbers of a sum whose masks are gone, (N,), float64."""
        return torch.from_numpy(signed(words, self.bits)).double() / self.scale


def signed(words: Words, bits: int) -> np.ndarray:
    """Numbers modulo 2^bits as those in [-2^(bits-1), 2^(bits-1)), int64."""
    spare = 64 - bits
    return (words.astype(np.uint64) << np.uint64(spare)).view(np.int64) >> np.int64(spare)


def packed(words: Words, bits: int) -> torch.Tensor:
    """Words as bytes, without those that are beyond their bits, (N * bits / 8,), uint8."""
    size = bits // 8
    raw = np.ascontiguousarray(words).view(np.uint8).reshape(len(words), words.itemsize)
    return torch.from_numpy(np.ascontiguousarray(raw[:, :size]).reshape(-1))


def unpacked(raw: torch.Tensor, bits: int) -> Words:
    """The words of `packed`, modulo 2^bits.

    Args:
        raw: uint8, a multiple of bits / 8 long.
        bits: Of a number.
    """
    size, kind = bits // 8, _word(bits)
    rows = np.zeros((raw.numel() // size, np.dtype(kind).itemsize), dtype=np.uint8)
    rows[:, :size] = raw.numpy().reshape(-1, size)
    return rows.view(kind).reshape(-1)


def empty(count: int, bits: int) -> Words:
    """Zeros."""
    return np.zeros(count, dtype=_word(bits))


def _word(bits: int) -> type[np.unsignedinteger]:
    return np.uint32 if bits <= 32 else np.uint64
