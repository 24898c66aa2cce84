"""The MLflow observer if MLflow is missing, down or killed: the run continues, and no value is lost."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
import urllib3.util.connection
from refusals import refused

pytest.importorskip("mlflow", reason="mlflow-skinny is not installed")

from mlflow.exceptions import MlflowException
from mlflow_toys import begin, expected, rows, stored, write

import medfl_mlflow
from medfl.errors import MedflError
from medfl_mlflow import tracking as observer


@pytest.mark.parametrize("arrived", [True, False])
def test_a_kill_while_sending_neither_doubles_nor_loses(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch, arrived: bool
) -> None:
    """The process is killed after or before MLflow has received the points, and before this is recorded."""
    begin(run_folder)
    write(run_folder, rows(1, None), rows(2, 1))
    log: Callable[..., None] = observer._log_points

    def killed(*arguments: object) -> None:
        if arrived:
            log(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(observer, "_log_points", killed)
        with pytest.raises(KeyboardInterrupt):
            medfl_mlflow.medfl_round_ended(str(run_folder))
    assert json.loads((run_folder / "mlflow.json").read_text())["is_sending"]
    begin(run_folder)
    write(run_folder, rows(3, 2))
    medfl_mlflow.medfl_round_ended(str(run_folder))
    assert stored(run_folder) == expected(run_folder)


def test_a_store_that_is_down_for_a_while_is_one_warning_and_gets_all_in_the_end(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begin(run_folder)
    write(run_folder, rows(1, None))
    medfl_mlflow.medfl_round_ended(str(run_folder))

    def down(*_: object) -> None:
        raise MlflowException("connection refused\nand more")

    with monkeypatch.context() as patch:
        patch.setattr(observer, "_log_points", down)
        for round_ in (2, 3):
            write(run_folder, rows(round_, round_ - 1))
            medfl_mlflow.medfl_round_ended(str(run_folder))
    (warning,) = caplog.messages
    assert "does not reply; the run continues: connection refused" in warning
    write(run_folder, rows(4, 3))
    medfl_mlflow.medfl_round_ended(str(run_folder))
    assert stored(run_folder) == expected(run_folder)
    assert len(caplog.messages) == 1


def test_a_server_that_dies_does_not_hold_the_run_up(
    run_folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real connection is refused, also at the end. The same command sends all values once the store is back."""
    tried = Mock(wraps=urllib3.util.connection.create_connection)
    monkeypatch.setattr(urllib3.util.connection, "create_connection", tried)
    begin(run_folder)
    write(run_folder, rows(1, None))
    state = json.loads((run_folder / "mlflow.json").read_text())
    (run_folder / "mlflow.json").write_text(json.dumps(state | {"tracking_uri": "http://127.0.0.1:9"}))
    before = dict(os.environ)
    medfl_mlflow.medfl_round_ended(str(run_folder))
    medfl_mlflow.medfl_run_ended(str(run_folder), "finished")
    assert tried.call_count == 4, "two tries at each of two moments; MLflow by itself goes on for minutes"
    assert os.environ == before
    assert len([record for record in caplog.records if record.name == "medfl.mlflow"]) == 1
    (run_folder / "mlflow.json").write_text(json.dumps(state))
    begin(run_folder)
    medfl_mlflow.medfl_run_ended(str(run_folder), "finished")
    assert stored(run_folder) == expected(run_folder)


def test_without_mlflow_one_message_says_what_to_install(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow.exceptions", None)
    with refused(MedflError, "missing_package", package="mlflow", extra="mlflow") as caught:
        begin(run_folder)
    assert "pip install 'medfl-monai[mlflow]'" in str(caught.value)
    medfl_mlflow.medfl_round_ended(str(run_folder))
    medfl_mlflow.medfl_run_ended(str(run_folder), "finished")
    assert not (run_folder / "mlflow.json").exists()


def test_a_store_that_can_not_be_used_is_named(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "false")
    with refused(MedflError, "unusable_store", uri="nowhere://x"):
        begin(run_folder, tracking_uri="nowhere://x")
