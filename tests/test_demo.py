"""The demo, in its smallest size, as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MEDFL = Path(sys.executable).with_name("medfl")


def test_the_demo_prints_who_gains(tmp_path: Path) -> None:
    done = subprocess.run(
        [MEDFL, "demo", "--out", str(tmp_path / "demo"), "--rounds", "1", "--images", "24"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "alone (local)" in done.stdout
    assert "together (fedavg)" in done.stdout
    for method in ("local", "fedavg"):
        run = tmp_path / "demo" / "runs" / method
        summary = json.loads((run / "summary.json").read_text())
        assert summary["status"] == "finished"
        assert len(list((run / "sites").glob("*/models/model.pt"))) == 4
    mean = summary["scores"]["global"]["test"]["accuracy"]["mean"]
    row = next(line for line in done.stdout.splitlines() if line.startswith("│ mean"))
    assert f"{mean:.3f}" in row
