"""In which precision a run computes."""

from __future__ import annotations

import torch

from medfl.settings import Settings


def autocast(settings: Settings, device: str) -> torch.autocast:
    """The precision of the run on a device: bfloat16 where `settings.precision` says so, otherwise float32."""
    kind = torch.device(device).type
    mixed = settings.precision == "bf16" or (settings.precision == "amp" and kind != "cpu")
    return torch.autocast(kind, torch.bfloat16, enabled=mixed)


def cpu_has_bf16() -> bool:
    """Whether this CPU has instructions for bfloat16; without them autocast is many times slower than float32."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
