"""Checks of a site's machine: GPU, shared memory, and free space on its disks.

Each check returns a sentence with its finding, and raises an error if a run will fail. A `Caution` is a finding after
which a run may fail later.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import torch

from medfl.errors import StoreError
from medfl.utils.files import write_atomic
from medfl_flare.sites.preflight import Caution

GB, MB = 1e9, 1e6
"""Number of bytes of a gigabyte, and of a megabyte."""

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - nothing is written there
"""Folder of the shared memory through which loader processes pass their images."""

LOADER_MB = 256
"""Shared memory in MB that should be free for each loader process."""

MESSAGES_ON_DISK = 4
"""Number of messages of the largest size for which a folder of runs should have space: three steps and a bundle."""

MIN_FREE_MB = 100
"""Free space in MB below which the check fails."""

MIN_GPU_MB = 1000
"""Free GPU memory in MB below which the check warns: CUDA itself takes half of that."""


def check_gpu(device: str) -> str:
    """Check that the GPU in the site's file exists, and that its memory is free.

    Args:
        device: ``auto`` or ``cuda:N``, as in the site's file.
    """
    if not torch.cuda.is_available():
        return Caution(
            "torch sees no GPU, so runs compute on the CPU. If the machine has one, check that `nvidia-smi` shows it, "
            "that it is passed into the container, and that torch was installed with CUDA"
        )
    number = torch.device("cuda:0" if device == "auto" else device).index or 0
    free, total = torch.cuda.mem_get_info(number)
    text = f"{torch.cuda.get_device_name(number)}, {free / GB:.1f} of {total / GB:.1f} GB are free"
    if free < MIN_GPU_MB * MB:
        return Caution(f"{text}: other processes use it. `nvidia-smi` lists them; end them, or choose another 'device'")
    return text


def check_shared_memory(loaders: int, folder: Path = SHARED_MEMORY) -> str:
    """Check that there is enough shared memory for the loader processes.

    Args:
        loaders: Number of loader processes.
        folder: Mount point of the shared memory.
    """
    if not folder.is_dir():
        return f"'{folder}' does not exist on this system"
    free, wanted = shutil.disk_usage(folder).free / MB, loaders * LOADER_MB
    text = f"{free:.0f} MB are free in '{folder}'"
    if free < wanted:
        return Caution(
            f"{text}, but {loaders} loaders need {wanted} MB, or they may be killed during a run (bus error). Start "
            f"the container with --shm-size {wanted}m, or give fewer 'loaders'"
        )
    return text if loaders else f"{text}; without 'loaders' none is needed"


def check_space(folder: Path, message_mb: int = 0) -> str:
    """Check that a folder can be written and has enough space. Creates the folder.

    Args:
        folder: Path of the folder.
        message_mb: Size in MB of the largest message. The folder must have space for several; 0 if it contains no
            messages.

    Raises:
        StoreError: If the folder can't be written, or if its disk is full.
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
            f"'{folder}' can't be written ({error.strerror}); give the owner of the site's process write permission, "
            "or name another folder",
            path=folder,
        ) from None
    if free < MIN_FREE_MB:
        raise StoreError(
            "disk_full",
            f"'{folder}' has {free:.0f} MB of free space, at least {MIN_FREE_MB} are needed; `medfl clean` deletes the "
            "state of finished runs",
            path=folder,
            minimum=MIN_FREE_MB,
            found=free,
        )
    text = f"'{folder}' can be written, {free / 1000:.1f} GB are free"
    if free < MESSAGES_ON_DISK * message_mb:
        return Caution(
            f"{text}; runs with messages of {message_mb} MB (max_message_mb) need "
            f"{MESSAGES_ON_DISK * message_mb / 1000:.1f} GB. Free some space, or allow smaller messages only"
        )
    return text
