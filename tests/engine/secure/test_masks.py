"""Test that masks cancel bit by bit in the sum of all sites, and that one masked vector looks like noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from refusals import refused
from scipy import stats

from medfl.engine.secure.fixed_point import empty, pack_words, to_signed, unpack_words
from medfl.engine.secure.keys import CHANNEL, MASK, agree_key, public_key, seal, unseal
from medfl.engine.secure.masks import CHUNK, add_mask, pair_sign
from medfl.errors import RefusedError
from medfl.utils.rng import SecretStream


def private(site: str) -> bytes:
    return SecretStream(b"a secret of a site", site).take(32)


def masked(values: dict[str, np.ndarray], bits: int) -> dict[str, np.ndarray]:
    """Return the masked vector of each site: its numbers, its own mask, and the masks that it shares with others."""
    sent = {}
    for site, numbers in values.items():
        words = numbers.astype(np.uint32 if bits == 32 else np.uint64)
        add_mask(words, private(f"own {site}"))
        for other in values:
            if other != site:
                key = agree_key(private(site), public_key(private(other)), MASK)
                add_mask(words, key, pair_sign(site, other))
        sent[site] = unpack_words(pack_words(words, bits), bits)
    return sent


def unmasked_sum(sent: dict[str, np.ndarray], bits: int) -> np.ndarray:
    total = empty(len(next(iter(sent.values()))), bits)
    for site, words in sent.items():
        total += words
        add_mask(total, private(f"own {site}"), -1)
    return to_signed(total, bits)


def check_sums(cases: int) -> None:
    """Check the sums of random integers for several numbers of sites and elements, and both sizes of words."""
    draw = np.random.default_rng(7)
    for case in range(cases):
        bits, sites, size = (32, 40)[case % 2], int(draw.integers(1, 6)), int(draw.integers(1, 9))
        largest = 2 ** (bits - 1) // sites
        values = {f"site-{i}": draw.integers(-largest, largest, size) for i in range(sites)}
        assert (unmasked_sum(masked(values, bits), bits) == sum(values.values())).all()


def test_sums_are_exact() -> None:
    check_sums(100)


@pytest.mark.slow
def test_ten_thousand_sums_are_exact() -> None:
    check_sums(10_000)


@pytest.mark.parametrize("bits", [32, 40])
@pytest.mark.parametrize("size", [CHUNK - 1, CHUNK, 2 * CHUNK + 5])
def test_a_stream_does_not_hang_on_its_pieces(bits: int, size: int) -> None:
    whole, part = empty(2 * CHUNK + 9, bits), empty(size, bits)
    add_mask(whole, b"k" * 32)
    add_mask(part, b"k" * 32)
    assert (whole[:size] == part).all()
    add_mask(part, b"k" * 32, -1)
    assert not part.any()


def test_known_answer_of_chacha20() -> None:
    """Compare with RFC 8439, appendix A.1, test vector 1: key, nonce and counter are zero."""
    words = empty(4, 32)
    add_mask(words, bytes(32))
    assert words.tobytes().hex() == "76b8e0ada0f13d90405d6ae55386bd28"


@pytest.mark.parametrize("bits", [32, 40])
def test_one_masked_vector_is_even(bits: int) -> None:
    """Test the bytes by chi-square and the numbers by Kolmogorov-Smirnov, for sites whose numbers are zero."""
    sent = masked({site: np.zeros(50_000, dtype=np.int64) for site in ("a", "b", "c")}, bits)
    for words in sent.values():
        counts = np.bincount(pack_words(words, bits).numpy(), minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-4
        assert stats.kstest(to_signed(words, bits) / 2**bits + 0.5, "uniform").pvalue > 1e-4
    first, second = (words.astype(float) for words in list(sent.values())[:2])
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.02


def test_bytes_of_a_number() -> None:
    words = np.array([1, 2**40 - 1, 2**40 + 5], dtype=np.uint64)
    raw = pack_words(words, 40)
    assert (raw.dtype, raw.numel()) == (torch.uint8, 15)
    assert unpack_words(raw, 40).tolist() == [1, 2**40 - 1, 5]
    assert to_signed(words, 40).tolist() == [1, -1, 5]


def test_two_sites_agree_and_uses_are_apart() -> None:
    ours, theirs = private("a"), private("b")
    assert agree_key(ours, public_key(theirs), MASK) == agree_key(theirs, public_key(ours), MASK)
    assert agree_key(ours, public_key(theirs), MASK) != agree_key(ours, public_key(theirs), CHANNEL)
    assert agree_key(ours, public_key(theirs), CHANNEL, b"a", b"b") != agree_key(ours, public_key(theirs), CHANNEL)
    with refused(RefusedError, "invalid_public_key"):
        agree_key(ours, bytes(32), MASK)


def test_a_sealed_share_is_for_one_site_and_one_use() -> None:
    sealed = seal(b"k" * 32, b"n" * 12, b"share", b"from a to b")
    assert unseal(b"k" * 32, sealed, b"from a to b") == b"share"
    for key, content, about in [
        (b"j" * 32, sealed, b"from a to b"),
        (b"k" * 32, sealed, b"from a to c"),
        (b"k" * 32, sealed[:-1] + bytes([sealed[-1] ^ 1]), b"from a to b"),
        (b"k" * 32, b"short", b"from a to b"),
    ]:
        with refused(RefusedError, "undecryptable_share"):
            unseal(key, content, about)
