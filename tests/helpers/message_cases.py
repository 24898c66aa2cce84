"""A message, and headers that no honest sender writes."""

import json
import math

import torch

from medfl.carriers.messages import Limits, Message, pack

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
    """A blob with any header, text or JSON, of which the size is right."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + body


def claim(meta='{"kind":"step","meta":{}}', **entries):
    """A header that claims tensors, with a meta of its own."""
    return {"__metadata__": {"medfl": meta, "sha256": "0" * 64}, **entries}


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


DEEP = "[" * 500_000
HEADERS = {
    "nothing": (b"", "got no JSON"),
    "no JSON": (b"{", "got no JSON"),
    "a list": (b"[]", "got list"),
    "null": (b"null", "got NoneType"),
    "NaN": (b"NaN", "got float"),
    "not UTF-8": (b'{"\xff": 1}', "UTF-8"),
    "UTF-16": ("{}".encode("utf-16"), "UTF-8"),
    "too many digits": (b'{"a": ' + b"9" * 5000 + b"}", "got no JSON"),
    "many digits": (b'{"a": ' + b"9" * 4000 + b"}", "'medfl' and 'sha256'"),
    "deep": (DEEP[:9900].encode(), "nested too deep"),
    "a key twice": (b'{"a": 1, "a": 2}', "a key twice"),
    "no metadata": ({}, "'medfl' and 'sha256'"),
    "metadata in a list": ({"__metadata__": []}, "'medfl' and 'sha256'"),
    "more metadata": ({"__metadata__": {"medfl": "{}", "sha256": "", "x": ""}}, "'medfl' and 'sha256'"),
    "meta is no text": (claim(5), "got another int"),
    "meta is not ASCII": (claim('{"é": 1}'), "ASCII"),
    "meta is no JSON": (claim("{'kind': 1}"), "the meta as a JSON object, got no JSON"),
    "meta is a list": (claim("[]"), "the meta as a JSON object, got list"),
    "meta with a key twice": (claim('{"kind":"a","kind":"b","meta":{}}'), "a key twice"),
    "inner meta with a key twice": (claim('{"kind":"a","meta":{"x":{"y":1,"y":2}}}'), "a key twice"),
    "no kind": (claim('{"meta":{}}'), "a kind and a dict of meta"),
    "no inner meta": (claim('{"kind":"a"}'), "a kind and a dict of meta"),
    "inner meta a list": (claim('{"kind":"a","meta":[]}'), "a kind and a dict of meta"),
    "one thing more": (claim('{"kind":"a","meta":{},"x":1}'), "a kind and a dict of meta"),
    "kind a number": (claim('{"kind":5,"meta":{}}'), "got int"),
    "kind deep": (claim('{"kind":' + "[" * 400 + "]" * 400 + ',"meta":{}}'), "got list"),
    "kind empty": (claim('{"kind":"","meta":{}}'), "1 to 64 printable"),
    "kind long": (claim('{"kind":"' + "a" * 65 + '","meta":{}}'), "1 to 64 printable"),
    "kind a lone surrogate": (claim('{"kind":"\\ud800","meta":{}}'), "1 to 64 printable"),
    "kind with a line": (claim('{"kind":"a\\nb","meta":{}}'), "1 to 64 printable"),
    "meta 17 deep": (claim('{"kind":"a","meta":{"x":' + "[" * 16 + "]" * 16 + "}}"), "at most 16 deep"),
    "an entry that is a number": (claim(x=5), "dtype, shape and data_offsets of 'x'"),
    "an entry with more": (claim(x=entry() | {"more": 1}), "dtype, shape and data_offsets of 'x'"),
    "an entry with less": (claim(x={"dtype": "F32", "shape": [2]}), "dtype, shape and data_offsets of 'x'"),
    "an unknown dtype": (claim(x=entry("C64")), "a dtype of 'x' among BF16, BOOL", "got 'C64'"),
    "a dtype in a list": (claim(x=entry(["F32"])), "a dtype of 'x'", "got list"),
    "shape a number": (claim(x=entry(shape=2)), "the shape of 'x' as a list of integers >= 0, got another int"),
    "a negative size": (claim(x=entry(shape=[-2, -1])), "integers >= 0"),
    "a size that is a bool": (claim(x=entry(shape=[2, True])), "integers >= 0"),
    "a size that is a float": (claim(x=entry(shape=[2.0])), "integers >= 0"),
    "a size that is NaN": (claim(x=entry(shape=[math.nan])), "integers >= 0"),
    "a size that is text": (claim(x=entry(shape=["2"])), "integers >= 0"),
    "five dimensions": (claim(x=entry(shape=[1, 1, 1, 1, 2])), "at most 4 dimensions of 'x', got 5"),
    "one offset": (claim(x=entry(offsets=[8])), "two integers"),
    "offsets of bools": (claim(x=entry("U8", [1], [False, True])), "two integers"),
    "offsets of floats": (claim(x=entry(offsets=[0.0, 8.0])), "two integers"),
    "offsets of NaN": (claim(x=entry(offsets=[math.nan, math.nan])), "two integers"),
    "offsets too far apart": (claim(x=entry(offsets=[0, 12])), "8 bytes of 'x'", "got 12"),
    "offsets the wrong way": (claim(x=entry(offsets=[8, 0])), "8 bytes of 'x'", "got -8"),
    "endless offsets": (claim(x=entry(offsets=[0, 10**1800])), "beyond 64 bits"),
    "negative offsets": (claim(x=entry(offsets=[-8, 0])), "8 bytes of 'x'"),
    "a gap": (claim(x=entry(), y=entry(offsets=[16, 24])), "the numbers of 'y' at 8, got 16"),
    "an overlap": (claim(x=entry(), y=entry(offsets=[4, 12])), "the numbers of 'y' at 8, got 4"),
    "the same place": (claim(x=entry(), y=entry()), "the numbers of 'y' at 8, got 0"),
    "more than is there": (claim(x=entry(shape=[8], offsets=[0, 32])), "tensors of 32 bytes", "got 8"),
    "less than is there": (claim(x=entry(shape=[1], offsets=[0, 4])), "tensors of 4 bytes", "got 8"),
    "no tensor at all": (claim(), "tensors of 0 bytes", "got 8"),
    "a name with a line": (claim(**{"a\nb": entry()}), "printable", "'a\\nb'"),
    "a name that is empty": (claim(**{"": entry()}), "1 to 512"),
    "a name of half a letter": (claim(**{"\ud800": entry()}), "printable"),
    "a long name": (claim(**{"n" * 513: entry()}), "1 to 512", "(513)", "n" * 50 + "n..."),
    "a wrong checksum": (claim(x=entry()), "a blob that fits its checksum"),
}
