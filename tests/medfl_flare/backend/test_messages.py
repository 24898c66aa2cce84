"""Bytes from a network: a valid message arrives complete, and all other bytes are refused."""

import math
import tracemalloc
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from message_cases import BLOB, DEEP, HEADERS, LIMITS, MESSAGE, body_of, claim, crafted, entry, header_of
from refusals import refused

from medfl.errors import RefusedError
from medfl.utils import wire
from medfl_flare.backend.messages import Limits, Message, pack, unpack


def same(a, b):
    return (a.kind, a.meta) == (b.kind, b.meta) and wire.tensors_equal(a.tensors, b.tensors)


def check_refused(blob, code, limits=LIMITS, **fields):
    """Check that bytes are refused with this code, these fields and little memory; return the text of the refusal."""
    tracemalloc.start()
    try:
        with refused(RefusedError, code, **fields) as caught:
            unpack(blob, limits)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
    text = str(caught.value)
    assert len(text) < 500
    assert text.isprintable()
    return text


# ---- honest messages


def test_a_message_arrives_as_it_left_and_packs_to_the_same_bytes():
    arrived = unpack(BLOB, LIMITS)
    assert (arrived.kind, arrived.meta) == (MESSAGE.kind, MESSAGE.meta)
    assert wire.tensors_equal(arrived.tensors, MESSAGE.tensors)
    assert pack(arrived) == BLOB


def test_an_empty_message_arrives():
    assert same(unpack(pack(Message("end")), LIMITS), Message("end"))


JSON = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats(allow_nan=False) | some.text(),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(), inner, max_size=3),
    max_leaves=8,
)
FORMS = some.tuples(some.sampled_from(sorted(wire.DTYPES, key=str)), some.lists(some.integers(0, 3), max_size=4))
NAMES = some.text(some.characters(categories=["L", "N", "P"]), min_size=1, max_size=20)


@settings(max_examples=60, deadline=None)
@given(forms=some.dictionaries(NAMES, FORMS, max_size=4), meta=some.dictionaries(some.text(), JSON, max_size=4))
def test_any_dtype_shape_and_meta_arrive(forms, meta):
    tensors = {name: torch.randint(0, 2, shape).to(dtype) for name, (dtype, shape) in forms.items()}
    sent = Message("evaluate", tensors, meta)
    assert same(unpack(pack(sent), Limits()), sent)


def test_arrived_memory_is_its_own():
    first = unpack(BLOB, LIMITS)
    for tensor in first.tensors.values():
        tensor.zero_()
    assert float(unpack(BLOB, LIMITS).tensors["model/weight"].sum()) == 15


HEADER_BYTES = len(BLOB) - 8 - len(body_of(BLOB))
META_BYTES = len(header_of(BLOB)["__metadata__"]["medfl"])


# ---- limits: what just fits arrives, what is one above is refused with both numbers


@pytest.mark.parametrize(
    ("limit", "largest", "code", "came"),
    [
        ("max_bytes", len(BLOB), "message_too_large", f"{len(BLOB)}"),
        ("max_header_bytes", HEADER_BYTES, "header_too_large", f"one of {HEADER_BYTES}"),
        ("max_tensors", 6, "too_many_tensors", "6"),
        ("max_dims", 2, "too_many_dimensions", "2"),
        ("max_meta_bytes", META_BYTES, "metadata_too_large", f"{META_BYTES}"),
        ("max_meta_depth", 5, "metadata_too_deep", "a deeper one"),
    ],
)
def test_each_limit_is_kept_to_the_last_one(limit, largest, code, came):
    assert same(unpack(pack(MESSAGE), replace(LIMITS, **{limit: largest})), unpack(BLOB, LIMITS))
    text = check_refused(BLOB, code, replace(LIMITS, **{limit: largest - 1}), maximum=largest - 1, found=came)
    assert "raise the receiver's limit" in text


def test_a_size_is_refused_before_anything_is_read():
    check_refused(b"\xff" * 1001, "message_too_large", replace(LIMITS, max_bytes=1000), maximum=1000, found="1001")
    endless = (2**64 - 1).to_bytes(8, "little")
    check_refused(endless, "header_too_large", maximum=10_000, found=f"one of {2**64 - 1}")


@pytest.mark.parametrize(
    "shape", [[10**15], [10**5, 10**5, 10**5], [2**62, 4], [0, 2**62, 2**62], [10**4000], [1, 10**3000, 10**3000]]
)
def test_a_claim_of_endless_elements_is_refused_at_once(shape):
    size = 4 * math.prod(shape)
    offsets = [0, size if size < 2**63 else 2**63]
    blob = crafted(claim(big=entry(shape=shape, offsets=offsets)))
    check_refused(blob, "too_many_elements", tensor="'big'", maximum=20_000)


def test_many_claims_that_fit_one_by_one_are_refused():
    entries = {f"t{i}": entry("F64", [2_000], [16_000 * i, 16_000 * (i + 1)]) for i in range(9)}
    expected = "tensors of 144000 bytes, as the header states"
    check_refused(crafted(claim(**entries), b"\0" * 16), "wrong_tensor_bytes", expected=expected, found="16")


# ---- form


@pytest.mark.parametrize("thing", [None, "text", 5, bytearray(BLOB), memoryview(BLOB), [1], torch.ones(3)])
def test_only_bytes_are_taken(thing):
    check_refused(thing, "wrong_type", expected="bytes", found=type(thing).__name__)


@pytest.mark.parametrize("case", HEADERS)
def test_a_header_of_another_form_is_refused(case):
    header, code, fields = HEADERS[case]
    check_refused(crafted(header, b"secret!!"), code, **fields)


def test_headers_of_many_megabytes_end_in_a_sentence():
    limits = Limits()
    for raw in (DEEP.encode(), (DEEP + "]" * len(DEEP)).encode(), b'{"a":' * 200_000, b"[" + b"9" * 10_000 + b"]"):
        with refused(RefusedError, "invalid_json", part="the header"):
            unpack(crafted(raw), limits)
        with refused(RefusedError, "invalid_json", part="the meta"):
            unpack(crafted(claim(raw.decode())), limits)


def test_a_long_key_over_many_values_costs_no_more_than_its_bytes():
    meta = {"k" * 300_000: [[{"x": 1, "y": 2}] * 1_000]}
    tracemalloc.start()
    try:
        assert unpack(pack(Message("step", {}, meta)), Limits()).meta == meta
        assert tracemalloc.get_traced_memory()[1] < 30_000_000
    finally:
        tracemalloc.stop()


def test_no_sentence_holds_what_the_tensors_or_the_meta_hold():
    for header, code, _ in HEADERS.values():
        assert "secret" not in check_refused(crafted(header, b"secret!!"), code)
    text = check_refused(crafted(claim('{"kind":"a","meta":{"name":"Jane Doe"},"more":1}')), "invalid_message")
    assert "Jane" not in text
