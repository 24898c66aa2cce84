"""A message, and headers that no honest sender writes."""

import json
import math

import torch

from medfl_flare.backend.messages import Limits, Message, pack

LIMITS = Limits(max_bytes=20_000, max_header_bytes=10_000, max_tensors=10, max_dims=4, max_meta_bytes=1_000)

MESSAGE = Message(
    "step",
    {
        "model/weight": torch.arange(6.0).reshape(2, 3),
        "model/half": torch.tensor([0.5, math.nan, -math.inf]).bfloat16(),
        "model/count": torch.tensor(7),
        "flags": torch.tensor([True, False]),
        "empty": torch.zeros(0, 4),
        "é/$quoted\\": torch.tensor([[1, 2]], dtype=torch.uint16),
    },
    {"op": "train", "round": 3, "share": 0.1 + 0.2, "names": ["a", "é", '"'], "none": None, "deep": [[{"x": [True]}]]},
)
BLOB = pack(MESSAGE)


def header_of(blob):
    return json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")])


def body_of(blob):
    return blob[8 + int.from_bytes(blob[:8], "little") :]


def crafted(header, body=b""):
    """Return a blob with any header, text or JSON, and a correct size."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + body


def claim(meta='{"kind":"step","meta":{}}', **entries):
    """A header that claims tensors, with a meta of its own."""
    return {"__metadata__": {"medfl": meta, "sha256": "0" * 64}, **entries}


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


DEEP = "[" * 500_000
HEADERS = {
    "nothing": (b"", "invalid_json", {"part": "the header", "found": "no JSON"}),
    "no JSON": (b"{", "invalid_json", {"part": "the header", "found": "no JSON"}),
    "a list": (b"[]", "invalid_json", {"part": "the header", "found": "list"}),
    "null": (b"null", "invalid_json", {"part": "the header", "found": "NoneType"}),
    "NaN": (b"NaN", "invalid_json", {"part": "the header", "found": "float"}),
    "not UTF-8": (b'{"\xff": 1}', "unsupported_encoding", {"expected": "a header in UTF-8"}),
    "UTF-16": ("{}".encode("utf-16"), "unsupported_encoding", {"expected": "a header in UTF-8"}),
    "too many digits": (b'{"a": ' + b"9" * 5000 + b"}", "invalid_json", {"part": "the header", "found": "no JSON"}),
    "many digits": (b'{"a": ' + b"9" * 4000 + b"}", "invalid_header_metadata", {}),
    "deep": (DEEP[:9900].encode(), "invalid_json", {"found": "JSON with too deep nesting"}),
    "a key twice": (b'{"a": 1, "a": 2}', "invalid_json", {"found": "an object with a duplicate key"}),
    "no metadata": ({}, "invalid_header_metadata", {}),
    "metadata in a list": ({"__metadata__": []}, "invalid_header_metadata", {}),
    "the checksum of a step file": ({"__metadata__": {"medfl": "{}", "crc32": ""}}, "invalid_header_metadata", {}),
    "more metadata": ({"__metadata__": {"medfl": "{}", "sha256": "", "x": ""}}, "invalid_header_metadata", {}),
    "meta is no text": (claim(5), "unsupported_encoding", {"found": "another int"}),
    "meta is not ASCII": (claim('{"é": 1}'), "unsupported_encoding", {"expected": "the meta as ASCII text"}),
    "meta is no JSON": (claim("{'kind': 1}"), "invalid_json", {"part": "the meta", "found": "no JSON"}),
    "meta is a list": (claim("[]"), "invalid_json", {"part": "the meta", "found": "list"}),
    "meta with a key twice": (
        claim('{"kind":"a","kind":"b","meta":{}}'),
        "invalid_json",
        {"found": "an object with a duplicate key"},
    ),
    "inner meta with a key twice": (
        claim('{"kind":"a","meta":{"x":{"y":1,"y":2}}}'),
        "invalid_json",
        {"found": "an object with a duplicate key"},
    ),
    "no kind": (claim('{"meta":{}}'), "invalid_message", {}),
    "no inner meta": (claim('{"kind":"a"}'), "invalid_message", {}),
    "inner meta a list": (claim('{"kind":"a","meta":[]}'), "invalid_message", {}),
    "one thing more": (claim('{"kind":"a","meta":{},"x":1}'), "invalid_message", {}),
    "kind a number": (claim('{"kind":5,"meta":{}}'), "invalid_message_kind", {"found": "int"}),
    "kind deep": (claim('{"kind":' + "[" * 400 + "]" * 400 + ',"meta":{}}'), "invalid_message_kind", {"found": "list"}),
    "kind empty": (
        claim('{"kind":"","meta":{}}'),
        "invalid_message_kind",
        {"expected": "a kind of 1 to 64 printable characters"},
    ),
    "kind long": (
        claim('{"kind":"' + "a" * 65 + '","meta":{}}'),
        "invalid_message_kind",
        {"expected": "a kind of 1 to 64 printable characters"},
    ),
    "kind a lone surrogate": (
        claim('{"kind":"\\ud800","meta":{}}'),
        "invalid_message_kind",
        {"expected": "a kind of 1 to 64 printable characters"},
    ),
    "kind with a line": (
        claim('{"kind":"a\\nb","meta":{}}'),
        "invalid_message_kind",
        {"expected": "a kind of 1 to 64 printable characters"},
    ),
    "meta 17 deep": (
        claim('{"kind":"a","meta":{"x":' + "[" * 16 + "]" * 16 + "}}"),
        "metadata_too_deep",
        {"maximum": 16},
    ),
    "an entry that is a number": (claim(x=5), "invalid_tensor_entry", {"tensor": "'x'"}),
    "an entry with more": (claim(x=entry() | {"more": 1}), "invalid_tensor_entry", {"tensor": "'x'"}),
    "an entry with less": (claim(x={"dtype": "F32", "shape": [2]}), "invalid_tensor_entry", {"tensor": "'x'"}),
    "an unknown dtype": (claim(x=entry("C64")), "unsupported_dtype", {"tensor": "'x'", "found": "'C64'"}),
    "a dtype in a list": (claim(x=entry(["F32"])), "unsupported_dtype", {"tensor": "'x'", "found": "list"}),
    "shape a number": (claim(x=entry(shape=2)), "invalid_tensor_shape", {"tensor": "'x'", "found": "another int"}),
    "a negative size": (claim(x=entry(shape=[-2, -1])), "invalid_tensor_shape", {"tensor": "'x'"}),
    "a size that is a bool": (claim(x=entry(shape=[2, True])), "invalid_tensor_shape", {"tensor": "'x'"}),
    "a size that is a float": (claim(x=entry(shape=[2.0])), "invalid_tensor_shape", {"tensor": "'x'"}),
    "a size that is NaN": (claim(x=entry(shape=[math.nan])), "invalid_tensor_shape", {"tensor": "'x'"}),
    "a size that is text": (claim(x=entry(shape=["2"])), "invalid_tensor_shape", {"tensor": "'x'"}),
    "five dimensions": (
        claim(x=entry(shape=[1, 1, 1, 1, 2])),
        "too_many_dimensions",
        {"tensor": "'x'", "maximum": 4, "found": "5"},
    ),
    "one offset": (claim(x=entry(offsets=[8])), "invalid_tensor_offsets", {"tensor": "'x'"}),
    "offsets of bools": (claim(x=entry("U8", [1], [False, True])), "invalid_tensor_offsets", {"tensor": "'x'"}),
    "offsets of floats": (claim(x=entry(offsets=[0.0, 8.0])), "invalid_tensor_offsets", {"tensor": "'x'"}),
    "offsets of NaN": (claim(x=entry(offsets=[math.nan, math.nan])), "invalid_tensor_offsets", {"tensor": "'x'"}),
    "offsets too far apart": (claim(x=entry(offsets=[0, 12])), "wrong_tensor_size", {"tensor": "'x'", "found": "12"}),
    "offsets the wrong way": (claim(x=entry(offsets=[8, 0])), "wrong_tensor_size", {"tensor": "'x'", "found": "-8"}),
    "endless offsets": (
        claim(x=entry(offsets=[0, 10**1800])),
        "wrong_tensor_size",
        {"tensor": "'x'", "found": "a number beyond 64 bits"},
    ),
    "negative offsets": (claim(x=entry(offsets=[-8, 0])), "wrong_tensor_size", {"tensor": "'x'", "found": "8"}),
    "a gap": (claim(x=entry(), y=entry(offsets=[16, 24])), "misplaced_tensor", {"tensor": "'y'", "found": "16"}),
    "an overlap": (claim(x=entry(), y=entry(offsets=[4, 12])), "misplaced_tensor", {"tensor": "'y'", "found": "4"}),
    "the same place": (claim(x=entry(), y=entry()), "misplaced_tensor", {"tensor": "'y'", "found": "0"}),
    "more than is there": (
        claim(x=entry(shape=[8], offsets=[0, 32])),
        "wrong_tensor_bytes",
        {"expected": "tensors of 32 bytes, as the header states", "found": "8"},
    ),
    "less than is there": (
        claim(x=entry(shape=[1], offsets=[0, 4])),
        "wrong_tensor_bytes",
        {"expected": "tensors of 4 bytes, as the header states", "found": "8"},
    ),
    "no tensor at all": (
        claim(),
        "wrong_tensor_bytes",
        {"expected": "tensors of 0 bytes, as the header states", "found": "8"},
    ),
    "a name with a line": (claim(**{"a\nb": entry()}), "invalid_tensor_name", {"tensor": "'a\\nb'"}),
    "a name that is empty": (claim(**{"": entry()}), "invalid_tensor_name", {"maximum": 512}),
    "a name of half a letter": (claim(**{"\ud800": entry()}), "invalid_tensor_name", {"maximum": 512}),
    "a long name": (
        claim(**{"n" * 513: entry()}),
        "invalid_tensor_name",
        {"maximum": 512, "found": "'" + "n" * 59 + "... (513)"},
    ),
    "a wrong checksum": (claim(x=entry()), "wrong_checksum", {}),
}
"""Maps cases to a header, and to the code and fields of its refusal."""
