"""A machine with two GPUs of 16 GiB in place of this one, for NVFlare, which asks the program ``nvidia-smi``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

NVIDIA_SMI = """#!/bin/sh
case "$1" in
*index*) printf 'index\\n0\\n1\\n' ;;
*) printf 'memory\\n16384 MiB\\n16384 MiB\\n' ;;
esac
"""


def use_made_up_gpus(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Put a program ``nvidia-smi`` that reports the GPUs first into PATH, and hide no GPU."""
    program = folder / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(NVIDIA_SMI)
    program.chmod(0o700)
    patch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
