"""A run as anyone can start it, and who gains."""

from __future__ import annotations

import os
import shlex
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import fire
from rich.console import Console

from medfl.bundle.files import find_bundle
from medfl.engine.runs.records import read_run
from medfl.errors import MedflError
from medfl.utils.formats import metric_words, score, signed
from medfl_report.gains import GAINS, LOSES, TOO_FEW, UNCLEAR, compare_sites
from medfl_report.page import write_report
from medfl_report.patient_tests import Pair
from medfl_report.predictions import read_tested


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
            raise MedflError(
                "run_failed", f"The run of '{method}' failed; its messages are above.", method=method
            ) from error
    return out


@dataclass(frozen=True)
class Shown:
    """What a part of the demo leads to.

    Attributes:
        page: Its report.
        gains: Who gains, a line for each metric.
    """

    page: Path
    gains: list[str]


def report(alone: Path, together: Path, page: Path, metrics: Sequence[str], note: str) -> Shown:
    """Write the page of two runs.

    Args:
        alone: As in `who_gains`.
        together: As in `who_gains`.
        page: The file to write.
        metrics: As in `who_gains`.
        note: What the page says at its top.
    """
    return Shown(write_report([alone, together], page, notes=[note]), who_gains(alone, together, metrics))


def who_gains(alone: Path, together: Path, metrics: Sequence[str]) -> list[str]:
    """A line for each metric: the mean gain over the sites with its 95 % interval, and how many sites gain.

    Args:
        alone: Run folder of the method ``local``.
        together: Run folder of another method on the same data.
        metrics: Their names.
    """
    pair = Pair(read_run(alone), read_run(together))
    tested = {str(run.folder): read_tested(run) for run in (pair.alone, pair.other)}
    lines = []
    for metric in metrics:
        compared = compare_sites(metric, pair.other.method, [pair], tested)
        mean = compared.mean
        ends = "" if mean.low is None else f" [{signed(mean.low)}, {signed(mean.high)}]"
        gain, lose, unclear, few = (compared.count(verdict) for verdict in (GAINS, LOSES, UNCLEAR, TOO_FEW))
        lines.append(
            f"{metric_words(metric, ())}: {score(mean.alone)} alone, {score(mean.other)} with {compared.name}; "
            f"mean gain {signed(mean.difference)}{ends}; {gain} of {len(compared.rows)} sites gain, {lose} lose, "
            f"{unclear} show {UNCLEAR}" + (f", {few} have {TOO_FEW}" if few else "")
        )
    return lines
