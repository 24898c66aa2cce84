"""The MLflow observer: the store contains exactly the values of metrics.csv."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("mlflow", reason="mlflow-skinny is not installed")

from mlflow import MlflowClient
from mlflow_toys import SETTINGS, begin, expected, rows, stored, the_run, write

import medfl_mlflow
from medfl.cli.main import main
from medfl.engine.evaluation import MetricRow
from medfl.plugins import load_plugins
from medfl.testing.synthetic import make_cohort


def test_the_store_holds_what_the_metrics_file_says(run_folder: Path) -> None:
    begin(run_folder)
    write(run_folder, rows(1, None))
    medfl_mlflow.medfl_round_ended(str(run_folder))
    write(run_folder, rows(2, 1), [row for row in rows(3, 2) if row.split == "test"])
    medfl_mlflow.medfl_round_ended(str(run_folder))
    (run_folder / "summary.json").write_text('{"status": "finished"}')
    medfl_mlflow.medfl_run_ended(str(run_folder), "finished")
    metrics = stored(run_folder)
    assert metrics == expected(run_folder)
    assert metrics["global/test/accuracy/mean"] == [(1, 0.625 + 1 / 64), (2, 0.625 + 2 / 64)]
    assert metrics["personal/train/bytes_up/mean"] == [(1, 200.0), (2, 200.0)]
    assert "global/test/accuracy/site-03" not in metrics, "an undefined value is no value"
    client, run = the_run(run_folder)
    assert (run.info.run_name, run.info.status) == ("first", "FINISHED")
    assert run.data.params == {
        "rounds": "2",
        "optimizer.lr": "0.01",
        "method_args.mu": "0.1",
        "norm_bound": "null",
        "method": "fedprox",
    }
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["summary.json"]


def test_a_run_that_continues_is_the_same_run_and_doubles_nothing(run_folder: Path) -> None:
    begin(run_folder)
    write(run_folder, rows(1, None), rows(2, 1))
    medfl_mlflow.medfl_round_ended(str(run_folder))
    medfl_mlflow.medfl_run_ended(str(run_folder), "finished")
    begin(run_folder, SETTINGS | {"rounds": 3})
    medfl_mlflow.medfl_round_ended(str(run_folder))
    assert stored(run_folder) == expected(run_folder)
    write(run_folder, rows(3, 2))
    medfl_mlflow.medfl_round_ended(str(run_folder))
    assert stored(run_folder) == expected(run_folder)
    _, run = the_run(run_folder)
    assert run.info.status == "RUNNING"
    assert (run.data.params["rounds"], run.data.tags["medfl.continued.rounds"]) == ("2", "3")


def test_without_tracking_nothing_is_imported_or_written(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)  # importing it would raise
    medfl_mlflow.medfl_run_started(str(run_folder), SETTINGS, {})
    medfl_mlflow.medfl_round_ended(str(run_folder))
    medfl_mlflow.medfl_run_ended(str(run_folder), "finished")
    assert not run_folder.exists()


def test_tracking_that_is_switched_off_sends_no_more(run_folder: Path) -> None:
    begin(run_folder)
    write(run_folder, rows(1, None))
    medfl_mlflow.medfl_round_ended(str(run_folder))
    before = stored(run_folder)
    medfl_mlflow.medfl_run_started(str(run_folder), SETTINGS, {})
    write(run_folder, rows(2, 1))
    medfl_mlflow.medfl_round_ended(str(run_folder))
    medfl_mlflow.medfl_run_ended(str(run_folder), "finished")
    assert stored(run_folder) == before
    begin(run_folder)
    medfl_mlflow.medfl_round_ended(str(run_folder))
    assert stored(run_folder) == expected(run_folder)


def test_a_run_that_was_deleted_in_mlflow_is_sent_again(run_folder: Path) -> None:
    begin(run_folder)
    write(run_folder, rows(1, None))
    medfl_mlflow.medfl_round_ended(str(run_folder))
    client, run = the_run(run_folder)
    client.delete_run(run.info.run_id)
    begin(run_folder)
    medfl_mlflow.medfl_round_ended(str(run_folder))
    assert the_run(run_folder)[1].info.run_id != run.info.run_id
    assert stored(run_folder) == expected(run_folder)


def test_a_diverged_run_has_failed(run_folder: Path) -> None:
    begin(run_folder)
    medfl_mlflow.medfl_run_ended(str(run_folder), "diverged")
    _, run = the_run(run_folder)
    assert (run.info.status, run.data.tags["medfl.status"]) == ("FAILED", "diverged")


def test_names_say_the_model_and_the_moment(run_folder: Path) -> None:
    begin(run_folder)
    write(
        run_folder,
        [
            MetricRow(1, "site-01", "personal", "test", "trained", "f1", 0.5),
            MetricRow(1, "site-01", "personal", "test", "aggregated", "f1", 0.25),
            MetricRow(1, "site-01", "personal@site-02", "test", "aggregated", "f1", 0.75),
            MetricRow(1, "site-01", "personal", "train", "trained", "loss", float("inf")),
        ],
    )
    medfl_mlflow.medfl_round_ended(str(run_folder))
    metrics = stored(run_folder)
    assert metrics["personal/trained/test/f1/site-01"] == [(1, 0.5)]
    assert metrics["personal/test/f1/site-01"] == [(1, 0.25)]
    assert metrics["personal_site-02/test/f1/site-01"] == [(1, 0.75)]
    assert not [name for name in metrics if "loss" in name], "what is not finite is no point"


@pytest.mark.slow
def test_the_store_that_monai_names_by_itself(run_folder: Path) -> None:
    """MONAI's default store is an SQLite file in the run folder, with artifacts beside it."""
    pytest.importorskip("sqlalchemy", reason="an SQLite store needs SQLAlchemy")
    uri = f"sqlite:///{run_folder / 'mlruns.db'}"
    begin(run_folder, tracking_uri=uri, experiment_name="monai_experiment")
    write(run_folder, rows(1, None))
    medfl_mlflow.medfl_round_ended(str(run_folder))
    (run_folder / "summary.json").write_text("{}")
    medfl_mlflow.medfl_run_ended(str(run_folder), "finished")
    client = MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("monai_experiment").experiment_id])
    assert run.data.metrics["personal/train/bytes_up/mean"] == 200
    assert len(list((run_folder / "mlruns").rglob("summary.json"))) == 1


def test_it_is_found_as_a_plugin_with_hooks_that_fit() -> None:
    registry = load_plugins()
    assert "medfl_mlflow" in registry.plugins
    assert not [problem for problem in registry.problems if "medfl_mlflow" in problem]


@pytest.mark.slow
def test_a_run_with_monais_tracking_is_in_mlflow(tmp_path: Path) -> None:
    """``medfl run --tracking mlflow`` sends all values of metrics.csv to MONAI's default store."""
    pytest.importorskip("sqlalchemy", reason="an SQLite store needs SQLAlchemy")
    make_cohort(tmp_path / "cohort", sites=2, images_per_site=20, classes=3, size=8)
    folder = tmp_path / "run"
    words = ["run", "medmnist_classification", "--dataset-dir", str(tmp_path / "cohort"), "--output-dir", str(folder)]
    words += ["--num-classes", "3", "--rounds", "2", "--method", "fedprox", "--method-args.mu", "0.5"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--tracking", "mlflow", "--run-name", "first"])
    assert not ended.value.code
    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlruns.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("monai_experiment").experiment_id])
    assert (run.info.status, run.info.run_name) == ("FINISHED", "first")
    assert run.data.params.items() >= {"rounds": "2", "method_args.mu": "0.5", "optimizer.lr": "0.01"}.items()
    metrics = {
        name: [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name)]
        for name in run.data.metrics
    }
    assert metrics == {
        name: [(step, pytest.approx(value, nan_ok=True)) for step, value in values]
        for name, values in expected(folder).items()
    }
    assert {file.path for file in client.list_artifacts(run.info.run_id)} >= {"summary.json"}
