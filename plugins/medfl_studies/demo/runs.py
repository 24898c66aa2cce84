"""Run a method of the demo with MONAI's own command, and summarize which sites gain.

A gain is the difference between the scores of federated and local training at a site.
"""

from __future__ import annotations

import os
import shlex
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import fire
from rich.console import Console

from medfl.bundle.bundle_folders import find_bundle
from medfl.engine.runs.records import read_run
from medfl.errors import MedflError
from medfl.utils.formats import metric_words, score, signed
from medfl_report.page import write_report
from medfl_report.patient_tests import RunPair
from medfl_report.predictions import read_prediction_sets
from medfl_report.site_comparison import BETTER, NO_CLEAR_DIFFERENCE, TOO_FEW_PATIENTS, WORSE, compare_sites


def run_method(bundle: str, method: str, data: Path, out: Path, options: Sequence[str], console: Console) -> Path:
    """Run a method with MONAI's bundle command in this process, because a new process would import MONAI for longer.

    Args:
        bundle: Name of a bundle that comes with medfl.
        method: Name of the method.
        data: Folder of the partitioned data set.
        out: Run folder.
        options: Further words of the command.
        console: Console that shows the command.

    Returns:
        The run folder.

    Raises:
        MedflError: If the run fails.
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

    with warnings.catch_warnings():  # MONAI logs these warnings for any bundle
        warnings.filterwarnings("ignore", category=UserWarning, module="monai.bundle.scripts")
        try:
            fire.Fire({"run": scripts.run}, words)
        except SystemExit as error:
            raise MedflError(
                "run_failed", f"The run of '{method}' failed; its messages are above.", method=method
            ) from error
    return out


@dataclass(frozen=True)
class DemoPart:
    """Results of one part of the demo.

    Attributes:
        page: Path of the report.
        gains: Summary of the gains, a line for each metric.
    """

    page: Path
    gains: list[str]


def write_demo_report(local_run: Path, federated_run: Path, page: Path, metrics: Sequence[str], note: str) -> DemoPart:
    """Write the report on two runs, and summarize the gains.

    Args:
        local_run: Run folder of the method ``local``.
        federated_run: Run folder of another method on the same data.
        page: Path of the report.
        metrics: Names of the metrics.
        note: Note at the top of the report.
    """
    return DemoPart(
        page=write_report([local_run, federated_run], page, notes=[note]),
        gains=summarize_gains(local_run, federated_run, metrics),
    )


def summarize_gains(local_run: Path, federated_run: Path, metrics: Sequence[str]) -> list[str]:
    """Summarize the gains of federated over local training, a line for each metric.

    A line contains the mean gain over the sites with its 95 % confidence interval, and the numbers of sites that gain
    and lose.

    Args:
        local_run: Run folder of the method ``local``.
        federated_run: Run folder of another method on the same data.
        metrics: Names of the metrics.
    """
    pair = RunPair(read_run(local_run), read_run(federated_run))
    tested = {str(run.folder): read_prediction_sets(run) for run in (pair.alone, pair.other)}
    lines = []
    for metric in metrics:
        compared = compare_sites(metric, pair.other.method, [pair], tested)
        mean = compared.mean
        ends = "" if mean.low is None else f" [{signed(mean.low)}, {signed(mean.high)}]"
        gain, lose, unclear, few = (
            compared.count(verdict) for verdict in (BETTER, WORSE, NO_CLEAR_DIFFERENCE, TOO_FEW_PATIENTS)
        )
        lines.append(
            f"{metric_words(metric, ())}: {score(mean.alone)} locally, {score(mean.other)} with {compared.name}; "
            f"mean gain {signed(mean.difference)}{ends}; {gain} of {len(compared.rows)} sites gain, {lose} lose, "
            f"{unclear} show {NO_CLEAR_DIFFERENCE}" + (f", {few} have {TOO_FEW_PATIENTS}" if few else "")
        )
    return lines
