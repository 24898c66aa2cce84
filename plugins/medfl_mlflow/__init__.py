"""Sends the metrics of a run to MLflow, for those who use MONAI's ``--tracking mlflow``.

An observer: it decides nothing, and a run goes on where it fails. MLflow is imported only when tracking is on.
"""

from __future__ import annotations

from typing import Any

from medfl.hooks import hookimpl


@hookimpl
def medfl_run_started(run_folder: str, settings: dict[str, Any], tracking: dict[str, Any]) -> None:
    """Begin an MLflow run, or continue the one of this run folder.

    Args:
        run_folder: The run folder.
        settings: Become the parameters of the MLflow run.
        tracking: ``tracking_uri``, ``experiment_name`` and ``run_name``; empty if tracking is off.
    """
    from medfl_mlflow.tracking import start

    start(run_folder, settings, tracking)


@hookimpl
def medfl_round_ended(run_folder: str) -> None:
    """Send the metrics that are new in ``metrics.csv``."""
    from medfl_mlflow.tracking import send

    send(run_folder)


@hookimpl
def medfl_run_ended(run_folder: str, status: str) -> None:
    """Send what is left, the summary and the report, and end the MLflow run."""
    from medfl_mlflow.tracking import end

    end(run_folder, status)
