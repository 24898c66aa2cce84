"""Thousands of damaged or forged messages: each yields the packed message or a refusal, and nothing else."""

import json
import math
import random

import pytest
from message_cases import BLOB, LIMITS, MESSAGE, body_of, crafted, header_of

from medfl.errors import RefusedError
from medfl.utils import wire
from medfl_flare.backend.messages import pack, unpack

HOSTILE = [None, True, -1, 0, 1, 2**31, 2**63, 10**40, 0.5, math.nan, math.inf, "", "F32", "\ud800", "\0", [], [[]], {}]


def edited(value, chance):
    """Return the JSON with one place changed: replaced, removed, duplicated or renamed."""
    places, waiting = [], [value]
    while waiting:
        inner = waiting.pop()
        keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
        places += [(inner, key) for key in keys]
        waiting += [inner[key] for key in keys if isinstance(inner[key], dict | list)]
    if not places:
        return value
    holder, key = chance.choice(places)
    way = chance.randrange(4)
    if way == 0:
        del holder[key]
    elif way == 1 and isinstance(holder, dict):
        holder[chance.choice(["", "dtype", "x" * 600, "__metadata__", "kind"])] = holder.pop(key)
    elif way == 2 and isinstance(holder, list):
        holder.insert(key, holder[key])
    else:
        holder[key] = chance.choice(HOSTILE)
    return value


def outcome(blob):
    """Return the message or the text of the refusal; any other error fails the test."""
    try:
        return unpack(blob, LIMITS)
    except RefusedError as error:
        return str(error)


def flipped(chance):
    raw = bytearray(BLOB)
    for _ in range(chance.randint(1, 4)):
        raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
    return bytes(raw)


def spliced(chance):
    start, end = sorted(chance.choices(range(len(BLOB) + 1), k=2))
    return BLOB[:start] + chance.choice([b"", chance.randbytes(chance.randint(1, 30)), BLOB[:end]]) + BLOB[end:]


def retold(chance):
    return crafted(edited(header_of(BLOB), chance), body_of(BLOB))


def retold_text(chance):
    raw = bytearray(json.dumps(header_of(BLOB)).encode())
    for _ in range(chance.randint(1, 3)):
        raw[chance.randrange(len(raw))] = chance.choice(b'[]{}",:0123456789\\u e-NaI')
    return crafted(bytes(raw), body_of(BLOB))


def noise(chance):
    size = chance.randrange(200)
    return chance.choice([b"", size.to_bytes(8, "little")]) + chance.randbytes(size + chance.randrange(20))


@pytest.mark.parametrize("make", [flipped, spliced, retold, retold_text, noise])
def test_what_is_not_the_message_is_refused(make):
    chance = random.Random(make.__name__)
    blobs = [blob for blob in (make(chance) for _ in range(1_000)) if blob != BLOB]
    assert len(blobs) > 700
    for blob in blobs:
        message = outcome(blob)
        assert isinstance(message, str), f"{blob!r} was taken for a message"
        assert message.isprintable()
        assert len(message) < 500


def test_a_forger_who_knows_the_checksum_can_only_send_messages():
    chance, taken, cases = random.Random(5), 0, 600
    for _ in range(cases):
        content = {"kind": "step", "meta": json.loads(json.dumps(MESSAGE.meta))}
        for _ in range(chance.randint(1, 3)):
            edited(content, chance)
        blob = wire.encode(MESSAGE.tensors, content)
        message = outcome(blob)
        if isinstance(message, str):
            assert message.isprintable()
        else:
            taken += 1
            assert set(content) == {"kind", "meta"}
            assert 1 <= len(message.kind) <= 64
            assert pack(message) == blob
    assert 0.3 * cases < taken < 0.99 * cases
