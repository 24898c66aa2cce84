"""A run as anyone can start it, and a table of several."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from medfl.bundle_folders import find_bundle
from medfl.errors import MedflError
from medfl.report.compare import compare, to_markdown
from medfl.report.page import write_report
from medfl.report.runs import read_run


def run(bundle: str, method: str, data: Path, out: Path, options: Sequence[str], console: Console) -> Path:
    """Run a method with MONAI's own command.

    Args:
        bundle: Name of a bundle that comes with medfl.
        method: Name of the method.
        data: The partitioned data set.
        out: The run folder.
        options: Further words of the command.
        console: Shows the command.

    Returns:
        The run folder.

    Raises:
        MedflError: If it fails.
    """
    root = find_bundle(bundle)
    configs = [str(root / "configs" / name) for name in ("train.json", "federate.json")]
    command = [
        *(sys.executable, "-m", "monai.bundle", "run", "--config_file", str(configs)),
        *("--bundle_root", str(root), "--dataset_dir", str(data.resolve()), "--output_dir", str(out.resolve())),
        *("--method", method, *options, "--workers", str(min(2, os.cpu_count() or 1))),
    ]
    console.print(f"\n{shlex.join(['python', *command[1:]])}")
    quiet = {"PYTHONWARNINGS": "ignore::UserWarning:monai.bundle.scripts"}  # MONAI warns of any bundle, also of ours
    if subprocess.run(command, check=False, env=os.environ | quiet).returncode != 0:
        raise MedflError(f"The run of '{method}' failed; its messages are above.")
    return out


def report(runs: Sequence[Path], page: Path, metrics: Sequence[str], console: Console) -> Path:
    """Show a table of runs against those alone, and write their page."""
    console.print("\n" + to_markdown(compare([read_run(one) for one in runs], list(metrics), "local")))
    return write_report(list(runs), page)
