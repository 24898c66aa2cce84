"""Seeds derived from keys, without importing torch, which takes seconds."""

from __future__ import annotations

import hashlib
import json


def seed_of(*key: str | int) -> int:
    """Return a 63-bit seed for a key; different keys give unrelated seeds.

    Args:
        key: Strings and integers, for example ``(seed, "site-02", 3, "batches")``.

    Returns:
        An integer in [0, 2**63).
    """
    digest = hashlib.sha256(json.dumps(key).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
