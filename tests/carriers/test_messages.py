"""Bytes from a network: a message arrives whole, and nothing else does, however the bytes came about."""

import math
import tracemalloc
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from message_cases import BLOB, DEEP, HEADERS, LIMITS, MESSAGE, body_of, claim, crafted, entry, header_of

from medfl.carriers.messages import Limits, Message, pack, unpack
from medfl.errors import RefusedError
from medfl.utils import wire


def same(a, b):
    return (a.kind, a.meta) == (b.kind, b.meta) and wire.tensors_equal(a.tensors, b.tensors)


def refused(blob, *words, limits=LIMITS):
    """Bytes are refused, with these words and within little memory; returns the sentence."""
    tracemalloc.start()
    try:
        with pytest.raises(RefusedError, match="^A message was refused: expected .*, got .*") as caught:
            unpack(blob, limits)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
    text = str(caught.value)
    assert all(word in text for word in words), text
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


# ---- limits: what just fits arrives, what is one above is refused with both numbers


@pytest.mark.parametrize(
    ("limit", "largest", "words"),
    [
        ("max_bytes", len(BLOB), f"got {len(BLOB)}"),
        ("max_header_bytes", len(BLOB) - 8 - len(body_of(BLOB)), "got one of "),
        ("max_tensors", 6, "got 6"),
        ("max_dims", 2, "got 2"),
        ("max_meta_bytes", len(header_of(BLOB)["__metadata__"]["medfl"]), "got "),
        ("max_meta_depth", 5, "a deeper one"),
    ],
)
def test_each_limit_is_kept_to_the_last_one(limit, largest, words):
    assert same(unpack(pack(MESSAGE), replace(LIMITS, **{limit: largest})), unpack(BLOB, LIMITS))
    refused(BLOB, str(largest - 1), words, "raise the receiver's limit", limits=replace(LIMITS, **{limit: largest - 1}))


def test_a_size_is_refused_before_anything_is_read():
    refused(b"\xff" * 1001, "at most 1000 bytes, got 1001", limits=replace(LIMITS, max_bytes=1000))
    refused((2**64 - 1).to_bytes(8, "little"), "at most 10000 bytes", str(2**64 - 1))


@pytest.mark.parametrize(
    "shape", [[10**15], [10**5, 10**5, 10**5], [2**62, 4], [0, 2**62, 2**62], [10**4000], [1, 10**3000, 10**3000]]
)
def test_a_claim_of_endless_elements_is_refused_at_once(shape):
    size = 4 * math.prod(shape)
    offsets = [0, size if size < 2**63 else 2**63]
    refused(crafted(claim(big=entry(shape=shape, offsets=offsets))), "at most 20000 elements of 'big'")


def test_many_claims_that_fit_one_by_one_are_refused():
    entries = {f"t{i}": entry("F64", [2_000], [16_000 * i, 16_000 * (i + 1)]) for i in range(9)}
    refused(crafted(claim(**entries), b"\0" * 16), "tensors of 144000 bytes", "got 16")


# ---- form


@pytest.mark.parametrize("thing", [None, "text", 5, bytearray(BLOB), memoryview(BLOB), [1], torch.ones(3)])
def test_only_bytes_are_taken(thing):
    refused(thing, "expected bytes", type(thing).__name__)


@pytest.mark.parametrize("case", HEADERS)
def test_a_header_of_another_form_is_refused(case):
    header, *words = HEADERS[case]
    refused(crafted(header, b"secret!!"), *words)


def test_headers_of_many_megabytes_end_in_a_sentence():
    limits = Limits()
    for raw in (DEEP.encode(), (DEEP + "]" * len(DEEP)).encode(), b'{"a":' * 200_000, b"[" + b"9" * 10_000 + b"]"):
        with pytest.raises(RefusedError, match="the header as a JSON object"):
            unpack(crafted(raw), limits)
        with pytest.raises(RefusedError, match="the meta as a JSON object"):
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
    for header, *_ in HEADERS.values():
        assert "secret" not in refused(crafted(header, b"secret!!"))
    text = refused(crafted(claim('{"kind":"a","meta":{"name":"Jane Doe"},"more":1}')))
    assert "Jane" not in text
