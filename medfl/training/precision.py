"""Numeric precision of a run's computations."""

from __future__ import annotations

import torch

from medfl.settings import Settings


def autocast(settings: Settings, device: str) -> torch.autocast:
    """Return the autocast context of the run on a device.

    It uses bfloat16 if `settings.precision` is ``bf16``, or ``amp`` on a device other than the CPU; otherwise float32.
    """
    kind = torch.device(device).type
    mixed = settings.precision == "bf16" or (settings.precision == "amp" and kind != "cpu")
    return torch.autocast(kind, torch.bfloat16, enabled=mixed)


def cpu_has_bf16() -> bool:
    """Return True if this CPU has bfloat16 instructions. Without them autocast is many times slower than float32."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
