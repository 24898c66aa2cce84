"""Measure the time per step, the transferred bytes and the memory of both backends, for models of several sizes.

The benchmark runs the same fedavg alternately on the backend ``local`` and on a provisioned federation of a server and
three sites on this machine (NVIDIA FLARE, mutual TLS). Each site trains one batch of two images, so a step is almost
only communication: serialization, checks, hashes, files with fsync and, with NVFlare, encryption and the network. All
processes run on one machine, so the results do not include the transfer time between hospitals. The time of a step is
the time between two commits of the server; each commit writes a file. The first step and the last evaluation are left
out.

    python benchmarks/backends.py
    python benchmarks/backends.py --megabytes 1 20 --rounds 6 --repeat 2
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
FACTS = {"num_classes": 2, "in_channels": 3, "size": 8, "spatial_dims": 2, "image_reading": None}
ADMIN = "researcher@example.org"
JOBS = {"server": "server.runner_process", "site": "client.worker_process"}
MB = 10**6


@dataclass
class RunFigures:
    """Measurements of one run.

    Attributes:
        steps: Seconds of each step.
        memory: Maps each part of the run ("one process", "server", "site") to its peak resident memory in bytes.
        bytes_: Bytes of the tensors to and from all sites.
        whole: Wall seconds of the whole run.
    """

    steps: list[float] = field(default_factory=list)
    memory: dict[str, int] = field(default_factory=dict)
    bytes_: int = 0
    whole: float = 0.0


def write_bundle(out: Path, megabytes: float) -> Path:
    """Write the MedMNIST bundle with a network of the given size in MB (float32) and return its folder."""
    shutil.copytree(shipped_bundles()["medmnist_classification"], out)
    path = out / "configs" / "train.json"
    content = json.loads(path.read_text())
    features = 8 * 2 * 2  # eight feature maps of 2 x 2 pixels
    content["networks"]["wide"] = {
        "_target_": "medfl.networks.convnet.ConvNet", "_mode_": "callable", "in_channels": 3, "num_classes": 2,
        "size": 8, "channels": [8, 8], "padding": 1, "dense": max(1, round(megabytes * MB / 4 / (features + 3))),
        "pooling": "flatten",
    }  # fmt: skip
    path.write_text(json.dumps(content))
    return out


def options(rounds: int) -> dict[str, object]:
    """Return the options of a run: one batch of two images per round and an evaluation at the end only."""
    values = {"rounds": rounds, "steps": 1, "batch_size": 2, "network_name": "wide", "evaluate_every": 1000}
    return {**values, "metrics": ["accuracy"], **FACTS}


@contextlib.contextmanager
def measure(
    states: Path, processes: Callable[[], dict[str, list[psutil.Process]]], figures: RunFigures
) -> Iterator[None]:
    """Record the steps, the peak memory and the duration of the run in the block, in place in `figures`.

    Args:
        states: Folder of the server's state, to which each step commits a file.
        processes: Function that returns the processes of each part of the run.
        figures: Receives the measurements.
    """
    done, seen = threading.Event(), dict[str, float]()

    def poll() -> None:
        while not done.wait(0.02):
            for path in states.glob("step-*.safetensors"):
                with contextlib.suppress(FileNotFoundError):
                    seen.setdefault(path.name, path.stat().st_mtime)
            for part, members in processes().items():
                for process in members:
                    with contextlib.suppress(psutil.Error):
                        figures.memory[part] = max(figures.memory.get(part, 0), process.memory_info().rss)

    thread = threading.Thread(target=poll)
    thread.start()
    started = time.perf_counter()
    try:
        yield
    finally:
        figures.whole = time.perf_counter() - started
        done.set()
        thread.join()
    times = [seen[name] for name in sorted(seen)]
    figures.steps = [later - earlier for earlier, later in zip(times[1:-2], times[2:-1], strict=True)]


def transferred_bytes(run: Path) -> int:
    """Return the bytes of the tensors to and from all sites in all rounds of a run."""
    table = read_metrics(run / "metrics.csv")
    return int(table[table["metric"].isin(["bytes_up", "bytes_down"])]["value"].sum())


def run_local(bundle: Path, data: Path, out: Path, rounds: int) -> RunFigures:
    """Run fedavg once on the local backend, in a separate process, and return the measurements."""
    figures = RunFigures()
    words = [f"{option_of_id(name)}={value}" for name, value in options(rounds).items()]
    command = [str(Path(sys.executable).with_name("medfl")), "run", str(bundle), "--dataset-dir", str(data)]
    with subprocess.Popen([*command, f"--output-dir={out}", *words], stdout=subprocess.DEVNULL) as process:
        here = {"one process": [psutil.Process(process.pid)]}
        with measure(out / "state" / "server", lambda: here, figures):
            assert process.wait() == 0
    figures.bytes_ = transferred_bytes(out)
    return figures


def run_flare(bundle: Path, kits: Path, states: Path, out: Path, rounds: int) -> RunFigures:
    """Submit fedavg once to the running federation and return the measurements."""
    figures, jobs = RunFigures(), dict[int, tuple[str, psutil.Process]]()

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
    with measure(states / "runs" / out.name / "state" / "server", processes, figures), quiet():
        submit(Submission(offer, kits / ADMIN, out))
    figures.bytes_ = transferred_bytes(out)
    return figures


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Discard the standard output of the block."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


@contextlib.contextmanager
def federation(root: Path, bundles: dict[str, Path], data: Path) -> Iterator[Path]:
    """Start a server and three sites on this machine, yield the folder of their startup kits, and stop them all."""
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
            start(kit, restart=False)
        yield kits
    finally:
        for kit in reversed(folders.values()):
            stop(kit)


def show(megabytes: float, local: list[RunFigures], flare: list[RunFigures]) -> None:
    """Print the table row of one model size: median step times, their ratio, bytes per step, and peak memory."""
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
    """Measure all model sizes and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[1, 20, 200], help="sizes of the model in MB")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each run")
    parser.add_argument("--repeat", type=int, default=2, help="runs on each backend")
    arguments = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="medfl-backends-") as folder:
        root = Path(folder)
        data = root / "data"
        make_cohort(data, sites=3, images_per_site=12, classes=2, size=8)
        bundles = {f"mb{size:g}": write_bundle(root / f"mb{size:g}", size) for size in arguments.megabytes}
        print(
            "step: median time between two commits; ratio: flare / local, minimum to maximum over the runs; bytes: "
            "tensors to and from the three sites in a step; memory: peak RSS of a process"
        )
        print(
            "| model | step, local | step, flare | ratio | bytes | run, local | run, flare | memory, local | server | "
            "site |"
        )
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
