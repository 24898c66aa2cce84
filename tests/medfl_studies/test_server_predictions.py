"""Predictions of the global model for the server's test images, which raw results keep beside those of the sites."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from evaluated_runs import make_data, run_on_two_sites
from study_toys import SMALL, changed

from medfl.data.datalists import read_datalist, write_datalist
from medfl_report.predictions import read_prediction_sets
from medfl_studies.jobs import expand_study
from medfl_studies.results.collect import StudyPart, collect_study
from medfl_studies.results.compressed_tables import read_table
from medfl_studies.results.recorded_study import TEXT_COLUMNS, compare_scores, read_results, server_run
from medfl_studies.results.server_predictions import collect_run
from medfl_studies.study_reader import read_study


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Return a study whose rows with and without a global model ran once, on data with a licence."""
    root = tmp_path_factory.mktemp("server")
    cohort = make_data(root / "source" / "cohort")
    for path in cohort.rglob("datalist.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"licence": "CC0"}))
    (cohort / "partition.json").unlink()  # it has the digests of the data lists without a licence
    rows = {"fedavg": {"method": "fedavg"}, "alone": {"method": "local"}}
    file = root / "small.yaml"
    file.write_text(yaml.safe_dump(changed(SMALL, {"seeds": 1, "rows": rows}), sort_keys=False))
    for job in expand_study(read_study(file), root / "bundle", root / "source", root / "out"):
        run_on_two_sites(cohort, job.folder, rows[job.row]["method"])
    return SimpleNamespace(file=file, out=root / "out", source=root / "source", folder=root / "out" / "runs" / "demo")


def collect(done: SimpleNamespace, into: Path, **options: object) -> Path:
    return collect_study(done.file, into, done.out, done.source, StudyPart(), **options).folder


def test_predictions_of_the_global_model_give_its_score_on_the_servers_images(done, tmp_path):
    results = read_results(collect(done, tmp_path / "raw"))
    fedavg, alone = results.runs
    server = server_run(fedavg)
    test_set = read_prediction_sets(server)["global"]
    assert len(test_set.rows) == len(read_datalist(done.source / "cohort" / "global").splits["test"])
    for metric in fedavg.task_metrics:
        assert test_set.score(metric) == pytest.approx(fedavg.server_score(metric), abs=1e-9)
        assert server.score("global", metric) == fedavg.server_score(metric)
    assert server_run(alone) is None, "local training has no global model"
    assert read_prediction_sets(fedavg).keys() == {"site-01", "site-02"}, "the server is no site"
    assert (server.data, server.sites) == ("server_test", ("global",))


def test_recorded_scores_of_the_server_are_compared_with_its_predictions(done, tmp_path):
    results = read_results(collect(done, tmp_path / "raw"))
    kept, run = results.raw.runs[0], results.runs[0]
    table = run.tables["global"]
    swapped = replace(run, tables=run.tables | {"global": table.assign(p0=table["p1"], p1=table["p0"])})
    for shown, is_right in ((run, True), (swapped, False)):
        scores = [score for score in compare_scores(kept, shown, read_prediction_sets(shown)) if score.site == "global"]
        assert {score.metric for score in scores} == {*run.task_metrics}
        assert (max(score.error for score in scores) < 1e-9) is is_right


def test_the_table_names_the_server_and_its_model(done, tmp_path):
    folder = collect(done, tmp_path / "raw", decimals=6)
    table = read_table(folder / "predictions-demo.csv.gz", TEXT_COLUMNS)
    lines = table[table["site"] == "global"]
    assert {*lines["row"]} == {"fedavg"}
    assert {*lines["model"]} == {"global"}
    assert lines["p0"].equals(lines["p0"].round(6))
    again = collect(done, tmp_path / "raw", decimals=6, add=True)
    assert read_table(again / "predictions-demo.csv.gz", TEXT_COLUMNS).equals(table)


@pytest.mark.parametrize("fault", ["no_model", "no_images", "other_images"])
def test_predictions_are_left_out_if_they_can_not_be_those_of_the_run(done, tmp_path, caplog, fault):
    run = Path(shutil.copytree(done.folder / "fedavg" / "seed-0", tmp_path / "run"))
    data = Path(shutil.copytree(done.source / "cohort", tmp_path / "data"))
    assert collect_run(run, data).predictions("global") is not None
    if fault == "no_model":
        (run / "global" / "models" / "model.pt").unlink()
    elif fault == "no_images":
        shutil.rmtree(data / "global")
    else:
        datalist = read_datalist(data / "global")
        write_datalist(
            data / "global", replace(datalist, splits=datalist.splits | {"test": datalist.splits["test"][:5]})
        )
    assert collect_run(run, data).predictions("global") is None
    assert ("are not kept" in caplog.text) is (fault == "other_images")


def test_raw_results_without_predictions_may_be_joined_with_rounded_ones(done, tmp_path):
    into = collect(done, tmp_path / "raw")
    raw = read_results(into).raw
    bare = {name: kept.model_copy(update={"predictions": None}) for name, kept in raw.data.items()}
    raw.model_copy(update={"data": bare}).write(into / raw.NAME)
    collect(done, into, decimals=6, add=True)
    assert read_results(into).raw.decimals == 6
