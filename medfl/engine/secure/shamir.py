"""Shamir's secret sharing (Communications of the ACM 22, 1979) over the field of the Mersenne prime 2^521 - 1.

Any `threshold` shares give the secret back, and fewer say nothing about it. The prime is the smallest Mersenne prime
that has room for 32 bytes, and nobody has to take it on trust.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from medfl.errors import RefusedError

PRIME = 2**521 - 1
BYTES = 66
"""Of a share."""

SECRET = 32
"""Bytes of a secret."""


def split(secret: bytes, count: int, threshold: int, draw: Callable[[int], bytes]) -> list[bytes]:
    """Shares of a secret; the first is that of the place 1.

    Args:
        secret: `SECRET` bytes.
        count: How many shares, >= 1.
        threshold: How many give the secret back, in [1, count].
        draw: Gives so many bytes that nobody else can predict, others at each call.

    Returns:
        `BYTES` bytes each: the values of a random polynomial of degree threshold - 1 at 1, 2, ..., count.

    Raises:
        ValueError: If an argument is out of range.
    """
    if len(secret) != SECRET or not 1 <= threshold <= count:
        raise ValueError(f"expected {SECRET} bytes and a threshold in [1, {count}], got {len(secret)} and {threshold}")
    polynomial = [int.from_bytes(secret, "big"), *(_element(draw) for _ in range(threshold - 1))]
    return [_value(polynomial, place).to_bytes(BYTES, "big") for place in range(1, count + 1)]


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret from shares.

    Args:
        shares: Place to share; the first `threshold` of them, by place, are used.
        threshold: As in `split`.

    Raises:
        RefusedError: If there are too few, or they are no shares of one secret of `SECRET` bytes.
    """
    if len(shares) < threshold:
        raise RefusedError(
            "too_few_shares",
            f"expected {threshold} shares of a secret, got {len(shares)}: fewer say nothing about it",
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
    if total >= 2 ** (8 * SECRET):
        raise RefusedError(
            "inconsistent_shares",
            "expected shares of one secret, got some that don't fit together: a site is not honest",
        )
    return total.to_bytes(SECRET, "big")


def _element(draw: Callable[[int], bytes]) -> int:
    """A random element of the field, each as likely as any other."""
    while True:
        element = int.from_bytes(draw(BYTES), "big") >> (8 * BYTES - 521)
        if element < PRIME:
            return element


def _value(polynomial: list[int], at: int) -> int:
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * at + coefficient) % PRIME
    return value
