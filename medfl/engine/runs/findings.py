"""Write and read ``findings.safetensors``: results of a method for its section of the report.

Findings are results besides models and scores (`medfl.contract.Findings`).
"""

from __future__ import annotations

from pathlib import Path

from medfl.contract import Findings
from medfl.errors import DamagedError, StoreError
from medfl.utils import wire
from medfl.utils.files import write_atomic

FINDINGS_FILE = "findings.safetensors"
"""Name of the file with the findings in a run folder."""


def write_findings(folder: Path, findings: Findings) -> None:
    """Write findings into a run folder. Empty findings write no file."""
    if findings.meta or findings.tensors:
        write_atomic(folder / FINDINGS_FILE, wire.encode(findings.tensors, findings.meta))


def read_findings(folder: Path) -> Findings:
    """Read the findings of a run folder. They are empty if the run wrote no file.

    Raises:
        StoreError: If the file is damaged.
    """
    path = folder / FINDINGS_FILE
    if not path.is_file():
        return Findings()
    try:
        tensors, meta = wire.decode(path.read_bytes())
    except (DamagedError, OSError) as error:
        raise StoreError(
            "damaged_file",
            f"expected the findings of the run in '{path}', but the file is damaged ({error}). Run again.",
            path=path,
        ) from None
    return Findings(meta, tensors)
