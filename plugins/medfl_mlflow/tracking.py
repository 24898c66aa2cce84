"""One MLflow run for each run folder; ``mlflow.json`` in it says which, and what was sent.

A metric's points are sent in the order of its rounds, and the last round of each is noted. So a run that continues
sends what is new. After a kill between sending and noting, MLflow itself is asked what has arrived.
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

    from medfl_mlflow.points import Point

logger = logging.getLogger("medfl.mlflow")

ARTEFACTS = ("summary.json", "report.html")
"""Files that are kept with the MLflow run."""

BATCH = 1000
"""Metrics that MLflow takes at once."""

IMPATIENT = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""Unless the user says otherwise: by itself MLflow holds a run up for minutes, each round, while a server is down."""


class TrackingState(FileRecord):
    """Content of ``mlflow.json`` in the run folder.

    Attributes:
        tracking_uri: Address of the MLflow store.
        run_id: Identifier of the MLflow run.
        is_on: Whether the run is tracked now.
        is_sending: Whether a batch was sent and its arrival is not recorded yet.
        is_down: Whether MLflow did not answer last time.
        sent: Maps each metric to the last round that was sent.
    """

    NAME: ClassVar[str] = "mlflow.json"
    REPAIR: ClassVar[str] = "Delete it: the next command then tracks the run anew."

    tracking_uri: str
    run_id: str
    is_on: bool = False
    is_sending: bool = False
    is_down: bool = False
    sent: dict[str, int] = {}


class _Tracker:
    """The state of a run's tracking and its file.

    Args:
        folder: The run folder.
        state: The state.
    """

    def __init__(self, folder: Path, state: TrackingState) -> None:
        self.folder, self.state = folder, state

    def update(self, **changes: Any) -> None:
        """Change fields of the state, in memory."""
        self.state = self.state.model_copy(update=changes)

    def save(self, **changes: Any) -> None:
        """Change fields of the state and write the file."""
        self.update(**changes)
        self.state.write(self.folder / TrackingState.NAME)


def start(run_folder: str, settings: dict[str, Any], tracking: dict[str, Any]) -> None:
    """Begin an MLflow run, or continue that of the run folder.

    Args:
        run_folder: The run folder.
        settings: Settings by name.
        tracking: ``tracking_uri``, ``experiment_name`` and ``run_name``; empty if tracking is off.

    Raises:
        MedflError: If MLflow can't be used; says what to do.
    """
    folder = Path(run_folder)
    state = _read(folder)
    if state is not None:
        _Tracker(folder, state).save(is_on=False)  # until MLflow has answered
    if not tracking:
        return
    folder.mkdir(parents=True, exist_ok=True)
    uri = str(tracking["tracking_uri"])
    with _impatient():
        client = _first_client(uri)
        if state is None or not _continues(client, state, uri):
            state = TrackingState(tracking_uri=uri, run_id=_create(client, uri, tracking))
        client.update_run(state.run_id, status="RUNNING")
        _log_settings(client, state.run_id, settings)
    _Tracker(folder, state).save(is_on=True, is_down=False)


def send(run_folder: str) -> None:
    """Send the points that MLflow does not have yet. While it does not answer they wait, after one warning."""
    folder = Path(run_folder)
    state = _read(folder)
    if state is not None and state.is_on:
        tracker = _Tracker(folder, state)
        with _may_be_down(tracker):
            _send(_client(state.tracking_uri), tracker)


def end(run_folder: str, status: str) -> None:
    """Send what is left and end the MLflow run.

    Args:
        run_folder: The run folder.
        status: Of the run; anything but ``finished`` is a failed run to MLflow.
    """
    folder = Path(run_folder)
    state = _read(folder)
    if state is None or not state.is_on:
        return
    tracker = _Tracker(folder, state)
    with _may_be_down(tracker):
        client = _client(state.tracking_uri)
        _send(client, tracker)
        for name in ARTEFACTS:
            if (folder / name).is_file():
                client.log_artifact(state.run_id, str(folder / name))
        client.set_tag(state.run_id, "medfl.status", status)
        client.set_terminated(state.run_id, "FINISHED" if status == "finished" else "FAILED")


def _send(client: MlflowClient, tracker: _Tracker) -> None:
    from medfl_mlflow.points import points

    written, run_id = points(read_metrics(tracker.folder / "metrics.csv")), tracker.state.run_id
    if tracker.state.is_sending:
        names = {point.name for point in written if point.step > _last(tracker.state, point.name)}
        tracker.update(sent=tracker.state.sent | _arrived(client, run_id, names))
    new = [point for point in written if point.step > _last(tracker.state, point.name)]
    if not new:
        return
    tracker.save(is_sending=True)
    _log(client, run_id, new)
    tracker.save(sent=tracker.state.sent | {point.name: point.step for point in new}, is_sending=False)


@contextlib.contextmanager
def _may_be_down(tracker: _Tracker) -> Iterator[None]:
    """Let MLflow fail in the block: the first failure is logged as a warning, and the run goes on."""
    from mlflow.exceptions import MlflowException

    was_down = tracker.state.is_down
    try:
        with _impatient():
            yield
        tracker.update(is_down=False)
    except (MlflowException, OSError) as error:
        tracker.update(is_down=True)
        if not was_down:
            logger.warning(
                "MLflow at '%s' does not answer, the run goes on: %s What it misses is sent when it answers again, or "
                "when the same command is given again.",
                tracker.state.tracking_uri,
                str(error).splitlines()[0],
            )
    if tracker.state.is_down != was_down:
        tracker.save()


@contextlib.contextmanager
def _impatient() -> Iterator[None]:
    added = IMPATIENT.keys() - os.environ.keys()
    os.environ.update({name: IMPATIENT[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _client(uri: str) -> MlflowClient:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


def _first_client(uri: str) -> MlflowClient:
    """A client of a store that answers.

    Raises:
        MedflError: If MLflow is not installed, or can't use the store.
    """
    try:
        from mlflow.exceptions import MlflowException
    except ImportError:
        raise MedflError(
            "missing_package",
            "MONAI's tracking is on, but MLflow is not installed, so nothing is tracked: "
            f"{pip_install('mlflow')}; the same command then sends all rounds so far",
            package="mlflow",
            extra="mlflow",
        ) from None
    try:
        client = _client(uri)
        client.search_experiments(max_results=1)
    except (MlflowException, ImportError) as error:
        raise MedflError(
            "unusable_store",
            f"MLflow can't use the tracking_uri '{uri}', so nothing is tracked: {str(error).splitlines()[0]} "
            f"A sqlite:/// store needs {pip_install('mlflow')}; a server must be running",
            uri=uri,
        ) from None
    return client


def _continues(client: MlflowClient, state: TrackingState, uri: str) -> bool:
    """Whether the run folder's MLflow run is in this store and was not deleted there."""
    from mlflow.exceptions import MlflowException

    if state.tracking_uri != uri:
        return False
    try:
        return bool(client.get_run(state.run_id).info.lifecycle_stage == "active")
    except MlflowException:
        return False


def _create(client: MlflowClient, uri: str, tracking: dict[str, Any]) -> str:
    """The id of a new MLflow run; artefacts of an SQLite store lie beside it, where MONAI puts its own."""
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
    """Settings as parameters; MLflow lets none change, so one that does, such as more rounds, becomes a tag."""
    from medfl_mlflow.points import allowed

    known = client.get_run(run_id).data.params
    for setting, value in settings.items():
        name = allowed(setting)
        text = value if isinstance(value, str) else json.dumps(value)
        if name not in known:
            client.log_param(run_id, name, text)
        elif known[name] != text:
            client.set_tag(run_id, f"medfl.continued.{name}", text)


def _log(client: MlflowClient, run_id: str, new: list[Point]) -> None:
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    metrics = [Metric(point.name, point.value, now, point.step) for point in new]
    for begin in range(0, len(metrics), BATCH):
        client.log_batch(run_id, metrics=metrics[begin : begin + BATCH])


def _arrived(client: MlflowClient, run_id: str, names: set[str]) -> dict[str, int]:
    """Metric to the last round that MLflow has of it."""
    steps = {name: [metric.step for metric in client.get_metric_history(run_id, name)] for name in sorted(names)}
    return {name: max(rounds) for name, rounds in steps.items() if rounds}


def _last(state: TrackingState, name: str) -> int:
    return state.sent.get(name, 0)


def _read(folder: Path) -> TrackingState | None:
    """Return the state in a run folder; None if the run was never tracked."""
    path = folder / TrackingState.NAME
    return TrackingState.read(path) if path.is_file() else None
