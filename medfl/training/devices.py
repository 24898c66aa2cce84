"""Devices of a run: which one each process computes on, and errors about their memory.

CUDA fails in a process that is forked after its parent initialised CUDA, or only queried it. So the process that forks
workers (`medfl.engine.backends.pool`) neither initialises nor queries CUDA before; a child process counts the GPUs.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import re
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from medfl.errors import MedflError, SettingsError
from medfl.settings import Execution

logger = logging.getLogger(__name__)
"""Logger of this module."""

GIB = 2**30
"""Bytes of a gibibyte."""

SMALLEST_REST = 0.1
"""Share of a GPU's memory. If a smaller share is left, `MemoryWatch` warns."""

CHECK_SECONDS = 10.0
"""Seconds between two checks of a GPU's memory during a job."""


def pick_device(device: str, workers: int = 1) -> str:
    """Return the device for a name; ``auto`` is the first GPU, or the CPU without a GPU.

    With several workers the device is the CPU, and CUDA is not queried, because workers are forked later. A GPU is
    initialised immediately, because `medfl.utils.rng` seeds only initialised devices. From then on, this process uses
    torch's deterministic algorithms: the same run on the same kind of GPU gives the same bits. torch warns of an
    operation without such an algorithm.

    Args:
        device: ``auto``, ``cpu`` or ``cuda:N``.
        workers: Number of processes that train sites; 1 is this process.

    Raises:
        SettingsError: If a GPU is requested but there is none, or there are several workers.
    """
    if workers > 1:
        if device.startswith("cuda"):
            raise SettingsError(
                "incompatible_settings",
                f"device '{device}' and {workers} workers were requested, but with several workers each one needs the "
                f"name of its GPU: replace both options by --devices {','.join(['cuda:0'] * workers)} for workers on "
                "the same GPU, or --devices cuda:0,cuda:1 for different ones. To compute in one process, use "
                "--workers 1.",
                settings=["device", "workers"],
                device=device,
                workers=workers,
            )
        if device == "auto" and torch.backends.cuda.is_built():
            logger.info("%d workers compute on the CPU; to use GPUs, name one for each with --devices.", workers)
        return "cpu"
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return "cpu"
    if not torch.cuda.is_available():
        raise SettingsError(
            "missing_gpu",
            f"device '{device}' was requested, but torch finds no GPU. Use --device cpu or auto.",
            device=device,
        )
    _use_deterministic_algorithms()
    torch.cuda.init()
    return "cuda:0" if device == "auto" else device


def task_device(execution: Execution) -> str:
    """Return the device of a run's task: the implied one of worker devices, otherwise the result of `pick_device`."""
    return execution.device if execution.devices else pick_device(execution.device, execution.workers)


def _use_deterministic_algorithms() -> None:
    """Make torch use deterministic algorithms, also in processes that are forked later, and warn where it has none."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it starts
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # takes time, and only shows errors of a program


# ---- devices of workers


def with_worker_devices(execution: Execution) -> Execution:
    """Check the setting ``devices``, and return the execution with the ``device`` and ``workers`` that it implies.

    ``device`` becomes ``cpu`` or ``cuda``: the current GPU of the process, which `use_device` selects. Without
    ``devices`` the execution is returned unchanged.

    Raises:
        SettingsError: If ``devices`` mixes CPU and GPUs, contradicts ``device`` or ``workers``, or names a GPU that
            torch does not find; or if this process used a GPU before.
    """
    devices, chosen = execution.devices, execution.model_fields_set
    if not devices:
        return execution
    kinds = sorted({name.partition(":")[0] for name in devices})
    if len(kinds) > 1:
        raise SettingsError(
            "mixed_devices",
            f"expected devices of one kind, got {','.join(devices)}: CPU and GPU round differently, so a site's "
            "numbers would depend on its worker. Name only GPUs, or only 'cpu'.",
            setting="devices",
            found=devices,
        )
    contradictions = [
        name
        for name, implied in (("device", kinds[0]), ("workers", len(devices)))
        if name in chosen and getattr(execution, name) not in (implied, "auto")
    ]
    if contradictions:
        values = " and ".join(f"{name} {getattr(execution, name)}" for name in contradictions)
        raise SettingsError(
            "incompatible_settings",
            f"devices '{','.join(devices)}' means {len(devices)} workers on '{kinds[0]}', but the run also has "
            f"{values}. Leave {' and '.join(contradictions)} out.",
            settings=["devices", *contradictions],
            devices=devices,
        )
    if kinds == ["cuda"]:
        _check_gpus(devices)
        _use_deterministic_algorithms()
    return execution.model_copy(update={"device": kinds[0], "workers": len(devices)})


def worker_devices(execution: Execution) -> tuple[str, ...]:
    """Return the device of each worker process; empty if the main process trains the sites."""
    return execution.devices or (("cpu",) * execution.workers if execution.workers > 1 else ())


def _check_gpus(devices: Sequence[str]) -> None:
    """Raise if this process can't start workers on GPUs, or if torch does not find one of the GPUs."""
    if torch.cuda.is_initialized():
        raise gpu_used_before_workers()
    present = find_gpus()
    missing = sorted(set(devices) - present.keys())
    if missing:
        listed = ", ".join(f"{name} ({model})" for name, model in present.items()) or "none"
        raise SettingsError(
            "missing_gpu",
            f"devices {', '.join(missing)} were requested, but torch finds these GPUs: {listed}. Change --devices, or "
            "the environment variable CUDA_VISIBLE_DEVICES.",
            devices=missing,
            found=sorted(present),
        )


def find_gpus() -> dict[str, str]:
    """Return the model of each GPU by its name, ``cuda:0`` and so on. A child process queries CUDA.

    Raises:
        SettingsError: If this process queried CUDA before, so that its child processes can't use GPUs.
    """
    if not torch.backends.cuda.is_built():
        return {}
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as child:
        try:
            return child.submit(_query_gpus).result()
        except RuntimeError as error:
            if is_late_fork(error):
                raise gpu_used_before_workers() from error
            raise


def _query_gpus() -> dict[str, str]:
    """Query CUDA for the model of each GPU; called in a child process."""
    return {f"cuda:{number}": torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())}


def use_device(name: str) -> None:
    """Initialise a GPU and make it this thread's current one, which ``cuda`` then means; do nothing for ``cpu``."""
    if name != "cpu":
        torch.cuda.init()
        torch.cuda.set_device(name)


def gpu_used_before_workers() -> SettingsError:
    """Return the error for a process that used a GPU before it forked worker processes."""
    return SettingsError(
        "gpu_used_before_workers",
        "This process trained or used a GPU before it started workers, and torch can't continue in forked workers "
        "then. Start the run in a separate process (`medfl run`), use --workers 1, or hide the GPUs: "
        "CUDA_VISIBLE_DEVICES=''.",
    )


def is_late_fork(error: BaseException) -> bool:
    """Return True if torch raised an error because the process was forked after its parent used CUDA or autograd."""
    return any(words in str(error) for words in ("CUDA in forked subprocess", "fork-based multiprocessing"))


# ---- memory


@dataclass(frozen=True)
class GpuMemory:
    """Memory of a GPU, in bytes.

    Attributes:
        name: Name of the GPU, such as ``cuda:0``.
        free: Bytes that no process has.
        total: All bytes.
        held: Bytes that torch has reserved in this process now.
        reserved: Most bytes that torch had reserved in this process at one time.
    """

    name: str
    free: int
    total: int
    held: int
    reserved: int

    def left(self, workers: int) -> int:
        """Return the bytes that are left once this process reserves as much again as it once did; may be negative.

        Other programs are assumed to keep the memory that they have now. Each other worker of the run on this GPU is
        assumed to come to need as much as this one, because a worker trains different sites in different rounds.

        Args:
            workers: Number of the run's processes that compute on the GPU, with this one, >= 1.
        """
        return min(self.free + self.held - self.reserved, self.total - workers * self.reserved)


def read_gpu_memory(device: str) -> GpuMemory | None:
    """Return the memory of a GPU; None for the CPU and other devices without CUDA.

    Args:
        device: Name of the device; ``cuda`` is this process's current GPU.
    """
    if torch.device(device).type != "cuda":
        return None
    index = torch.device(device).index
    name = f"cuda:{torch.cuda.current_device() if index is None else index}"
    free, total = torch.cuda.mem_get_info(name)
    return GpuMemory(name, free, total, torch.cuda.memory_reserved(name), torch.cuda.max_memory_reserved(name))


@dataclass
class MemoryWatch:
    """Watcher of a GPU's memory. It explains torch's errors, and warns once if little memory is left.

    The memory is checked before each job, every `CHECK_SECONDS` during it, and after it. The watch knows only what this
    process has reserved before. So it can't foresee the first job that needs much more, such as several large sites
    that train at the same time in the first step.

    Attributes:
        device: Device that this process computes on; ``cuda`` is its current GPU.
        devices: Devices of all worker processes; empty if this process trains.
        batch_size: The run's batch size.
    """

    device: str
    devices: Sequence[str]
    batch_size: int
    _has_warned: bool = field(default=False, init=False)

    @contextmanager
    def watch(self, participants: str) -> Iterator[None]:
        """Watch the memory during a job.

        Args:
            participants: Names of the sites that the job is for.

        Raises:
            MedflError: If the GPU is out of memory, with its name, the free and the requested memory.
        """
        try:
            with self._checks():
                yield
        except torch.OutOfMemoryError as error:
            raise self._explain(error, participants) from error

    @contextmanager
    def _checks(self) -> Iterator[None]:
        """Check the memory before the block, in a thread during it, and after it, until a check has warned."""
        memory = None if self._has_warned else self._check(self.device)
        if memory is None or self._has_warned:
            yield
            return
        name, is_over = memory.name, threading.Event()

        def check_until_the_end() -> None:
            while not (is_over.wait(CHECK_SECONDS) or self._has_warned):
                self._check(name)

        thread = threading.Thread(target=check_until_the_end, daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
        self._check(name)

    def _check(self, device: str) -> GpuMemory | None:
        """Read the memory of a device and warn if little is left. Return the memory, or None for the CPU."""
        memory = read_gpu_memory(device)
        if memory is None or self._has_warned:
            return memory
        workers = self._count_workers(memory.name)
        if memory.left(workers) < SMALLEST_REST * memory.total:
            self._has_warned = True
            logger.warning(
                "%s may run out of memory: less than %.0f %% of its %.2f GiB may be left. Free are %.2f GiB. This "
                "process has reserved %.2f GiB, and at most had %.2f GiB; the number of the run's processes on the "
                "GPU is %d. If a step fails for lack of memory, %s, and run the same command again.",
                memory.name,
                100 * SMALLEST_REST,
                memory.total / GIB,
                memory.free / GIB,
                memory.held / GIB,
                memory.reserved / GIB,
                workers,
                self._remedies(memory.name),
            )
        return memory

    def _count_workers(self, name: str) -> int:
        """Return the number of the run's processes that compute on a GPU, >= 1."""
        return Counter(self.devices).get(name, 1)

    def _remedies(self, name: str) -> str:
        """Return the ways to need less memory of a GPU, in words."""
        workers = self._count_workers(name)
        fewer = f"name {name} less often in --devices (now {workers} times), " if workers > 1 else ""
        return (
            f"{fewer}set a smaller --batch-size (now {self.batch_size}) or --precision bf16 in a new run folder, or "
            "end other programs on the GPU"
        )

    def _explain(self, error: torch.OutOfMemoryError, participants: str) -> MedflError:
        memory = read_gpu_memory(self.device)
        name = memory.name if memory else self.device
        requested = re.search(r"Tried to allocate ([\d.]+ \w+)", str(error))
        needed = requested[1] if requested else "an unknown amount"
        free = f"{memory.free / GIB:.2f} of {memory.total / GIB:.2f} GiB" if memory else "an unknown amount"
        return MedflError(
            "gpu_out_of_memory",
            f"The memory of {name} was exhausted in the step of '{participants}': torch needed another {needed}, free "
            f"were {free}. All saved steps are valid: {self._remedies(name)}, and run the same command again.",
            device=name,
            who=participants,
            needed=needed,
            free=memory.free if memory else None,
            total=memory.total if memory else None,
            batch_size=self.batch_size,
            workers=self._count_workers(name),
        )
