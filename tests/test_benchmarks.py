"""The benchmarks run, in a tiny size; their timings are never asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "benchmarks"


def test_the_round_loop_prints_ratios(tmp_path: Path) -> None:
    size = ["--rounds", "2", "--sites", "4", "--fraction", "0.5", "--images", "240", "--test", "40"]
    said, figures = run("round_loop.py", size, tmp_path)
    for name in ("ratio of CPU (medfl / plain)", "ratio of wall (medfl / plain)"):
        assert name in said
        assert figures[name] > 0


def test_the_cost_of_a_method_is_a_ratio_to_fedavg(tmp_path: Path) -> None:
    said, ratios = run("method_cost.py", ["fedkper", "--repetitions", "2", "--images", "80"], tmp_path)
    assert list(ratios) == ["fedkper"]
    assert ratios["fedkper"] > 0
    assert f"{ratios['fedkper']:.2f} times fedavg" in said


def test_the_similarity_loss_is_timed_in_each_form(tmp_path: Path) -> None:
    said, figures = run("similarity_loss.py", ["--sizes", "90x6", "--repetitions", "2", "--no-memory"], tmp_path)
    assert "| 90 | 6 |" in said
    for form in ("direct", "n x n", "k x k"):
        assert figures[f"90 x 6, {form}: milliseconds forward and backward"] > 0


def test_ingestion_is_timed_against_bare_pydicom(tmp_path: Path) -> None:
    size = ["--images", "2", "--shape", "64x40", "--size", "16", "--repetitions", "2", "--workers", "1", "--bits", "12"]
    said, figures = run("ingest.py", size, tmp_path)
    assert said.startswith("2 images of 64 x 40, 12 bits, to 16")
    assert all(value > 0 for value in figures.values())
    assert {"CPU per image, medfl / bare", "cores used by 1 workers", "MiB at the peak, medfl"} <= set(figures)


def run(script: str, options: list[str], folder: Path) -> tuple[str, dict[str, float]]:
    """What a benchmark prints, and the figures that it writes."""
    command = [sys.executable, FOLDER / script, *options, "--json", folder / "figures.json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads((folder / "figures.json").read_text())
