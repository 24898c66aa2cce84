"""Tests of closed-form numbers for quantiser, clip, accountant and noise (O-PF-1, O-PF-2, O-PF-8, O-TP-5, O-G8)."""

import math

import pytest
import torch

from medfl.engine.filters import Filters
from medfl.engine.quantization import dequantise, quantise
from medfl.privacy.gaussian import calibrate, clip_by_norm, epsilon
from medfl.settings import Compression, Settings
from medfl.utils import wire
from medfl.utils.rng import SecretStream

DELTA = torch.tensor([-1.0, 0.0, 0.25, 2.0])


@pytest.mark.parametrize(
    ("bits", "codes", "values"),
    [(2, [0, 1, 1, 3], [-1.0, 0.0, 0.0, 2.0]), (8, [0, 85, 106, 255], [-1.0, 0.0, 0.2470588235, 2.0])],
)
def test_pf_1_quantiser(bits, codes, values):
    quantised, lo, hi = quantise(DELTA, bits)
    assert (quantised.tolist(), lo, hi) == (codes, -1.0, 2.0)
    back = dequantise(quantised, lo, hi, bits, torch.float64)
    torch.testing.assert_close(back, torch.tensor(values, dtype=torch.float64), atol=1e-10, rtol=0)
    assert float((back - DELTA).abs().max()) <= 3 / (2 * (2**bits - 1)) + 1e-12


def test_pf_2_clip():
    torch.testing.assert_close(clip_by_norm({"d": torch.tensor([3.0, 4.0])}, 2.5)["d"], torch.tensor([1.5, 2.0]))
    small = torch.tensor([0.3, 0.4])
    assert torch.equal(clip_by_norm({"d": small}, 2.5)["d"], small)
    both = clip_by_norm({"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([0.0, 4.0])}, 2.5)
    torch.testing.assert_close(both["a"], torch.tensor([1.5, 0.0]))
    torch.testing.assert_close(both["b"], torch.tensor([0.0, 2.0]))


def test_pf_8_sigma():
    assert calibrate(5.0, 20, 1e-5) == pytest.approx(3.98856, abs=1e-4)
    assert calibrate(5.0, 20, 1e-5, sensitivity=2.0) == pytest.approx(7.977, abs=1e-3)
    assert calibrate(5.0, 40, 1e-5) == pytest.approx(3.98856 * math.sqrt(2), abs=1e-4)


@pytest.mark.parametrize(
    ("sigma", "releases", "far", "expected"),
    [(3.98856, 20, 1, 5.0), (3.98856, 20, 2, 11.52), (0.96896, 20, 1, 29.63), (0.96896, 1, 1, 4.54)],
)
def test_pf_8_epsilon(sigma, releases, far, expected):
    assert epsilon(sigma, releases, 1e-5, far) == pytest.approx(expected, abs=0.005)


@pytest.mark.parametrize("bits", [None, 4, 8, 16])
def test_g_8_bytes(bits):
    shapes = {"model/a": (301,), "model/b": (64, 33), "model/c": ()}
    update = {name: torch.randn(shape) for name, shape in shapes.items()}
    d = sum(t.numel() for t in update.values())
    settings = Settings(rounds=1, compression=Compression(bits=bits) if bits else None)
    sent, meta = Filters({"model/": "update"}, {}, settings, 1).outgoing(
        update, {}, site="a", stream_factory=lambda payload: SecretStream(b"0" * 16, payload)
    )
    expected = 4 * d if bits is None else d * bits / 8
    assert expected <= wire.payload_bytes(sent) <= expected + len(update)
    assert len(wire.encode(sent, meta)) <= expected + 300 * len(update) + 300
