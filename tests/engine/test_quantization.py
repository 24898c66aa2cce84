"""Test the quantiser: reference values, error bound, and packing of codes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from refusals import refused

from medfl.engine.quantization import dequantise, pack, quantise, unpack
from medfl.errors import ContractError, RefusedError
from medfl.utils import wire

BITS = [4, 8, 16]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def there_and_back(t: torch.Tensor, bits: int) -> torch.Tensor:
    codes, lo, hi = quantise(t, bits)
    return dequantise(codes, lo, hi, bits, t.dtype)


@pytest.mark.parametrize("bits", [1, 2, *BITS])
def test_error_is_at_most_half_a_level(bits):
    x = torch.randn(10_000, dtype=torch.float64)
    bound = float(x.max() - x.min()) / (2 * (2**bits - 1))
    assert float((there_and_back(x, bits) - x).abs().max()) <= bound * (1 + 1e-12)


@pytest.mark.parametrize("bits", BITS)
def test_minimum_and_maximum_are_exact(bits):
    x = torch.tensor([0.1, -7.7, 3.3e5, 1e-20])
    back = there_and_back(x, bits)
    assert back[1] == x[1]
    assert back[2] == x[2]


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_constant_tensors_are_exact(bits, dtype):
    x = torch.full((5,), 0.1).to(dtype)
    codes, _, _ = quantise(x, bits)
    assert not codes.to(torch.int64).any()
    assert torch.equal(there_and_back(x, bits), x)


@settings(max_examples=150, deadline=None)
@given(
    values=some.lists(some.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=30),
    bits=some.sampled_from([2, *BITS]),
)
def test_quantising_again_changes_nothing(values, bits):
    once = there_and_back(torch.tensor(values), bits)
    assert torch.equal(there_and_back(once, bits), once)


def test_rounding_is_to_nearest_not_down_and_not_random():
    codes, _, _ = quantise(torch.tensor([0.0, 0.49, 0.51, 1.49, 3.0]), 2)
    assert codes.tolist() == [0, 0, 1, 1, 3]


def test_a_million_codes_have_no_bias():
    x = torch.rand(1_000_000, dtype=torch.float64)
    assert abs(float((there_and_back(x, 4) - x).mean())) < 1e-4


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (8,), (3, 5), (0,), (2, 0)], ids=str)
def test_codes_survive_packing_and_the_wire(bits, shape):
    codes, _, _ = quantise(torch.randn(shape), bits)
    sent, _ = wire.decode(wire.encode({"x": pack(codes, bits)}, {}))
    back = unpack(sent["x"], bits, list(shape))
    assert back.shape == torch.Size(shape)
    assert torch.equal(back, codes)


@pytest.mark.parametrize(("bits", "expected"), [(4, 51), (8, 101), (16, 202)])
def test_bytes_of_101_codes(bits, expected):
    codes, _, _ = quantise(torch.randn(101), bits)
    assert wire.payload_bytes({"x": pack(codes, bits)}) == expected


def test_two_codes_share_a_byte_the_first_in_the_low_half():
    assert pack(torch.tensor([1, 2, 3], dtype=torch.uint8), 4).tolist() == [0x21, 0x03]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_refused(bad):
    with refused(RefusedError, "not_finite"):
        quantise(torch.tensor([0.0, bad]), 8)


def test_other_sizes_are_refused():
    with refused(ContractError, "wrong_code_count", expected=8, found=3, bits=8):
        unpack(torch.zeros(3, dtype=torch.uint8), 8, [2, 4])
    with refused(ContractError, "unsupported_bits", found=32, minimum=1, maximum=16):
        quantise(torch.ones(1), 32)
