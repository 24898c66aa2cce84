"""Test secret sharing: `threshold` shares determine the secret, and fewer shares fit every secret."""

from __future__ import annotations

from itertools import combinations

import pytest
from refusals import refused

from medfl.engine.secure.shamir import PRIME, SHARE_BYTES, combine, split
from medfl.errors import RefusedError
from medfl.utils.rng import SecretStream

SECRET = bytes(range(200, 232))


def shares(count: int, threshold: int, secret: bytes = SECRET) -> dict[int, bytes]:
    draw = SecretStream(b"a secret of a site", "shares").take
    return dict(enumerate(split(secret, count, threshold, draw), start=1))


@pytest.mark.parametrize(("count", "threshold"), [(1, 1), (3, 2), (5, 3), (6, 6)])
def test_any_threshold_of_shares_give_the_secret_back(count: int, threshold: int) -> None:
    all_ = shares(count, threshold)
    assert all(len(share) == SHARE_BYTES for share in all_.values())
    for chosen in combinations(all_, threshold):
        assert combine({place: all_[place] for place in chosen}, threshold) == SECRET


def test_a_polynomial_by_hand() -> None:
    """Use the secret 7 and the polynomial 7 + 2 x, whose shares are 9, 11, 13."""
    draw = lambda size: (2 << (8 * SHARE_BYTES - 521)).to_bytes(size, "big")  # noqa: E731
    values = [int.from_bytes(share, "big") for share in split((7).to_bytes(32, "big"), 3, 2, draw)]
    assert values == [9, 11, 13]


def test_too_few_shares_fit_any_secret() -> None:
    """Check that for each secret a last share exists that makes the known shares fit it."""
    all_ = shares(5, 3)
    known = {1: all_[1], 2: all_[2]}
    with refused(RefusedError, "too_few_shares", expected=3, found=2):
        combine(known, 3)
    for other in (bytes(32), bytes([255] * 32)):
        secret, (first, second) = int.from_bytes(other, "big"), (int.from_bytes(known[i], "big") for i in (1, 2))
        third = (secret - 3 * first + 3 * second) % PRIME  # the parabola through (0, secret) and both, at 3
        assert combine(known | {3: third.to_bytes(SHARE_BYTES, "big")}, 3) == other


def test_shares_that_do_not_fit_together_are_refused() -> None:
    all_ = shares(3, 2)
    with refused(RefusedError, "inconsistent_shares"):
        combine({1: all_[1], 2: bytes(SHARE_BYTES - 1) + b"\1"}, 2)


def test_arguments_out_of_range() -> None:
    with pytest.raises(ValueError, match=r"threshold in \[1, 3\], got 32 and 4"):
        shares(3, 4)
