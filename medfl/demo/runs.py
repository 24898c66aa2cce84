"""A run as anyone can start it, and a table of several."""

from __future__ import annotations

import os
import shlex
import warnings
from collections.abc import Sequence
from pathlib import Path

import fire
from rich.console import Console

from medfl.bundle.files import find_bundle
from medfl.errors import MedflError
from medfl.report.compare import compare, to_markdown
from medfl.report.page import write_report
from medfl.runs.records import read_run


def run(bundle: str, method: str, data: Path, out: Path, options: Sequence[str], console: Console) -> Path:
    """Run a method as MONAI's own command does, in this process: its imports take longer than a short run.

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
    words = [
        *("run", "--config_file", str(configs)),
        *("--bundle_root", str(root), "--dataset_dir", str(data.resolve()), "--output_dir", str(out.resolve())),
        *("--method", method, *options, "--device", "cpu", "--settings#workers", str(min(2, os.cpu_count() or 1))),
    ]
    console.print(f"\n{shlex.join(['python', '-m', 'monai.bundle', *words])}")
    from monai.bundle import scripts

    with warnings.catch_warnings():  # MONAI warns of any bundle, also of ours
        warnings.filterwarnings("ignore", category=UserWarning, module="monai.bundle.scripts")
        try:
            fire.Fire({"run": scripts.run}, words)  # what the command does, in this process
        except SystemExit as error:
            raise MedflError(f"The run of '{method}' failed; its messages are above.") from error
    return out


def report(runs: Sequence[Path], page: Path, metrics: Sequence[str], console: Console) -> Path:
    """Show a table of runs against those alone, and write their page."""
    console.print("\n" + to_markdown(compare([read_run(folder) for folder in runs], list(metrics), "local")))
    return write_report(list(runs), page)
