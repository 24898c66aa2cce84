"""Tests of random streams: their dependencies and distributions."""

import math
import random

import numpy as np
import pytest
import torch

from medfl.utils.rng import SecretStream, make_generator, seeded_generators
from medfl.utils.seeds import seed_of

SECRET = b"a secret of sixteen or more bytes"
N = 400_000


def normal_cdf(x: torch.Tensor) -> torch.Tensor:
    return torch.special.ndtr(x)


def laplace_cdf(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x < 0, 0.5 * x.exp(), 1 - 0.5 * (-x).exp())


DISTRIBUTIONS = {
    # cdf, mean, variance, fourth central moment
    "uniform": (lambda x: x, 0.5, 1 / 12, 1 / 80),
    "normal": (normal_cdf, 0.0, 1.0, 3.0),
    "laplace": (laplace_cdf, 0.0, 2.0, 24.0),
}


@pytest.fixture(params=DISTRIBUTIONS)
def drawn(request):
    return getattr(SecretStream(SECRET, request.param), request.param)((N,)), *DISTRIBUTIONS[request.param]


def test_moments(drawn):
    x, _, mean, variance, fourth = drawn
    assert x.dtype == torch.float64
    assert abs(float(x.mean()) - mean) < 5 * math.sqrt(variance / N)
    assert abs(float(x.var()) - variance) < 5 * math.sqrt((fourth - variance**2) / N)
    assert float(((x - mean) ** 4).mean()) == pytest.approx(fourth, rel=0.08)
    assert abs(float(((x - mean) ** 3).mean())) < 0.03 * fourth


def test_whole_distribution(drawn):
    """Kolmogorov-Smirnov: sup |F_n - F| sqrt(n) exceeds 1.95 once in a thousand keys; this key is fixed."""
    x, cdf, *_ = drawn
    expected = cdf(x.sort().values)
    steps = torch.arange(1, N + 1, dtype=torch.float64) / N
    assert float((steps - expected).abs().max()) * math.sqrt(N) < 1.95


def test_neighbours_are_uncorrelated(drawn):
    x = drawn[0]
    for lag in (1, 2, N // 2):
        assert abs(float(torch.corrcoef(torch.stack([x[:-lag], x[lag:]]))[0, 1])) < 5 / math.sqrt(N - lag)


def test_tails_reach_out():
    x = SecretStream(SECRET, "tails").normal((N,))
    assert float((x.abs() > 3).double().mean()) == pytest.approx(0.0027, abs=5e-4)
    assert bool(torch.isfinite(x).all())


@pytest.mark.parametrize("kind", DISTRIBUTIONS)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 0), (3, 5, 2)], ids=str)
def test_shapes(kind, shape):
    assert getattr(SecretStream(SECRET, "shape"), kind)(shape).shape == torch.Size(shape)


def test_same_key_same_numbers():
    first, two = (SecretStream(SECRET, "run", 3, "noise", "payload") for _ in range(2))
    assert torch.equal(first.normal((100,)), two.normal((100,)))
    assert torch.equal(first.uniform((100,)), two.uniform((100,)))


def test_a_stream_continues_and_does_not_repeat():
    stream = SecretStream(SECRET, "on")
    numbers = torch.cat([stream.uniform((1000,)) for _ in range(10)])
    assert len(numbers.unique()) == 10_000


def test_any_change_of_key_or_secret_gives_unrelated_numbers():
    streams = [
        SecretStream(SECRET, "run", 1, "noise", "payload"),
        SecretStream(SECRET[:-1] + b"!", "run", 1, "noise", "payload"),
        SecretStream(SECRET, "run", 2, "noise", "payload"),
        SecretStream(SECRET, "run", "1", "noise", "payload"),
        SecretStream(SECRET, "run", 1, "noise", "payloae"),
        SecretStream(SECRET, "run", 1, "nois", "epayload"),
    ]
    x = torch.stack([stream.normal((20_000,)) for stream in streams])
    correlations = torch.corrcoef(x) - torch.eye(len(streams), dtype=torch.float64)
    assert float(correlations.abs().max()) < 5 / math.sqrt(20_000)


def test_a_draw_larger_than_a_block():
    stream = SecretStream(SECRET, "large")
    stream._CHUNK = 64  # type: ignore[misc]
    x = stream.uniform((1000,))
    assert x.shape == (1000,)
    assert len(x.unique()) == 1000


def test_a_secret_is_long_enough():
    with pytest.raises(ValueError, match="16 bytes, got 15"):
        SecretStream(b"x" * 15)
    SecretStream(b"x" * 16)


def test_torch_and_numpy_generators_do_not_matter():
    torch.manual_seed(1)
    numbers = SecretStream(SECRET, "k").normal((5,))
    torch.manual_seed(2)
    before = torch.get_rng_state()
    assert torch.equal(SecretStream(SECRET, "k").normal((5,)), numbers)
    assert torch.equal(torch.get_rng_state(), before)


def test_seeds_are_distinct_and_fit():
    keys = [
        (seed, site, t, label) for seed in range(5) for site in ("a", "b") for t in range(50) for label in ("x", "y")
    ]
    keys += [("ab", "c"), ("a", "bc"), (1, "1"), ("1", 1), (11,), (1, 1), ()]
    seeds = {seed_of(*key) for key in keys}
    assert len(seeds) == len(keys)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seed_of(0, "a") == seed_of(0, "a")


def test_generator_follows_its_key():
    assert torch.equal(torch.rand(4, generator=make_generator(1, "a")), torch.rand(4, generator=make_generator(1, "a")))
    assert not torch.equal(
        torch.rand(4, generator=make_generator(1, "a")), torch.rand(4, generator=make_generator(1, "b"))
    )


def draw() -> list[float]:
    return [float(torch.rand(())), float(np.random.rand()), random.random()]


def test_pinned_depends_on_its_key_alone():
    results = []
    for past in (1, 2):
        torch.manual_seed(past)
        np.random.seed(past)
        random.seed(past)
        with seeded_generators(0, "site", 3, "global"):
            results.append(draw())
    assert results[0] == results[1]
    with seeded_generators(0, "site", 4, "global"):
        assert all(a != b for a, b in zip(draw(), results[0], strict=True))


@pytest.mark.parametrize("fails", [False, True])
def test_pinned_puts_everything_back(fails):
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    expected = draw()
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    try:
        with seeded_generators("k"):
            draw()
            if fails:
                raise KeyError("inside")
    except KeyError:
        assert fails
    assert draw() == expected
