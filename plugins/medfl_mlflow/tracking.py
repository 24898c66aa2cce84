"""Tracking of a run in MLflow: one MLflow run for each run folder, identified by the folder's ``mlflow.json``.

The points of a metric are sent in the order of its rounds, and the file records the last round of each metric. So a
continued run sends only new points. If the process was killed between sending and recording, MLflow is asked which
points have arrived.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import unquote

from medfl.engine.runs.records import read_metrics
from medfl.errors import MedflError, pip_install
from medfl.records.record import FileRecord

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from medfl_mlflow.points import MetricPoint

logger = logging.getLogger("medfl.mlflow")

ARTIFACT_FILES = ("summary.json", "report.html")
"""Files of the run folder that are stored with the MLflow run."""

BATCH_SIZE = 1000
"""Largest number of metrics in one request to MLflow."""

SHORT_TIMEOUTS = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""Environment variables with short time limits, unless the user sets them.

With MLflow's defaults a server that is down delays the run for minutes in each round.
"""


class TrackingState(FileRecord):
    """Content of ``mlflow.json`` in the run folder: the MLflow run, and what has been sent to it.

    Attributes:
        tracking_uri: Address of the MLflow store.
        run_id: Identifier of the MLflow run.
        is_on: Whether the run is tracked now.
        is_sending: Whether a batch was sent whose arrival is not recorded yet.
        is_down: Whether MLflow failed to reply to the last request.
        sent: Maps each metric to the last round that was sent.
    """

    NAME: ClassVar[str] = "mlflow.json"
    """Name of the file in the run folder."""

    REPAIR: ClassVar[str] = "Delete the file: the next command then starts a new MLflow run."
    """Advice in the error for a damaged file."""

    tracking_uri: str
    run_id: str
    is_on: bool = False
    is_sending: bool = False
    is_down: bool = False
    sent: dict[str, int] = {}


class _Tracker:
    """Tracking state of a run, and its file.

    Args:
        folder: Run folder.
        state: Tracking state.
    """

    def __init__(self, folder: Path, state: TrackingState) -> None:
        self.folder, self.state = folder, state

    def update(self, **changes: Any) -> None:
        """Change fields of the state in memory."""
        self.state = self.state.model_copy(update=changes)

    def save(self, **changes: Any) -> None:
        """Change fields of the state and write the file."""
        self.update(**changes)
        self.state.write(self.folder / TrackingState.NAME)


def start_tracking(run_folder: str, settings: dict[str, Any], tracking: dict[str, Any]) -> None:
    """Start an MLflow run, or continue the MLflow run of the run folder.

    Args:
        run_folder: Run folder.
        settings: Maps the name of each setting of the run to its value; they become parameters of the MLflow run.
        tracking: Options of the tracking with the keys ``tracking_uri``, ``experiment_name`` and ``run_name``; empty if
            tracking is off.

    Raises:
        MedflError: If MLflow can't be used; the message says what to do.
    """
    folder = Path(run_folder)
    state = _read_state(folder)
    if state is not None:
        _Tracker(folder, state).save(is_on=False)  # until MLflow has replied
    if not tracking:
        return
    folder.mkdir(parents=True, exist_ok=True)
    uri = str(tracking["tracking_uri"])
    with _short_timeouts():
        client = _check_store(uri)
        if state is None or not _is_continuable(client, state, uri):
            state = TrackingState(tracking_uri=uri, run_id=_create_run(client, uri, tracking))
        client.update_run(state.run_id, status="RUNNING")
        _log_settings(client, state.run_id, settings)
    _Tracker(folder, state).save(is_on=True, is_down=False)


def send_new_metrics(run_folder: str) -> None:
    """Send the points that MLflow does not have yet.

    If MLflow does not reply, a warning is logged once, and the points are sent later.
    """
    folder = Path(run_folder)
    state = _read_state(folder)
    if state is not None and state.is_on:
        tracker = _Tracker(folder, state)
        with _tolerate_failures(tracker):
            _send_points(_make_client(state.tracking_uri), tracker)


def end_tracking(run_folder: str, status: str) -> None:
    """Send the remaining points and files, and end the MLflow run.

    Args:
        run_folder: Run folder.
        status: Status of the run; any status other than ``finished`` marks the MLflow run as failed.
    """
    folder = Path(run_folder)
    state = _read_state(folder)
    if state is None or not state.is_on:
        return
    tracker = _Tracker(folder, state)
    with _tolerate_failures(tracker):
        client = _make_client(state.tracking_uri)
        _send_points(client, tracker)
        for name in ARTIFACT_FILES:
            if (folder / name).is_file():
                client.log_artifact(state.run_id, str(folder / name))
        client.set_tag(state.run_id, "medfl.status", status)
        client.set_terminated(state.run_id, "FINISHED" if status == "finished" else "FAILED")


def _send_points(client: MlflowClient, tracker: _Tracker) -> None:
    """Send new points, and record the rounds that were sent."""
    from medfl_mlflow.points import to_points

    written, run_id = to_points(read_metrics(tracker.folder / "metrics.csv")), tracker.state.run_id
    if tracker.state.is_sending:
        names = {point.name for point in written if point.step > _last_sent_round(tracker.state, point.name)}
        tracker.update(sent=tracker.state.sent | _query_last_rounds(client, run_id, names))
    new = [point for point in written if point.step > _last_sent_round(tracker.state, point.name)]
    if not new:
        return
    tracker.save(is_sending=True)
    _log_points(client, run_id, new)
    tracker.save(sent=tracker.state.sent | {point.name: point.step for point in new}, is_sending=False)


@contextlib.contextmanager
def _tolerate_failures(tracker: _Tracker) -> Iterator[None]:
    """Tolerate failures of MLflow in the block: log the first failure as a warning, and let the run continue."""
    from mlflow.exceptions import MlflowException

    was_down = tracker.state.is_down
    try:
        with _short_timeouts():
            yield
        tracker.update(is_down=False)
    except (MlflowException, OSError) as error:
        tracker.update(is_down=True)
        if not was_down:
            logger.warning(
                "MLflow at '%s' does not reply; the run continues: %s Missing metrics are sent when MLflow replies "
                "again, or when the same command is run again.",
                tracker.state.tracking_uri,
                str(error).splitlines()[0],
            )
    if tracker.state.is_down != was_down:
        tracker.save()


@contextlib.contextmanager
def _short_timeouts() -> Iterator[None]:
    """Set short time limits for MLflow in the block."""
    added = SHORT_TIMEOUTS.keys() - os.environ.keys()
    os.environ.update({name: SHORT_TIMEOUTS[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _make_client(uri: str) -> MlflowClient:
    """Return a client of an MLflow store."""
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


def _check_store(uri: str) -> MlflowClient:
    """Return a client of an MLflow store, after checking that the store replies.

    Raises:
        MedflError: If MLflow is not installed, or can't use the store.
    """
    try:
        from mlflow.exceptions import MlflowException
    except ImportError:
        raise MedflError(
            "missing_package",
            "MONAI's tracking is on, but MLflow is not installed, so nothing is tracked. Install it with "
            f"{pip_install('mlflow')}; the same command then sends all rounds so far",
            package="mlflow",
            extra="mlflow",
        ) from None
    try:
        client = _make_client(uri)
        client.search_experiments(max_results=1)
    except (MlflowException, ImportError) as error:
        raise MedflError(
            "unusable_store",
            f"MLflow can't use the tracking_uri '{uri}', so nothing is tracked: {str(error).splitlines()[0]} "
            f"A sqlite:/// store needs {pip_install('mlflow')}; a server must be running.",
            uri=uri,
        ) from None
    return client


def _is_continuable(client: MlflowClient, state: TrackingState, uri: str) -> bool:
    """Return whether the run folder's MLflow run is in this store and was not deleted."""
    from mlflow.exceptions import MlflowException

    if state.tracking_uri != uri:
        return False
    try:
        return bool(client.get_run(state.run_id).info.lifecycle_stage == "active")
    except MlflowException:
        return False


def _create_run(client: MlflowClient, uri: str, tracking: dict[str, Any]) -> str:
    """Create an MLflow run and return its identifier.

    The artifacts of an SQLite store are in the folder of its file, as MONAI does.
    """
    name = str(tracking.get("experiment_name") or "monai_experiment")
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        local = uri.removeprefix("sqlite:///")
        place = (Path(unquote(local)).parent / "mlruns").absolute().as_uri() if local != uri else None
        identifier = client.create_experiment(name, artifact_location=place)
    else:
        identifier = experiment.experiment_id
    return str(client.create_run(identifier, run_name=tracking.get("run_name")).info.run_id)


def _log_settings(client: MlflowClient, run_id: str, settings: dict[str, Any]) -> None:
    """Log settings as MLflow parameters.

    MLflow parameters can't be changed. If a setting changes, such as the number of rounds, its new value is logged as a
    tag.
    """
    from medfl_mlflow.points import sanitize_name

    known = client.get_run(run_id).data.params
    for setting, value in settings.items():
        name = sanitize_name(setting)
        text = value if isinstance(value, str) else json.dumps(value)
        if name not in known:
            client.log_param(run_id, name, text)
        elif known[name] != text:
            client.set_tag(run_id, f"medfl.continued.{name}", text)


def _log_points(client: MlflowClient, run_id: str, new: list[MetricPoint]) -> None:
    """Log points in batches."""
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    metrics = [Metric(point.name, point.value, now, point.step) for point in new]
    for begin in range(0, len(metrics), BATCH_SIZE):
        client.log_batch(run_id, metrics=metrics[begin : begin + BATCH_SIZE])


def _query_last_rounds(client: MlflowClient, run_id: str, names: set[str]) -> dict[str, int]:
    """Map each metric to its last round in MLflow."""
    steps = {name: [metric.step for metric in client.get_metric_history(run_id, name)] for name in sorted(names)}
    return {name: max(rounds) for name, rounds in steps.items() if rounds}


def _last_sent_round(state: TrackingState, name: str) -> int:
    """Return the last round of a metric that was sent, or 0."""
    return state.sent.get(name, 0)


def _read_state(folder: Path) -> TrackingState | None:
    """Return the tracking state in a run folder, or None if the run was never tracked."""
    path = folder / TrackingState.NAME
    return TrackingState.read(path) if path.is_file() else None
