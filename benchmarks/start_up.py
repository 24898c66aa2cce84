"""Seconds from a command to its answer, from `medfl run` to its first job, and to the end of a tiny first round.

The last is a round of one site with one batch, in memory: a plain loop of PyTorch, medfl, and the peers of `peers.py`
where `--peers-python` names an interpreter that has them. Each is a process of its own, as on a command line, in turn
with the others; the median of several is printed. How much is installed matters: MONAI imports what it can use (MLflow,
Optuna, ...) wherever it is there.

    python benchmarks/start_up.py
    python benchmarks/start_up.py --repetitions 3 --peers-python peers/bin/python
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from peers import CONTESTANTS, Contestant, Process

from medfl.bundle.bundle_folders import shipped_bundles
from medfl.engine.runs.progress import PROGRESS
from medfl.records.progress import JobStart, ProgressLine
from medfl.testing.synthetic import make_cohort

RUN = "medfl run, to its first job"


def seconds(words: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """When a command of medfl's began, in seconds since 1970, and how long it took."""
    start, began = time.time(), time.monotonic()
    subprocess.run([sys.executable, "-m", "medfl", *words], env=environment, capture_output=True, check=True)
    return start, time.monotonic() - began


def to_first_job(data: Path, out: Path, environment: dict[str, str]) -> float:
    """Seconds from the call of `medfl run` until the first site is told to train."""
    words = [
        "run",
        str(shipped_bundles()["medmnist_classification"]),
        "--dataset-dir",
        str(data),
        "--output-dir",
        str(out),
    ]
    start, _ = seconds([*words, "--rounds", "1", "--steps", "1", "--batch-size", "2", "--workers", "2"], environment)
    lines = [ProgressLine.from_bytes(line) for line in (out / PROGRESS).read_bytes().splitlines()]
    return next(line.time for line in lines if line is not None and isinstance(line.event, JobStart)) - start


def to_end_of_round(contestant: Contestant, peers_python: Path) -> float:
    """Seconds from the start of a process until it has trained one site for a round of one batch.

    Raises:
        RuntimeError: If it is a peer that is not installed.
    """
    options = argparse.Namespace(rounds=1, data=None, scale=0, sites=1, peers_python=peers_python)
    began = time.monotonic()
    process = Process(contestant, options)
    process.run_round()
    taken = time.monotonic() - began
    process.end()
    return taken


def in_memory(peers_python: Path | None) -> list[Contestant]:
    """Return the contestants that run in one process with an unchanged environment."""
    single = [each for each in CONTESTANTS if each.workers == 1 and not each.environment]
    return [each for each in single if peers_python is not None or not each.peer]


def measure(repetitions: int, folder: Path, peers_python: Path | None) -> dict[str, float]:
    """Return the median seconds of each command. A first turn, which may compile modules, is discarded."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    make_cohort(folder / "data", sites=4, images_per_site=20)
    answers = {"medfl --help": ["--help"], "medfl list methods": ["list", "methods"], "medfl status": ["status"]}
    taken: dict[str, list[float]] = {RUN: [], **{name: [] for name in answers}}
    for turn in range(repetitions + 1):
        run = folder / f"run-{turn}"
        taken[RUN].append(to_first_job(folder / "data", run, environment))
        for name, words in answers.items():
            taken[name].append(seconds([*words, str(run)] if words == ["status"] else words, environment)[1])
        for contestant in in_memory(peers_python):
            name = f"first round of one tiny site, {contestant.name}"
            taken.setdefault(name, []).append(to_end_of_round(contestant, peers_python or Path(sys.executable)))
    return {name: statistics.median(values[1:]) for name, values in taken.items()}


def main() -> None:
    """Print the medians, and write them where they are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--peers-python", type=Path, help="interpreter with the peers; without it they are left out")
    options = parser.parse_args()
    if options.peers_python is None:
        print("left out: pfl-research, FedLab; `peers.py --help` says how to install them", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(options.repetitions, Path(folder), options.peers_python)
    for name, value in figures.items():
        print(f"{name}: {value:.2f} s")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
