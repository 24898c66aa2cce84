"""Measure the duration of short medfl commands, the start-up time of `medfl run`, and the time to a first tiny round.

The first round has one site with one batch. It runs in a plain PyTorch loop, in medfl, and, if `--peers-python` is
given, in pfl-research and FedLab (see `peers.py`). The start-up time of `medfl run` ends at the first job. Each
measurement starts a separate process, as on a command line. The processes run one after the other, and the script
prints medians. The times depend on the installed packages, because MONAI imports optional packages (MLflow, Optuna,
...) if they are installed.

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
"""Name of the figure for the start-up time of `medfl run`."""


def run_command(words: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Run a medfl command and return its start time, in seconds since 1970, and its duration in seconds."""
    started_at, start = time.time(), time.monotonic()
    subprocess.run([sys.executable, "-m", "medfl", *words], env=environment, capture_output=True, check=True)
    return started_at, time.monotonic() - start


def to_first_job(data: Path, out: Path, environment: dict[str, str]) -> float:
    """Return the seconds from the call of `medfl run` to the start of the first site's job."""
    words = [
        "run",
        str(shipped_bundles()["medmnist_classification"]),
        "--dataset-dir",
        str(data),
        "--output-dir",
        str(out),
    ]
    started_at, _ = run_command(
        [*words, "--rounds", "1", "--steps", "1", "--batch-size", "2", "--workers", "2"], environment
    )
    lines = [ProgressLine.from_bytes(line) for line in (out / PROGRESS).read_bytes().splitlines()]
    return next(line.time for line in lines if line is not None and isinstance(line.event, JobStart)) - started_at


def to_end_of_round(contestant: Contestant, peers_python: Path) -> float:
    """Return the seconds from the start of a process to the end of a round of one site with one batch.

    Raises:
        RuntimeError: If the framework of the contestant is not installed.
    """
    options = argparse.Namespace(rounds=1, data=None, scale=0, sites=1, peers_python=peers_python)
    start = time.monotonic()
    process = Process(contestant, options)
    process.run_round()
    taken = time.monotonic() - start
    process.end()
    return taken


def in_memory(peers_python: Path | None) -> list[Contestant]:
    """Return the contestants to measure: one process each, an unchanged environment, and an available interpreter."""
    single = [each for each in CONTESTANTS if each.workers == 1 and not each.environment]
    return [each for each in single if peers_python is not None or not each.peer]


def measure(repetitions: int, folder: Path, peers_python: Path | None) -> dict[str, float]:
    """Return the median seconds of each command by its name.

    The first repetition is a warm-up, because it may compile modules.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    make_cohort(folder / "data", sites=4, images_per_site=20)
    commands = {"medfl --help": ["--help"], "medfl list methods": ["list", "methods"], "medfl status": ["status"]}
    taken: dict[str, list[float]] = {RUN: [], **{name: [] for name in commands}}
    for turn in range(repetitions + 1):
        run = folder / f"run-{turn}"
        taken[RUN].append(to_first_job(folder / "data", run, environment))
        for name, words in commands.items():
            taken[name].append(run_command([*words, str(run)] if words == ["status"] else words, environment)[1])
        for contestant in in_memory(peers_python):
            name = f"first round of one tiny site, {contestant.name}"
            taken.setdefault(name, []).append(to_end_of_round(contestant, peers_python or Path(sys.executable)))
    return {name: statistics.median(values[1:]) for name, values in taken.items()}


def main() -> None:
    """Run the measurements and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=7, help="repetitions after the warm-up")
    parser.add_argument("--json", type=Path, help="file for the figures as JSON")
    parser.add_argument(
        "--peers-python",
        type=Path,
        help="Python interpreter of the environment with pfl-research and FedLab; default: skip these",
    )
    options = parser.parse_args()
    if options.peers_python is None:
        print("skipped: pfl-research, FedLab; see `peers.py --help` for how to install them", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(options.repetitions, Path(folder), options.peers_python)
    for name, value in figures.items():
        print(f"{name}: {value:.2f} s")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
