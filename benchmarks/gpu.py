"""Check reproducibility on a GPU and compare medfl's round time with plain training passes of the same networks.

Correctness: two identical runs give identical bits. A run that is killed with `kill -9` midway and resumed gives the
same bits as well, and so does a run with two workers on the GPU (`--devices`). After two rounds, the weights on the CPU
and on the GPU agree within a tolerance. A run that needs more memory than it may have ends with an error that names the
GPU.

Methods: every method passes the conformance suite (`medfl.testing.check_method`) on the GPU.

Speed: the benchmark times rounds of FedAvg (ResNet-18, images of 224 pixels) and of FedSKD (ResNet-10, volumes of 48
voxels). After each round it counts the passes of the networks in that round and repeats them without medfl: the same
number of forward, backward and optimiser passes, with batches of the same shapes, on data that are already on the
device. The figures call these repeated passes "bare". The first round and its repetition are a warm-up. A ratio above 1
is the overhead of medfl: data loading, messages, state on disk, losses between networks, evaluation.

Workers: the benchmark times rounds of FedAvg with one worker process and with two on the same GPU. Each run has a
process of its own, because workers can't be forked from a process that used the GPU.

    python benchmarks/gpu.py --page gpu.md
    python benchmarks/gpu.py --device cpu --quick
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from medfl.data.arrays import ArrayDataset
from medfl.engine.evaluation import MetricRow
from medfl.engine.plan import MethodChoice
from medfl.engine.runs.simulation import Callbacks, RunData, SimulatedRun, simulate
from medfl.engine.site import Splits
from medfl.errors import MedflError
from medfl.networks.cnn import CNN4
from medfl.networks.resnet import ResNet
from medfl.objectives import Multiclass
from medfl.plugins import load_plugins
from medfl.settings import Execution, Settings
from medfl.task import Task
from medfl.testing import check_method
from medfl.training.devices import task_device, with_worker_devices
from medfl.utils.processes import core_count, fresh_context
from medfl.utils.wire import digest

TOLERANCE = 1e-3
"""Maximum difference between a weight on the CPU and on the GPU after two rounds, relative to the largest weight."""

Passes = Counter[tuple[tuple[int, ...], bool]]
"""Number of forward passes by (shape of the batch, whether gradients are enabled)."""


Outcome = TypeVar("Outcome", str, float)
"""Outcome of a check, or the value of a figure."""


@dataclass(frozen=True)
class Workload:
    """A training task of the benchmark.

    Attributes:
        method: Name of the method.
        build: Function that returns a new network.
        shape: Shape of an image, channels last.
        images: Number of images of each of the two sites; a quarter of them form the site's test set.
        batch_size: Batch size of training.
    """

    method: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    images: int
    batch_size: int


@dataclass
class PlainTraining:
    """Passes of a network without medfl, as many as in a round of medfl.

    Attributes:
        network: Network to train.
        device: Device of the network and its inputs.
        passes: Passes of the last round of medfl.
        seconds: Seconds of each repetition.
    """

    network: nn.Module
    device: str
    passes: Passes
    seconds: list[float] = field(default_factory=list)

    def repeat(self) -> None:
        """Run all passes once and append the time to `seconds`."""
        batches = {shape: torch.rand(shape, device=self.device) for shape, _ in self.passes}
        optimizer = torch.optim.SGD(self.network.parameters(), lr=0.01)
        start = now(self.device)
        for (shape, training), count in sorted(self.passes.items()):
            self.network.train(training)
            for _ in range(count):
                with torch.set_grad_enabled(training):
                    logits = self.network(batches[shape])
                if training:
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(logits, logits.argmax(1)).backward()
                    optimizer.step()
        self.seconds.append(now(self.device) - start)


def now(device: str) -> float:
    """Wait until the device is idle and return the time in seconds."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    return time.perf_counter()


def workloads(quick: bool) -> dict[str, Workload]:
    """Return the two workloads by name; small ones if `quick`."""
    flat, deep = (32, 16) if quick else (224, 48)
    images = 16 if quick else 256
    return {
        f"fedavg, ResNet-18, {flat} pixels": Workload(
            "fedavg", lambda: ResNet(18, 3, 8, norm="group"), (flat, flat, 3), images, 4 if quick else 32
        ),
        f"fedskd, ResNet-10, {deep} voxels": Workload(
            "fedskd",
            lambda: ResNet(10, 1, 2, spatial_dims=3, norm="group"),
            (deep, deep, deep, 1),
            images // 4,
            4 if quick else 8,
        ),
    }


def small_workload() -> Workload:
    """Return the small workload of the correctness checks."""
    return Workload("fedavg", lambda: CNN4(3, 8), (28, 28, 3), 64, 8)


def run(
    work: Workload,
    folder: Path,
    device: str,
    rounds: int,
    precision: str = "fp32",
    passes: Passes | None = None,
    on_round: Callable[[int, list[MetricRow]], None] = lambda number, rows: None,
    workers: int = 0,
) -> dict[str, torch.Tensor]:
    """Run two sites and return the exported tensors of the first one.

    Args:
        work: Workload to train.
        folder: Folder of the run. A run in the same folder is resumed.
        device: Device to train on.
        rounds: Number of rounds.
        precision: ``fp32`` or ``bf16``.
        passes: Counter to which the forward passes of all networks are added, in place.
        on_round: Callback after each round, with the round's number and its metric rows.
        workers: Number of worker processes on the device; 0 trains in this process.
    """
    rng = np.random.default_rng(0)
    total = 2 * work.images
    pixels = rng.integers(0, 256, (total, *work.shape), dtype=np.uint8)
    labels = rng.integers(0, 2, total)
    channels = work.shape[-1]

    def dataset(rows: np.ndarray) -> ArrayDataset:
        return ArrayDataset(pixels, labels[rows], rows, (0.5,) * channels, (0.5,) * channels)

    sites = {}
    for name, rows in zip(("site-1", "site-2"), np.array_split(np.arange(total), 2), strict=True):
        cut = len(rows) // 4
        sites[name] = Splits(dataset(rows[cut:]), dataset(rows[:0]), dataset(rows[:cut]))

    def build() -> nn.Module:
        network = work.build()
        if passes is not None:
            network.register_forward_hook(
                lambda _, inputs, __: passes.update([(tuple(inputs[0].shape), torch.is_grad_enabled())])
            )
        return network

    registry = load_plugins()
    execution = with_worker_devices(Execution(devices=(device,) * workers) if workers else Execution(device=device))
    task = Task(
        {"network": build},
        "network",
        nn.CrossEntropyLoss(),
        lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        Multiclass(8 if channels == 3 else 2),
        ("accuracy",),
        device=task_device(execution),
    )
    result = simulate(
        SimulatedRun(
            method=MethodChoice(name=work.method, make=lambda: registry.make_method(work.method, {})),
            task=task,
            settings=Settings(rounds=rounds, epochs=1, batch_size=work.batch_size, precision=precision),
            data=RunData(sites=sites),
            folder=folder,
            execution=execution,
            callbacks=Callbacks(on_round=on_round),
        )
    )
    models = result.models["site-1"]
    return dict(models.get("personal", models.get("global")).tensors)


def correctness(device: str, folder: Path) -> Iterator[tuple[str, str]]:
    """Check reproducibility, and yield the name and the outcome of each check."""
    work = small_workload()
    whole = digest(run(work, folder / "whole", device, 6))
    yield "the same run twice: the same bits", _yes_or_no(digest(run(work, folder / "again", device, 6)) == whole)
    command = [sys.executable, __file__, "--device", device, "--rounds", "6", "--child", str(folder / "killed")]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    progress = folder / "killed" / "progress.jsonl"
    while child.poll() is None and not (progress.is_file() and '"rounds_done": 3' in progress.read_text()):
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    ended = child.wait() == 0
    same = digest(run(work, folder / "killed", device, 6)) == whole
    outcome = "not tried: it had ended before the kill" if ended else _yes_or_no(same)
    yield "killed midway and resumed: the same bits", outcome
    pair = run_workers("small", device, 2, 6, folder / "pair")
    yield "two workers on one device: the same bits", _yes_or_no(pair["digest"] == whole)
    here, there = run(work, folder / "cpu", "cpu", 2), run(work, folder / "there", device, 2)
    most = max(float((here[name] - there[name].cpu()).abs().max()) for name in here)
    share = most / max(float(tensor.abs().max()) for tensor in here.values())
    yield (
        f"CPU and {device} after two rounds: within {TOLERANCE:g} of the largest weight",
        f"{_yes_or_no(share <= TOLERANCE)}, {share:.2g}",
    )
    if device.startswith("cuda"):
        yield "too little memory: an error that names the GPU", memory_error(device, folder)


def memory_error(device: str, folder: Path) -> str:
    """Return whether a run that needs more memory than it may have ends with an error that names the GPU."""
    work = replace(small_workload(), shape=(224, 224, 3), batch_size=48)
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.002, device)
    try:
        run(work, folder / "large", device, 1)
    except MedflError as error:
        return _yes_or_no(error.code == "gpu_out_of_memory" and f"memory of {device} " in str(error))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
    return "NO: the run had enough memory"


def conformance(device: str, names: Sequence[str], jobs: int) -> Iterator[tuple[str, str]]:
    """Yield for each method, in order of completion, whether it passes the conformance suite, otherwise its failures.

    Args:
        device: The device.
        names: Names of the methods.
        jobs: Number of methods that are checked at the same time, each in a process of its own.
    """
    with ProcessPoolExecutor(jobs, fresh_context(["medfl.testing"])) as pool:
        names_by_check = {pool.submit(conformance_failures, name, device): name for name in names}
        for check in as_completed(names_by_check):
            yield f"{names_by_check[check]}: conformance suite", check.result() or "yes"


def conformance_failures(name: str, device: str) -> str:
    """Return the failures of a method in the conformance suite, in one line; empty if it passes."""
    torch.set_num_threads(1)
    try:
        check_method(name, device=device)
    except AssertionError as error:
        return " ".join(f"NO: {error}".split())
    return ""


def _yes_or_no(holds: bool) -> str:
    return "yes" if holds else "NO"


def speed(
    name: str, work: Workload, device: str, rounds: int, folder: Path, precision: str = "fp32"
) -> dict[str, float]:
    """Return the figures of medfl's rounds and of plain training passes, measured alternately."""
    passes: Passes = Counter()
    taken: list[float] = []
    plain = PlainTraining(work.build().to(device), device, Counter())
    mark = [0.0]

    def on_round(number: int, rows: list[MetricRow]) -> None:
        if number <= len(taken):
            return  # the final evaluation, which is not a round
        taken.append(now(device) - mark[0])
        plain.passes = Counter(passes)  # the training of this round and the evaluation of the previous one
        plain.repeat()
        passes.clear()
        mark[0] = now(device)

    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
    mark[0] = now(device)
    run(work, folder / f"{work.method}-{precision}", device, rounds, precision, passes, on_round)
    figures = {
        "round, seconds": median(taken[1:]),
        "bare passes, seconds": median(plain.seconds[1:]),
        "medfl / bare": median(round_ / passed for round_, passed in zip(taken[1:], plain.seconds[1:], strict=True)),
        "passes with a gradient": float(sum(count for (_, grad), count in plain.passes.items() if grad)),
        "passes without": float(sum(count for (_, grad), count in plain.passes.items() if not grad)),
    }
    if device.startswith("cuda"):
        figures["peak memory on the device, GiB"] = torch.cuda.max_memory_allocated(device) / 2**30
    return {f"{name}, {precision}: {what}": value for what, value in figures.items()}


def workers_on_one_device(name: str, device: str, rounds: int, quick: bool, folder: Path) -> dict[str, float]:
    """Return the median seconds of a round with one worker process on a device, with two, and their ratio.

    Args:
        name: Name of the workload.
        device: The device.
        rounds: Number of rounds; the first one is a warm-up.
        quick: Whether the workload is small.
        folder: Folder for the runs.
    """
    runs = [run_workers(name, device, count, rounds, folder / f"{count} workers", quick) for count in (1, 2)]
    seconds = [median(outcome["seconds"][1:]) for outcome in runs]
    return {
        f"{name}: round with one worker, seconds": seconds[0],
        f"{name}: round with two workers on one device, seconds": seconds[1],
        f"{name}: two workers / one": seconds[1] / seconds[0],
    }


def run_workers(name: str, device: str, workers: int, rounds: int, folder: Path, quick: bool = False) -> dict[str, Any]:
    """Run a workload with worker processes, in a process of its own.

    Args:
        name: Name of the workload, or ``small``.
        device: Device of the workers.
        workers: Number of workers.
        rounds: Number of rounds.
        folder: Folder of the run.
        quick: Whether the workloads are small.

    Returns:
        A dict with the keys ``digest`` (of the first site's model) and ``seconds`` (of each round).
    """
    command = [sys.executable, __file__, "--device", device, "--child", str(folder), "--child-workers", str(workers)]
    command += ["--child-workload", name, "--rounds", str(rounds), *(["--quick"] if quick else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the run with {workers} workers on {device} failed:\n{done.stderr}")
    outcome: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return outcome


def run_as_child(work: Workload, device: str, workers: int, rounds: int, folder: Path) -> None:
    """Run a workload, and print the digest of the first site's model and the seconds of each round as JSON."""
    ends = [time.perf_counter()]

    def on_round(number: int, rows: list[MetricRow]) -> None:
        if number >= len(ends):  # else it is the final evaluation, which is not a round
            ends.append(time.perf_counter())

    tensors = run(work, folder, device, rounds, on_round=on_round, workers=workers)
    seconds = [after - before for before, after in pairwise(ends)]
    print(json.dumps({"digest": digest(tensors), "seconds": seconds}))


def measurements(device: str, rounds: int, quick: bool, folder: Path) -> Iterator[tuple[str, float]]:
    """Yield the name and the value of each figure."""
    works = workloads(quick)
    for name, work in works.items():
        for precision in ("fp32", "bf16") if device.startswith("cuda") else ("fp32",):
            yield from speed(name, work, device, rounds, folder, precision).items()
    yield from workers_on_one_device(next(iter(works)), device, rounds, quick, folder).items()


def gather(pairs: Iterable[tuple[str, Outcome]]) -> dict[str, Outcome]:
    """Print each name and value when it is known, and return them."""
    values = {}
    for name, value in pairs:
        print(f"{name}: {value:.3f}" if isinstance(value, float) else f"{name}: {value}", flush=True)
        values[name] = value
    return values


def machine(device: str) -> str:
    """Return a description of the machine."""
    if not device.startswith("cuda"):
        return f"CPU, torch {torch.__version__}"
    about = torch.cuda.get_device_properties(device)
    return f"{about.name}, {about.total_memory / 2**30:.0f} GiB, torch {torch.__version__}, CUDA {torch.version.cuda}"


def page(where: str, outcomes: dict[str, str], figures: dict[str, float]) -> str:
    """Return the results as a Markdown page."""
    lines = ["# On a GPU", "", f"`python benchmarks/gpu.py` on {where}.", "", "| promise | held |", "| --- | --- |"]
    lines += [f"| {name} | {outcome} |" for name, outcome in outcomes.items()]
    lines += ["", "| figure | measured |", "| --- | --- |"]
    lines += [f"| {name} | {value:.3f} |" for name, value in figures.items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the checks and the measurements, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0", help="device to test")
    parser.add_argument(
        "--rounds", type=int, default=6, help="rounds of each speed measurement; the first one is a warm-up"
    )
    parser.add_argument(
        "--jobs", type=int, default=core_count(), help="methods whose conformance is checked at the same time"
    )
    parser.add_argument("--quick", action="store_true", help="use tiny sizes and 2 methods, to test the script itself")
    parser.add_argument("--page", type=Path, help="file for the results as Markdown")
    parser.add_argument("--json", type=Path, help="file for the results as JSON")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--child-workers", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--child-workload", default="small", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if options.child:
        work = {"small": small_workload(), **workloads(options.quick)}[options.child_workload]
        run_as_child(work, options.device, options.child_workers, options.rounds, options.child)
        return
    methods = ["fedavg", "fedskd"] if options.quick else sorted(load_plugins().methods)
    with tempfile.TemporaryDirectory() as place:
        outcomes = gather(correctness(options.device, Path(place)))
        figures = gather(measurements(options.device, options.rounds, options.quick, Path(place)))
        outcomes |= gather(conformance(options.device, methods, options.jobs))
    text = page(machine(options.device), outcomes, figures)
    print(text)
    if options.page:
        options.page.write_text(text, encoding="utf-8")
    if options.json:
        content: dict[str, Any] = {"promises": outcomes, "figures": figures}
        options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
