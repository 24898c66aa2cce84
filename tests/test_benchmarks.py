"""The benchmark runs, in a tiny size; its timings are never asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "round_loop.py"


def test_the_round_loop_prints_ratios(tmp_path: Path) -> None:
    size = ["--rounds", "2", "--sites", "4", "--fraction", "0.5", "--images", "240", "--test", "40"]
    done = subprocess.run(
        [sys.executable, SCRIPT, *size, "--json", tmp_path / "figures.json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    for name in ("ratio of CPU (medfl / plain)", "ratio of wall (medfl / plain)"):
        assert name in done.stdout
        assert figures[name] > 0
