"""Shamir's secret sharing (Communications of the ACM 22, 1979) over the field of the Mersenne prime 2^521 - 1.

Any `threshold` shares determine the secret, and fewer shares reveal nothing about it. The prime is the smallest
Mersenne prime that exceeds all secrets of 32 bytes, and anyone can verify it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from medfl.errors import RefusedError

PRIME = 2**521 - 1
"""Modulus of the finite field in which shares are computed."""

SHARE_BYTES = 66
"""Size of a share in bytes."""

SECRET_BYTES = 32
"""Size of a secret in bytes."""


def split(secret: bytes, count: int, threshold: int, draw: Callable[[int], bytes]) -> list[bytes]:
    """Split a secret into shares.

    Args:
        secret: Secret of `SECRET_BYTES` bytes.
        count: Number of shares, >= 1.
        threshold: Number of shares that determine the secret, in [1, count].
        draw: Function that returns a number of new random bytes, which no one else can predict.

    Returns:
        Shares of `SHARE_BYTES` bytes: the values of a random polynomial of degree threshold - 1 at 1, 2, ..., count.

    Raises:
        ValueError: If an argument is out of range.
    """
    if len(secret) != SECRET_BYTES or not 1 <= threshold <= count:
        raise ValueError(
            f"expected {SECRET_BYTES} bytes and a threshold in [1, {count}], got {len(secret)} and {threshold}"
        )
    polynomial = [int.from_bytes(secret, "big"), *(_draw_element(draw) for _ in range(threshold - 1))]
    return [_evaluate(polynomial, place).to_bytes(SHARE_BYTES, "big") for place in range(1, count + 1)]


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """Reconstruct a secret from shares by Lagrange interpolation at 0.

    Args:
        shares: Maps the place of each share in the result of `split` (1, 2, ...) to the share. The first `threshold`
            places are used.
        threshold: Number of shares that determine the secret, which `split` was given.

    Raises:
        RefusedError: If there are too few shares, or they are not shares of one secret of `SECRET_BYTES` bytes.
    """
    if len(shares) < threshold:
        raise RefusedError(
            "too_few_shares",
            f"expected {threshold} shares of a secret, got {len(shares)}: fewer shares do not determine it",
            expected=threshold,
            found=len(shares),
        )
    places = sorted(shares)[:threshold]
    total = 0
    for place in places:
        above, below = 1, 1
        for other in places:
            if other != place:
                above, below = above * -other % PRIME, below * (place - other) % PRIME
        total = (total + int.from_bytes(shares[place], "big") * above * pow(below, -1, PRIME)) % PRIME
    if total >= 2 ** (8 * SECRET_BYTES):
        raise RefusedError(
            "inconsistent_shares",
            "expected shares of one secret, got inconsistent shares: a site is not honest",
        )
    return total.to_bytes(SECRET_BYTES, "big")


def _draw_element(draw: Callable[[int], bytes]) -> int:
    """Draw a uniformly distributed element of the field, by rejection."""
    while True:
        element = int.from_bytes(draw(SHARE_BYTES), "big") >> (8 * SHARE_BYTES - 521)
        if element < PRIME:
            return element


def _evaluate(polynomial: list[int], at: int) -> int:
    """Return the value of a polynomial, whose coefficients are in ascending order (Horner's method)."""
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * at + coefficient) % PRIME
    return value
