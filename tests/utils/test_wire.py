"""Tests of serialization: no information is lost, and damaged blobs are refused."""

import json
import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from refusals import refused

from medfl.errors import ContractError, DamagedError
from medfl.utils import wire

DTYPES = sorted(wire.DTYPES, key=str)

TENSORS = {
    "scalar": torch.tensor(3.5),
    'é/"quoted\\': torch.ones(1),
    "flags": torch.tensor([True, False, True]),
    "count": torch.tensor(7),
    "half": torch.randn(3).bfloat16(),
    "empty": torch.zeros(0, 4),
    "codes": torch.arange(5, dtype=torch.uint8),
    "nan": torch.tensor([float("nan"), -0.0, float("inf")]),
}
META = {"loss": 0.25, "names": ["a", "é"], "none": None}
BLOB = wire.encode(TENSORS, META)
CRC_BLOB = wire.encode(TENSORS, META, "crc32")


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    raw = [t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*raw)


def test_all_comes_back_bit_by_bit():
    tensors, meta = wire.decode(BLOB)
    assert list(tensors) == sorted(TENSORS)
    assert all(same_bits(tensors[name], TENSORS[name]) for name in TENSORS)
    assert meta == {"loss": 0.25, "names": ["a", "é"], "none": None}


def test_nothing_is_something():
    assert wire.decode(wire.encode({}, {})) == ({}, {})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype):
    original = torch.tensor([[0, 1, 3]]).to(dtype)
    tensors, _ = wire.decode(wire.encode({"x": original}, {}))
    assert same_bits(tensors["x"], original)


JSON = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats(allow_nan=False) | some.text(),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(
    meta=some.dictionaries(some.text(), JSON, max_size=4),
    shapes=some.dictionaries(
        some.text(some.characters(categories=["L", "N", "P"]), min_size=1),
        some.lists(some.integers(0, 3), max_size=3),
        max_size=4,
    ),
)
def test_any_json_and_any_shape(meta, shapes):
    original = {name: torch.randn(shape) for name, shape in shapes.items()}
    tensors, read = wire.decode(wire.encode(original, meta))
    assert read == meta
    assert all(same_bits(tensors[name], original[name]) for name in original)


def test_floats_of_meta_are_exact_and_nan_is_allowed():
    _, meta = wire.decode(wire.encode({}, {"x": 0.1 + 0.2, "nan": math.nan, "inf": -math.inf}))
    assert meta["x"] == 0.1 + 0.2
    assert math.isnan(meta["nan"])
    assert meta["inf"] == -math.inf


def test_decoded_memory_is_writable_and_apart():
    blob = bytes(BLOB)
    first, _ = wire.decode(blob)
    for tensor in first.values():
        tensor.zero_()
    second, _ = wire.decode(blob)
    assert same_bits(second["scalar"], TENSORS["scalar"])
    pointers = [t.untyped_storage().data_ptr() for t in second.values() if t.numel()]
    assert len(set(pointers)) == len(pointers)


def test_views_shared_memory_and_gradients():
    base = torch.arange(12.0).reshape(3, 4)
    weight = torch.nn.Parameter(torch.randn(2, 2))
    original = {"all": base, "turned": base.T, "part": base[1:, 2], "same": base, "weight": weight}
    tensors, _ = wire.decode(wire.encode(original, {}))
    assert all(torch.equal(tensors[name], original[name]) for name in original)
    assert not tensors["weight"].requires_grad


@pytest.mark.parametrize("blob", [BLOB, CRC_BLOB], ids=["sha256", "crc32"])
@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_is_found_wherever_it_is(bit, blob):
    for index in range(len(blob)):
        bad = bytearray(blob)
        bad[index] ^= 1 << bit
        with pytest.raises(DamagedError):
            wire.decode(bytes(bad))


@pytest.mark.parametrize("blob", [BLOB, CRC_BLOB], ids=["sha256", "crc32"])
def test_every_cut_is_found(blob):
    for size in range(len(blob)):
        with refused(DamagedError, "invalid_message", size=size):
            wire.decode(blob[:size])


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=some.data(), blob=some.sampled_from([BLOB, CRC_BLOB]))
def test_any_other_bytes_are_damaged(data, blob):
    start = data.draw(some.integers(0, len(blob)))
    end = data.draw(some.integers(start, len(blob)))
    middle = data.draw(some.binary(max_size=40))
    bad = blob[:start] + middle + blob[end:]
    if bad != blob:
        with pytest.raises(DamagedError):
            wire.decode(bad)


@pytest.mark.parametrize("size", [1, 512, 4096])
def test_a_block_that_was_not_written_is_found_by_a_crc(size):
    """A torn write leaves zeros, or an older content, in place of a block."""
    blob = wire.encode({"x": torch.randn(20_000)}, {}, "crc32")
    older = wire.encode({"x": torch.randn(20_000)}, {}, "crc32")
    for place in range(4096, len(blob) - size, 4096):
        for lost in (bytes(size), older[place : place + size]):
            bad = blob[:place] + lost + blob[place + size :]
            if bad != blob:
                with refused(DamagedError, "wrong_checksum", size=len(blob)):
                    wire.decode(bad)


@pytest.mark.parametrize("facts", [{}, {"md5": "0"}, {"sha256": "0", "crc32": "0"}], ids=["none", "unknown", "two"])
def test_a_blob_has_exactly_one_known_checksum(facts):
    header = json.loads(CRC_BLOB[8 : 8 + int.from_bytes(CRC_BLOB[:8], "little")])
    header["__metadata__"] = {"medfl": header["__metadata__"]["medfl"]} | facts
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    blob = len(text).to_bytes(8, "little") + text + CRC_BLOB[8 + int.from_bytes(CRC_BLOB[:8], "little") :]
    with refused(DamagedError, "invalid_message", size=len(blob)):
        wire.decode(blob)


def test_both_checksums_cover_the_same_content_and_give_the_same_tensors():
    (tensors, meta), (others, same) = wire.decode(BLOB), wire.decode(CRC_BLOB)
    assert meta == same
    assert wire.tensors_equal(tensors, others)
    assert len(CRC_BLOB) < len(BLOB)


def test_padding_is_not_exchanged_for_other_white_space():
    blob = next(b for b in (wire.encode({"x" * n: torch.ones(1)}, {}) for n in range(1, 9)) if b"} " in b)
    wire.decode(blob)
    with pytest.raises(DamagedError):
        wire.decode(blob.replace(b"} ", b"}\n"))


def test_bytes_added_are_found():
    for bad in (BLOB + b"\0", b" " + BLOB, BLOB + BLOB):
        with pytest.raises(DamagedError):
            wire.decode(bad)


@pytest.mark.parametrize("mid", [True, False])
def test_large_data_region(mid):
    blob = wire.encode({"x": torch.randn(100_000)}, {})
    bad = bytearray(blob)
    bad[len(blob) // 2 if mid else -1] ^= 1
    with refused(DamagedError, "wrong_checksum", size=len(blob)):
        wire.decode(bytes(bad))


def test_a_foreign_safetensors_file_is_refused():
    import safetensors.torch

    with pytest.raises(DamagedError):
        wire.decode(safetensors.torch.save({"x": torch.ones(2)}))


def test_the_blob_is_plain_safetensors(tmp_path):
    import safetensors
    import safetensors.torch

    assert all(same_bits(t, TENSORS[name]) for name, t in safetensors.torch.load(BLOB).items())
    (tmp_path / "x.safetensors").write_bytes(BLOB)
    with safetensors.safe_open(tmp_path / "x.safetensors", "pt") as file:
        assert sorted(file.keys()) == sorted(TENSORS)
        assert set(file.metadata()) == {"medfl", "sha256"}


def test_numbers_lie_aligned():
    """A reader that maps the file needs each tensor at a multiple of its item size."""
    header = json.loads(BLOB[8 : 8 + int.from_bytes(BLOB[:8], "little")])
    start = len(BLOB) - max(fact["data_offsets"][1] for name, fact in header.items() if name != "__metadata__")
    assert all((start + header[name]["data_offsets"][0]) % t.element_size() == 0 for name, t in TENSORS.items())


def test_same_content_same_bytes():
    first = {"a": torch.ones(2), "b": torch.zeros(3)}
    other = {"b": torch.zeros(3), "a": torch.ones(2)}
    blobs = {
        wire.encode(t, meta) for t in (first, other) for meta in ({"x": 1, "y": 2}, {"y": 2, "x": 1}) for _ in range(9)
    }
    assert len(blobs) == 1


def test_digest_sees_name_dtype_shape_value_and_meta():
    x = torch.zeros(2, 3)
    different = [
        wire.digest({"x": x}),
        wire.digest({"y": x}),
        wire.digest({"x": x.half()}),
        wire.digest({"x": x.T}),
        wire.digest({"x": -x}),
        wire.digest({"x": x, "y": x}),
        wire.digest({"x": x}, {"a": 1}),
        wire.digest({}),
    ]
    assert len(set(different)) == len(different)
    assert wire.digest({"x": x}) == wire.digest({"x": torch.zeros(3, 2).T}, {})


def test_payload_bytes():
    tensors = {"f": torch.zeros(3, 2), "h": torch.zeros(5).half(), "q": torch.zeros(7, dtype=torch.uint8)}
    assert wire.payload_bytes(tensors) == 4 * 6 + 2 * 5 + 7
    assert wire.payload_bytes({}) == 0


@pytest.mark.parametrize(
    ("meta", "code", "fields"),
    [
        ({"a": (1, 2)}, "wrong_type", {"place": "meta['a']", "found": "tuple"}),
        ({"a": {"b": [0, torch.ones(1)]}}, "wrong_type", {"place": "meta['a']['b'][1]", "found": "Tensor"}),
        ({1: 2}, "wrong_key_type", {"place": "meta", "key": "1", "found": "int"}),
        ({"a": {2}}, "wrong_type", {"place": "meta['a']", "found": "set"}),
        ({"a": b"x"}, "wrong_type", {"place": "meta['a']", "found": "bytes"}),
    ],
)
def test_meta_is_json(meta, code, fields):
    with refused(ContractError, code, **fields):
        wire.encode({}, meta)


@pytest.mark.parametrize(
    ("name", "tensor", "code", "fields"),
    [
        ("__metadata__", torch.ones(1), "invalid_name", {"name": "'__metadata__'"}),
        ("", torch.ones(1), "invalid_name", {"name": "''"}),
        ("a\n", torch.ones(1), "invalid_name", {"name": r"'a\n'"}),
        (3, torch.ones(1), "invalid_name", {"name": "3"}),
        ("complex", torch.ones(1, dtype=torch.complex64), "tensor_not_supported", {"tensor": "complex"}),
        ("sparse", torch.ones(2).to_sparse(), "tensor_not_supported", {"tensor": "sparse"}),
        ("nowhere", torch.ones(2, device="meta"), "tensor_not_supported", {"tensor": "nowhere"}),
        ("number", 3.0, "wrong_type", {"tensor": "number", "found": "float"}),
    ],
    ids=lambda value: repr(value) if isinstance(value, str | int) else None,
)
def test_what_cannot_be_stored_is_named(name, tensor, code, fields):
    with refused(ContractError, code, **fields):
        wire.encode({name: tensor}, {})
