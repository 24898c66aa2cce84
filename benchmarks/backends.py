"""Seconds of a step, bytes and memory of both carriers, for models of several sizes, interleaved in one run.

The same fedavg runs on the local carrier and on a provisioned federation of a server and three sites on this machine
(NVIDIA FLARE, mutual TLS), in turn. Each site trains one batch of two images, so a step is nearly all carrying:
packing, checks, hashes, files with fsync, and with NVFlare encryption and the network. Nothing crosses a cable here:
between hospitals the time of the line comes on top. A step's seconds are those between two commits of the server, which
end in a file each; the first step and the last scoring are left out.

    python benchmarks/carriers.py
    python benchmarks/carriers.py --megabytes 1 20 --rounds 6 --repeat 2
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from medfl.bundle.bundle_folders import shipped_bundles
from medfl.bundle.option_spelling import option_of_id
from medfl.engine.runs.records import read_metrics
from medfl.testing.synthetic import make_cohort
from medfl_flare.kit import start, stop
from medfl_flare.offer import make_offer
from medfl_flare.provision import Project, provision
from medfl_flare.session import Submission, submit

SITES = ("site-01", "site-02", "site-03")
FACTS = {"num_classes": 2, "in_channels": 3, "size": 8, "spatial_dims": 2}
ADMIN = "researcher@example.org"
JOBS = {"server": "server.runner_process", "site": "client.worker_process"}
MB = 10**6


@dataclass
class Measured:
    """What one run took: seconds of each step, and bytes of the highest resident memory."""

    steps: list[float] = field(default_factory=list)
    memory: dict[str, int] = field(default_factory=dict)
    bytes_: int = 0
    whole: float = 0.0


def write_bundle(out: Path, megabytes: float) -> Path:
    """Write the MedMNIST bundle with a network of the given size in MB (float32) and return its folder."""
    shutil.copytree(shipped_bundles()["medmnist_classification"], out)
    path = out / "configs" / "train.json"
    content = json.loads(path.read_text())
    features = 8 * 2 * 2  # eight maps of two pixels' edge
    content["networks"]["wide"] = {
        "_target_": "medfl.networks.convnet.ConvNet", "_mode_": "callable", "in_channels": 3, "num_classes": 2,
        "size": 8, "channels": [8, 8], "padding": 1, "dense": max(1, round(megabytes * MB / 4 / (features + 3))),
        "pooling": "flatten",
    }  # fmt: skip
    path.write_text(json.dumps(content))
    return out


def options(rounds: int) -> dict[str, object]:
    """Of a run: one batch of two images a round, scored at the end only."""
    values = {"rounds": rounds, "steps": 1, "batch_size": 2, "network_name": "wide", "evaluate_every": 1000}
    return {**values, "metrics": ["accuracy"], **FACTS}


@contextlib.contextmanager
def watched(states: Path, pids: Callable[[], dict[str, list[psutil.Process]]], measured: Measured) -> Iterator[None]:
    """Note when each step of the server is committed, and the highest memory of processes by their part."""
    done, seen = threading.Event(), dict[str, float]()

    def watch() -> None:
        while not done.wait(0.02):
            for path in states.glob("step-*.safetensors"):
                with contextlib.suppress(FileNotFoundError):
                    seen.setdefault(path.name, path.stat().st_mtime)
            for part, processes in pids().items():
                for process in processes:
                    with contextlib.suppress(psutil.Error):
                        measured.memory[part] = max(measured.memory.get(part, 0), process.memory_info().rss)

    thread = threading.Thread(target=watch)
    thread.start()
    started = time.perf_counter()
    try:
        yield
    finally:
        measured.whole = time.perf_counter() - started
        done.set()
        thread.join()
    times = [seen[name] for name in sorted(seen)]
    measured.steps = [later - earlier for earlier, later in zip(times[1:-2], times[2:-1], strict=True)]


def sent(run: Path) -> int:
    """Bytes to and from all sites in the rounds of a run, tensors alone."""
    table = read_metrics(run / "metrics.csv")
    return int(table[table["metric"].isin(["bytes_up", "bytes_down"])]["value"].sum())


def run_local(bundle: Path, data: Path, out: Path, rounds: int) -> Measured:
    """One run of the local carrier, in a process of its own."""
    measured = Measured()
    words = [f"{option_of_id(name)}={value}" for name, value in options(rounds).items()]
    command = [str(Path(sys.executable).with_name("medfl")), "run", str(bundle), "--dataset-dir", str(data)]
    with subprocess.Popen([*command, f"--output-dir={out}", *words], stdout=subprocess.DEVNULL) as process:
        here = {"one process": [psutil.Process(process.pid)]}
        with watched(out / "state" / "server", lambda: here, measured):
            assert process.wait() == 0
    measured.bytes_ = sent(out)
    return measured


def run_flare(bundle: Path, kits: Path, states: Path, out: Path, rounds: int) -> Measured:
    """One run of the federation that is up."""
    measured, jobs = Measured(), dict[int, tuple[str, psutil.Process]]()

    def processes() -> dict[str, list[psutil.Process]]:
        for process in psutil.process_iter(["pid", "cmdline"]):
            words = " ".join(process.info["cmdline"] or [])
            for part, module in JOBS.items():
                if str(kits) in words and module in words:
                    jobs.setdefault(process.pid, (part, process))
        parts = {part: [process for name, process in jobs.values() if name == part] for part in JOBS}
        time.sleep(0.1)
        return parts

    offer = make_offer(bundle, options(rounds), out.name, SITES, 600)
    with watched(states / "runs" / out.name / "state" / "server", processes, measured), quiet():
        submit(Submission(offer, kits / ADMIN, out))
    measured.bytes_ = sent(out)
    return measured


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Send what is printed nowhere."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


@contextlib.contextmanager
def federation(root: Path, bundles: dict[str, Path], data: Path) -> Iterator[Path]:
    """Start a server and three sites on this machine, and yield the folder of their startup kits."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    kits = root / "kits"
    provision(Project("localhost", SITES, ADMIN, port=port), kits)
    folders = {"server": kits / "localhost"} | {site: kits / site for site in SITES}
    for name, kit in folders.items():
        lines = [f'site = "{name}"', f'state = "{root / "state" / name}"', 'methods = ["fedavg"]']
        lines += ["max_message_mb = 2000", "min_count = 1"]
        for bundle, folder in bundles.items():
            lines += [f"[bundles.{bundle}]", f'folder = "{folder}"']
            lines += [] if name == "server" else [f'data = "{data / name}"']
        (kit / "local" / "medfl-site.toml").write_text("\n".join(lines) + "\n")
    try:
        for kit in folders.values():
            start(kit, watch=False)
        yield kits
    finally:
        for kit in reversed(folders.values()):
            stop(kit)


def show(megabytes: float, local: list[Measured], flare: list[Measured]) -> None:
    """One size: medians of the steps, their ratio, bytes of a step, highest memory."""
    steps = [statistics.median(step for run in runs for step in run.steps) for runs in (local, flare)]
    ratios = [statistics.median(b.steps) / statistics.median(a.steps) for a, b in zip(local, flare, strict=True)]
    memory = {part: max(run.memory[part] for run in (*local, *flare) if part in run.memory) for part in
              ("one process", *JOBS)}  # fmt: skip
    rounds = len(local[0].steps) + 1
    print(
        f"| {megabytes:g} MB | {steps[0]:.2f} s | {steps[1]:.2f} s | {min(ratios):.1f} to {max(ratios):.1f} | "
        f"{flare[0].bytes_ / rounds / MB:.0f} MB | {local[0].whole:.0f} s | {flare[0].whole:.0f} s | "
        + " | ".join(f"{size / MB:.0f} MB" for size in memory.values())
        + " |",
        flush=True,
    )


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[1, 20, 200])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeat", type=int, default=2)
    arguments = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="medfl-carriers-") as folder:
        root = Path(folder)
        data = root / "data"
        make_cohort(data, sites=3, images_per_site=12, classes=2, size=8)
        bundles = {f"mb{size:g}": write_bundle(root / f"mb{size:g}", size) for size in arguments.megabytes}
        print("Step: median seconds between two commits. Bytes: tensors to and from three sites. Memory: peaks of RSS.")
        print("| model | step, local | flare | ratio | bytes | run, local | flare | memory, local | server | site |")
        print("|---|---|---|---|---|---|---|---|---|---|")
        with federation(root, bundles, data) as kits:
            for size, bundle in zip(arguments.megabytes, bundles.values(), strict=True):
                local, flare = [], []
                for turn in range(arguments.repeat):
                    local.append(run_local(bundle, data, root / f"local-{size:g}-{turn}", arguments.rounds))
                    states = root / "state" / "server"
                    flare.append(run_flare(bundle, kits, states, root / f"flare-{size:g}-{turn}", arguments.rounds))
                show(size, local, flare)


if __name__ == "__main__":
    main()
