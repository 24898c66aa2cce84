"""Kits and offers for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from medfl_flare.records.offer import Offer


def offer(**changes: Any) -> Offer:
    values: dict[str, Any] = {
        "run": "one",
        "bundle": "a_bundle",
        "bundle_version": "0.1.0",
        "bundle_hash": "0" * 64,
        "medfl": "0.1.0",
        "method": "fedavg",
        "method_version": "0.1.0",
        "overrides": {"rounds": 3, "mean": [0.5]},
        "sites": ["site-01", "site-02"],
    }
    return Offer(**values | changes)


def make_kit(folder: Path, kind: str, script: str) -> Path:
    """A kit whose process is a shell script."""
    (folder / "startup").mkdir(parents=True)
    (folder / "local").mkdir()
    content = {
        "server": {"servers": [{"service": {"target": "localhost:0"}}]},
        "client": {"servers": [{"service": {"target": "fl.hospital.org:8002"}}]},
        "admin": {"admin": {"username": "me@hospital.org", "host": "localhost", "port": 8002}},
    }[kind]
    (folder / "startup" / f"fed_{kind}.json").write_text(json.dumps(content))
    path = folder / "startup" / "sub_start.sh"
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o700)
    return folder
