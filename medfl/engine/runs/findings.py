"""``findings.safetensors`` of a run folder: what a method has to show beside its scores (`medfl.contract.Findings`)."""

from __future__ import annotations

from pathlib import Path

from medfl.contract import Findings
from medfl.errors import DamagedError, StoreError
from medfl.utils import wire
from medfl.utils.files import write_atomic

FILE = "findings.safetensors"


def write_findings(folder: Path, findings: Findings) -> None:
    """Write them beside the run's other results; nothing where there is nothing to show."""
    if findings.meta or findings.tensors:
        write_atomic(folder / FILE, wire.encode(findings.tensors, findings.meta))


def read_findings(folder: Path) -> Findings:
    """What a run has to show; empty where it wrote nothing.

    Raises:
        StoreError: If the file is damaged.
    """
    path = folder / FILE
    if not path.is_file():
        return Findings()
    try:
        tensors, meta = wire.decode(path.read_bytes())
    except (DamagedError, OSError) as error:
        raise StoreError(
            "damaged_file",
            f"expected what the run found out in '{path}'; it is damaged ({error}). Run again.",
            path=path,
        ) from None
    return Findings(meta, tensors)
