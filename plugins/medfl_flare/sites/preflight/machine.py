"""The machine of a site: graphics processor, shared memory, space on its disks."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import torch

from medfl.errors import StoreError
from medfl.utils.files import write_atomic
from medfl_flare.sites.preflight import Caution

GB, MB = 1e9, 1e6

SHARED = Path("/dev/shm")  # noqa: S108 - nothing is written there
"""Where processes that load images hand them over."""

LOADER_MB = 256
"""Shared memory that a process that loads images should find."""

KEPT = 4
"""Largest messages for which a folder of runs should have space: three steps and a bundle."""

LEAST_MB = 100
"""Space without which nothing can be begun."""

GPU_MB = 1000
"""Memory of a graphics processor that should be free: CUDA itself takes half of that."""


def gpu(device: str) -> str:
    """Whether the graphics processor that the site's file wants is there, and free.

    Args:
        device: ``auto`` or ``cuda:N``, of the site's file.
    """
    if not torch.cuda.is_available():
        return Caution(
            "none can be seen, so runs compute on the CPU. If the machine has one: does `nvidia-smi` show it, is it "
            "passed into the container, and was torch installed with CUDA?"
        )
    number = torch.device("cuda:0" if device == "auto" else device).index or 0
    free, total = torch.cuda.mem_get_info(number)
    text = f"{torch.cuda.get_device_name(number)}, {free / GB:.1f} of {total / GB:.1f} GB are free"
    if free < GPU_MB * MB:
        return Caution(
            f"{text}: other processes hold it. `nvidia-smi` lists them; end them, or choose another 'device'"
        )
    return text


def shared_memory(loaders: int, folder: Path = SHARED) -> str:
    """Whether processes that load images have the shared memory that they need.

    Args:
        loaders: Number of such processes.
        folder: Where it is mounted.
    """
    if not folder.is_dir():
        return f"'{folder}' is not known to this system"
    free, wanted = shutil.disk_usage(folder).free / MB, loaders * LOADER_MB
    text = f"{free:.0f} MB are free in '{folder}'"
    if free < wanted:
        return Caution(
            f"{text}, {loaders} loaders should find {wanted} MB or they may be killed in mid-run (bus error). Start "
            f"the container with --shm-size {wanted}m, or give fewer 'loaders'"
        )
    return text if loaders else f"{text}; without 'loaders' none is needed"


def space(folder: Path, message_mb: int = 0) -> str:
    """Whether a folder can be written, and has space.

    Args:
        folder: It is made if it is not there.
        message_mb: The largest message that it must hold a few of; 0 where it holds none.

    Raises:
        StoreError: If it can't be written, or is full.
    """
    probe = folder / f".medfl-check-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomic(probe, b"x")
        probe.unlink()
        free = shutil.disk_usage(folder).free / MB
    except OSError as error:
        raise StoreError(
            "unwritable_folder",
            f"'{folder}' can't be written ({error.strerror}); let the owner of the site's process write there, or name "
            "another folder",
            path=folder,
        ) from None
    if free < LEAST_MB:
        raise StoreError(
            "disk_full",
            f"'{folder}' has {free:.0f} MB left, at least {LEAST_MB} are needed; `medfl clean` frees what finished "
            "runs hold",
            path=folder,
            minimum=LEAST_MB,
            found=free,
        )
    text = f"'{folder}' can be written, {free / 1000:.1f} GB are free"
    if free < KEPT * message_mb:
        return Caution(
            f"{text}; runs with messages of {message_mb} MB (max_message_mb) need {KEPT * message_mb / 1000:.1f} GB. "
            "Free some, or allow smaller messages"
        )
    return text
