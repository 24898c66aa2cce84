"""Compare a round of medfl's fedavg with other simulators and with plain PyTorch, on the same work, round by round.

Each contestant is a process of its own and waits for its turn before every round; the order of the turns changes from
round to round, so all meet the same machine. Figures of a round are the CPU seconds of the whole process tree, wall
seconds, and resident and proportional memory after the round. The first round does not count. The work: ten sites of 8
to 30 batches of 32 images of 28 pixels, the four-layer CNN, SGD, one epoch, no evaluation, one thread for each process.

A "tuned" contestant's environment makes glibc keep freed memory, as medfl does by itself; "glibc's defaults" is medfl
with these thresholds left alone.

    python benchmarks/peers.py --data bloodmnist.npz
    python benchmarks/peers.py --only plain 'medfl, 1 process' --rounds 4

pfl-research and FedLab are not among medfl's requirements. Install them in an environment of their own that has medfl's
torch, without their requirements, most of which the loops do not need, and name its interpreter:

    python -m venv --system-site-packages peers
    peers/bin/pip install --no-deps pfl fedlab multiprocess dill prv-accountant munch nvidia-ml-py
    python benchmarks/peers.py --peers-python peers/bin/python

A peer that is not installed is named in the output and left out.
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
"""Variables by which glibc keeps freed memory."""

UNTUNED = {"MALLOC_ARENA_TEST": "8"}
"""A variable at its default value, which makes medfl leave glibc's thresholds alone."""

BASE = "plain loop"


@dataclass(frozen=True)
class Contestant:
    """A way to train.

    Attributes:
        name: Name in the table.
        kind: Name of its loop in `peer_loops.py`.
        workers: Processes that train.
        environment: Variables of its process.
        peer: Whether it runs with the interpreter of `--peers-python`.
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
    """Figures of one round: seconds of CPU and of wall time, and MiB of the process tree after it."""

    cpu: float
    wall: float
    rss: float
    pss: float


class Process:
    """A contestant's process.

    Args:
        contestant: What it runs.
        options: Of the command line.
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
        """Let it run one round, and note what that took."""
        cpu, wall = self._cpu(), time.perf_counter()
        self._say("go")
        self._wait()
        wall = time.perf_counter() - wall
        tree = [self._tree, *self._tree.children(recursive=True)]
        memory = [process.memory_full_info() for process in tree]
        rss, pss = sum(part.rss for part in memory) / 2**20, sum(part.pss for part in memory) / 2**20
        self.rounds.append(Round(self._cpu() - cpu, wall, rss, pss))

    def end(self) -> None:
        """End it."""
        self._say("end")
        self._process.communicate()

    def _cpu(self) -> float:
        """CPU seconds of the process and of its children, the ended ones among them."""
        own = self._tree.cpu_times()
        ended = own.children_user + own.children_system
        children = [child.cpu_times() for child in self._tree.children(recursive=True)]
        return own.user + own.system + ended + sum(each.user + each.system for each in children)

    def _say(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()

    def _wait(self) -> None:
        """Wait until it is ready for the next round.

        Raises:
            RuntimeError: If it ended instead.
        """
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == "ready":
                return
        _, errors = self._process.communicate()
        raise RuntimeError(errors.strip().splitlines()[-1] if errors.strip() else "it ended")


def start(options: argparse.Namespace) -> dict[str, Process]:
    """Start every contestant; one that can't start is named with the reason and left out."""
    started = {}
    for contestant in CONTESTANTS:
        if options.only and not any(contestant.name.startswith(name) for name in options.only):
            continue
        try:
            started[contestant.name] = Process(contestant, options)
        except (RuntimeError, OSError) as error:
            if not contestant.peer:
                raise
            print(f"left out: {contestant.name} ({error}); `--help` says how to install it", file=sys.stderr)
    return started


def measure(options: argparse.Namespace) -> dict[str, list[Round]]:
    """Run all contestants in turn; returns the counted rounds of each."""
    processes = start(options)
    order = list(processes)
    shuffled = random.Random(0)
    for index in range(options.rounds + 1):
        shuffled.shuffle(order)
        for name in order:
            processes[name].run_round()
        seconds = sum(process.rounds[-1].wall for process in processes.values())
        counts = f"{index} of {options.rounds}" if index else "0, which does not count,"
        print(f"round {counts} took {seconds:.0f} s over all contestants", file=sys.stderr, flush=True)
    for process in processes.values():
        process.end()
    return {name: process.rounds[1:] for name, process in processes.items()}


def summarise(rounds: dict[str, list[Round]]) -> dict[str, dict[str, float]]:
    """Medians of each contestant, and ratios to the plain loop's in the same round: median, least and greatest."""
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
    """Read the options, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="counted rounds")
    parser.add_argument("--data", type=Path, help="bloodmnist.npz; random images otherwise")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of batches of each site")
    parser.add_argument("--sites", type=int, default=10, help="number of sites, 1 to 10")
    parser.add_argument("--peers-python", type=Path, default=Path(sys.executable), help="interpreter with the peers")
    parser.add_argument("--only", nargs="+", default=[], help="beginnings of names of contestants")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    if options.only:
        options.only.append(BASE)
    figures = summarise(measure(options))
    print(table(figures))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
