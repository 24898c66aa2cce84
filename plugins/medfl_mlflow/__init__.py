"""Send the metrics of a run to MLflow, for users of MONAI's ``--tracking mlflow``.

The plugin only observes: a run continues if it fails. MLflow is imported only if tracking is on.
"""

from __future__ import annotations

from typing import Any

from medfl.hooks import hookimpl


@hookimpl
def medfl_run_started(run_folder: str, settings: dict[str, Any], tracking: dict[str, Any]) -> None:
    """Start an MLflow run, or continue the MLflow run of this run folder.

    Args:
        run_folder: Run folder.
        settings: Settings of the run, which become parameters of the MLflow run.
        tracking: Options of the tracking with the keys ``tracking_uri``, ``experiment_name`` and ``run_name``; empty if
            tracking is off.
    """
    from medfl_mlflow.tracking import start_tracking

    start_tracking(run_folder, settings, tracking)


@hookimpl
def medfl_round_ended(run_folder: str) -> None:
    """Send the metrics that are new in ``metrics.csv`` of the run folder, after each round."""
    from medfl_mlflow.tracking import send_new_metrics

    send_new_metrics(run_folder)


@hookimpl
def medfl_run_ended(run_folder: str, status: str) -> None:
    """Send the remaining metrics, the summary and the report, and end the MLflow run with the status of the run."""
    from medfl_mlflow.tracking import end_tracking

    end_tracking(run_folder, status)
