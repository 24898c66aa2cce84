"""Compare a round of medfl's fedavg with other simulators and with a plain PyTorch loop, on the same workload.

Each framework runs in a separate process, which waits for its turn before every round. The order of the turns changes
from round to round, so the load of the machine affects all frameworks equally. The benchmark measures the CPU seconds
of the whole process tree in a round, the wall seconds, and the memory after the round as RSS and PSS. The first round
is a warm-up and is not counted. The workload: ten sites of 8 to 30 batches of 32 images of 28 pixels, the four-layer
CNN, SGD, one epoch, no evaluation, one thread for each process.

For an entry marked "tuned", environment variables make glibc keep freed memory. medfl sets the same thresholds
automatically; in the entries marked "glibc's defaults" it does not.

    python benchmarks/peers.py --data bloodmnist.npz
    python benchmarks/peers.py --only plain 'medfl, 1 process' --rounds 4

medfl does not depend on pfl-research and FedLab. Install them in a separate environment that uses medfl's torch, and
pass its interpreter. Install them without their dependencies, because the loops need only a few of these:

    python -m venv --system-site-packages peers
    peers/bin/pip install --no-deps pfl fedlab multiprocess dill prv-accountant munch nvidia-ml-py
    python benchmarks/peers.py --peers-python peers/bin/python

The benchmark reports and skips a framework that is not installed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

TUNED = {"MALLOC_MMAP_THRESHOLD_": "1000000000", "MALLOC_TRIM_THRESHOLD_": "1000000000"}
"""Environment variables that make glibc keep freed memory."""

UNTUNED = {"MALLOC_ARENA_TEST": "8"}
"""Environment variable with its default value. If any `MALLOC_*` variable is set, medfl does not change glibc's
thresholds."""

BASE = "plain loop"
"""Name of the entry to which the others are compared."""


@dataclass(frozen=True)
class Contestant:
    """A framework and its configuration, one row of the table.

    Attributes:
        name: Name in the table.
        kind: Name of the loop in `peer_loops.py`.
        workers: Number of training processes.
        environment: Additional environment variables of the process.
        peer: Whether the loop runs with the interpreter of `--peers-python`.
    """

    name: str
    kind: str
    workers: int = 1
    environment: dict[str, str] = field(default_factory=dict)
    peer: bool = False


CONTESTANTS = (
    Contestant(BASE, "plain"),
    Contestant("plain loop, tuned", "plain", environment=TUNED),
    Contestant("medfl, 1 process", "medfl"),
    Contestant("medfl, 2 workers", "medfl", workers=2),
    Contestant("medfl, 1 process, glibc's defaults", "medfl", environment=UNTUNED),
    Contestant("medfl, 2 workers, glibc's defaults", "medfl", workers=2, environment=UNTUNED),
    Contestant("pfl-research", "pfl", peer=True),
    Contestant("pfl-research, tuned", "pfl", environment=TUNED, peer=True),
    Contestant("FedLab", "fedlab", peer=True),
    Contestant("FedLab, tuned", "fedlab", environment=TUNED, peer=True),
)


@dataclass(frozen=True)
class Round:
    """Measurements of one round.

    Attributes:
        cpu: CPU seconds of the process tree.
        wall: Wall seconds.
        rss: Resident set size of the process tree after the round, in MiB.
        pss: Proportional set size of the process tree after the round, in MiB.
    """

    cpu: float
    wall: float
    rss: float
    pss: float


class Process:
    """Process of a contestant. The constructor starts it and waits until it is ready for its first round.

    Args:
        contestant: Framework and configuration to run.
        options: Options of the command line.

    Attributes:
        rounds: Measurements of each round so far.

    Raises:
        RuntimeError: If the process ends before it is ready.
    """

    def __init__(self, contestant: Contestant, options: argparse.Namespace) -> None:
        python = options.peers_python if contestant.peer else Path(sys.executable)
        words = [python, Path(__file__).with_name("peer_loops.py"), contestant.kind]
        words += ["--workers", str(contestant.workers), "--rounds", str(options.rounds + 1)]
        words += ["--data", options.data] if options.data else []
        words += ["--scale", str(options.scale), "--sites", str(options.sites)]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
        environment = inherited | {"OMP_NUM_THREADS": "1"} | contestant.environment
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        self._tree = psutil.Process(self._process.pid)
        self.rounds: list[Round] = []
        self._wait()

    def run_round(self) -> None:
        """Run one round in the process and append its measurements to `rounds`."""
        cpu, wall = self._cpu(), time.perf_counter()
        self._send("go")
        self._wait()
        wall = time.perf_counter() - wall
        tree = [self._tree, *self._tree.children(recursive=True)]
        memory = [process.memory_full_info() for process in tree]
        rss, pss = sum(part.rss for part in memory) / 2**20, sum(part.pss for part in memory) / 2**20
        self.rounds.append(Round(self._cpu() - cpu, wall, rss, pss))

    def end(self) -> None:
        """End the process."""
        self._send("end")
        self._process.communicate()

    def _cpu(self) -> float:
        """Return the CPU seconds of the process and its children, including ended children."""
        own = self._tree.cpu_times()
        ended = own.children_user + own.children_system
        children = [child.cpu_times() for child in self._tree.children(recursive=True)]
        return own.user + own.system + ended + sum(each.user + each.system for each in children)

    def _send(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()

    def _wait(self) -> None:
        """Wait until the process is ready for the next round.

        Raises:
            RuntimeError: If the process ended instead.
        """
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == "ready":
                return
        _, errors = self._process.communicate()
        raise RuntimeError(errors.strip().splitlines()[-1] if errors.strip() else "it ended")


def start(options: argparse.Namespace) -> dict[str, Process]:
    """Start the selected contestants and return their processes by name.

    A contestant of another framework that can't be started is skipped; the reason is printed.
    """
    started = {}
    for contestant in CONTESTANTS:
        if options.only and not any(contestant.name.startswith(name) for name in options.only):
            continue
        try:
            started[contestant.name] = Process(contestant, options)
        except (RuntimeError, OSError) as error:
            if not contestant.peer:
                raise
            print(f"skipped: {contestant.name} ({error}); see `--help` for how to install it", file=sys.stderr)
    return started


def measure(options: argparse.Namespace) -> dict[str, list[Round]]:
    """Run all contestants alternately and return the counted rounds of each by its name."""
    processes = start(options)
    order = list(processes)
    shuffled = random.Random(0)
    for index in range(options.rounds + 1):
        shuffled.shuffle(order)
        for name in order:
            processes[name].run_round()
        seconds = sum(process.rounds[-1].wall for process in processes.values())
        counts = f"{index} of {options.rounds}" if index else "0 (warm-up, not counted)"
        print(f"round {counts}: {seconds:.0f} s for all contestants together", file=sys.stderr, flush=True)
    for process in processes.values():
        process.end()
    return {name: process.rounds[1:] for name, process in processes.items()}


def summarise(rounds: dict[str, list[Round]]) -> dict[str, dict[str, float]]:
    """Return the figures of each contestant by its name.

    The figures are medians over the rounds, ratios to the plain loop in the same round, and the peak memory.
    """
    base = rounds[BASE]
    figures = {}
    for name, own in rounds.items():
        cpu = [mine.cpu / other.cpu for mine, other in zip(own, base, strict=True)]
        wall = [mine.wall / other.wall for mine, other in zip(own, base, strict=True)]
        figures[name] = {
            "CPU seconds": statistics.median(mine.cpu for mine in own),
            "CPU / plain": statistics.median(cpu),
            "CPU / plain, least": min(cpu),
            "CPU / plain, greatest": max(cpu),
            "wall / plain": statistics.median(wall),
            "RSS, MiB": max(mine.rss for mine in own),
            "PSS, MiB": max(mine.pss for mine in own),
        }
    return figures


def table(figures: dict[str, dict[str, float]]) -> str:
    """Return the figures as a Markdown table."""
    lines = ["| | CPU s a round | CPU / plain | wall / plain | RSS, PSS in MiB |", "|---|---|---|---|---|"]
    for name, row in figures.items():
        spread = f"{row['CPU / plain']:.2f} ({row['CPU / plain, least']:.2f} to {row['CPU / plain, greatest']:.2f})"
        memory = f"{row['RSS, MiB']:.0f}, {row['PSS, MiB']:.0f}"
        lines.append(f"| {name} | {row['CPU seconds']:.2f} | {spread} | {row['wall / plain']:.2f} | {memory} |")
    return "\n".join(lines)


def main() -> None:
    """Run the comparison and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="number of counted rounds")
    parser.add_argument("--data", type=Path, help="file bloodmnist.npz; default: random images")
    parser.add_argument("--scale", type=float, default=1.0, help="factor for the number of batches of each site")
    parser.add_argument("--sites", type=int, default=10, help="number of sites, 1 to 10")
    parser.add_argument(
        "--peers-python",
        type=Path,
        default=Path(sys.executable),
        help="Python interpreter of the environment with pfl-research and FedLab",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        help="run only entries whose names start with one of these; the plain loop always runs",
    )
    parser.add_argument("--json", type=Path, help="file for the figures as JSON")
    options = parser.parse_args()
    if options.only:
        options.only.append(BASE)
    figures = summarise(measure(options))
    print(table(figures))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
