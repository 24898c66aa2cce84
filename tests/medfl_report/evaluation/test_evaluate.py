"""`medfl.evaluate` and ``medfl evaluate``: scores of finished models at sites, and whether they are external."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from evaluated_runs import change_list, make_data
from refusals import refused
from run_records import change_json
from sklearn.metrics import balanced_accuracy_score

import medfl
from medfl.data.datalists import read_datalist
from medfl.engine.runs.start_source import RUN_ORIGIN
from medfl.errors import DataError, SettingsError, StoreError
from medfl.objectives import Multiclass
from medfl.records.evaluation import Evaluation
from medfl.records.run_file import RunFile
from medfl_report.evaluation.evaluate import estimate_scores
from medfl_report.predictions import PredictionSet
from medfl_report.statistics import bootstrap

RowLabels = tuple[np.ndarray, np.ndarray]


def evaluate(place: Path, site: str = "site-03", run: str = "fedavg", **options: object) -> Evaluation:
    (done,) = medfl.evaluate(place / run, place / "data" / site, **options)  # type: ignore[arg-type]
    return done


def answers(path: Path) -> RowLabels:
    """Return the labels and the most probable classes in a file of predictions."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    probabilities = [[float(value) for name, value in row.items() if name.startswith("p")] for row in rows]
    return np.array([int(row["label"]) for row in rows]), np.array(probabilities)[:, :3].argmax(axis=1)


def test_scores_are_those_of_the_predictions(made: Path, tmp_path: Path) -> None:
    evaluation = evaluate(made, out=tmp_path / "out")
    labels, predicted = answers(tmp_path / "out" / "predictions.csv")
    expected = {
        "accuracy": float((labels == predicted).mean()),
        "balanced_accuracy": balanced_accuracy_score(labels, predicted),
    }
    with (tmp_path / "out" / "scores.csv").open(newline="") as file:
        table = {row["metric"]: row for row in csv.DictReader(file)}
    for metric, value in expected.items():
        score = evaluation.scores[metric]
        assert score is not None
        assert score.value == pytest.approx(value, abs=1e-12)
        assert score.low <= value <= score.high
        assert float(table[metric]["value"]) == pytest.approx(value, abs=1e-8)
        assert evaluation.models[0].scores[metric] == score
    assert (evaluation.images, table["accuracy"]["images"]) == (len(labels), str(len(labels)))
    assert {row["relation"] for row in table.values()} == {"external"}
    assert Evaluation.read(tmp_path / "out" / Evaluation.NAME) == evaluation
    assert (evaluation.relation.reason, evaluation.relation.shared) == ("nothing_shared", ())


@pytest.mark.parametrize(("model", "place_of_map"), [("fedavg", "global model"), ("fedavg#site-01", "model of a site")])
def test_models_on_harmonised_features_are_evaluated_with_a_warning(
    place: Path, model: str, place_of_map: str, caplog: pytest.LogCaptureFixture
) -> None:
    evaluate(place, run=model, out=place / "plain")
    assert "harmonised" not in caplog.text
    settings = {"harmonise_features": "combat"}
    change_json(place / "fedavg" / RunFile.NAME, lambda content: content["identity"]["settings"].update(settings))
    evaluate(place, run=model, out=place / "combat")
    assert place_of_map in caplog.text


def test_a_site_of_the_run_has_the_runs_own_scores_and_is_not_external(made: Path) -> None:
    own = made / "fedavg" / "sites" / "site-01" / "predictions.csv"
    for model in ("fedavg", "fedavg#site-01", "fedavg/sites/site-01"):
        (evaluation,) = medfl.evaluate(made / model, made / "data" / "site-01")
        written = made / "fedavg" / "evaluations" / f"{evaluation.model}-at-site-01" / "predictions.csv"
        assert written.read_bytes() == own.read_bytes()
        run = medfl.load_run(made / "fedavg")
        for metric in run.task_metrics:
            score = evaluation.scores[metric]
            assert run.score("site-01", metric) == pytest.approx(None if score is None else score.value, abs=1e-8)
        assert not evaluation.is_external
        assert evaluation.relation.reason == "participating_site"
        (shared,) = evaluation.relation.shared
        assert (shared.site, shared.split, shared.images) == ("site-01", "test", evaluation.images)


def test_the_sites_models_of_a_run_without_a_global_model_count_as_their_mean(made: Path, tmp_path: Path) -> None:
    evaluation = evaluate(made, run="local", out=tmp_path)
    accuracies = []
    for site in ("site-01", "site-02"):
        labels, predicted = answers(tmp_path / site / "predictions.csv")
        accuracies.append(float((labels == predicted).mean()))
    assert [model.scores["accuracy"].value for model in evaluation.models] == pytest.approx(accuracies)
    score = evaluation.scores["accuracy"]
    assert score is not None
    assert score.value == pytest.approx(np.mean(accuracies))
    assert evaluation.is_external


def test_the_interval_of_equal_models_is_that_of_one() -> None:
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(2, (30,), generator=generator)
    predictions = torch.rand(30, 2, generator=generator, dtype=torch.float64)
    patients = torch.arange(30) // 3
    test_set = PredictionSet(torch.arange(30), targets, predictions, Multiclass(2), patients=patients)
    expected = bootstrap(test_set._score("balanced_accuracy"), predictions, targets, resamples=1000, patients=patients)
    score = estimate_scores([test_set, test_set], ["balanced_accuracy"])["balanced_accuracy"]
    assert score is not None
    assert expected is not None
    assert (score.value, score.low, score.high) == pytest.approx((expected.difference, expected.low, expected.high))


def test_a_folder_of_sites_is_evaluated_site_by_site(made: Path, tmp_path: Path) -> None:
    done = medfl.evaluate(made / "fedavg", made / "data", out=tmp_path)
    assert [(each.site, each.relation.kind) for each in done] == [
        ("site-01", "internal"),
        ("site-02", "internal"),
        ("site-03", "external"),
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["site-01", "site-02", "site-03"]


def test_all_images_of_a_site(made: Path, tmp_path: Path) -> None:
    datalist = read_datalist(made / "data" / "site-03")
    evaluation = evaluate(made, split="all", out=tmp_path)
    assert evaluation.images == sum(map(len, datalist.splits.values())) == 40
    assert evaluation.is_external


# ---- relation to the run's data


@pytest.mark.parametrize("split", ["training", "validation", "test"])
def test_an_image_of_the_run_makes_it_internal(place: Path, split: str) -> None:
    seen = read_datalist(place / "data" / "site-02").splits[split][0]
    unseen = read_datalist(place / "data" / "site-03").splits
    stranger = {**seen, "subject_id": "someone else"}
    change_list(place / "data" / "site-03", splits=unseen | {"test": [*unseen["test"], stranger]})
    relation = evaluate(place).relation
    assert (relation.kind, relation.reason) == ("internal", "shared_cases")
    assert [(part.site, part.split, part.images, part.patients) for part in relation.shared] == [
        ("site-02", split, 1, 0)
    ]


def test_a_copy_of_an_image_in_another_array_is_found(place: Path) -> None:
    images = np.load(place / "data" / "images.npy")
    seen = read_datalist(place / "data" / "site-01").splits["training"][0]
    folder = place / "elsewhere" / "clinic"
    shutil.copytree(place / "data" / "site-03", folder)
    np.save(folder / "images.npy", (images[[seen["image"]]] / np.float32(255)).astype(np.float32))
    record = {"image": 0, "label": seen["label"], "subject_id": "new"}
    change_list(folder, image_array="images.npy", splits={"training": [], "validation": [], "test": [record]})
    (evaluation,) = medfl.evaluate(place / "fedavg", folder)
    assert [(part.site, part.split, part.images) for part in evaluation.relation.shared] == [("site-01", "training", 1)]


def test_another_image_of_a_patient_makes_it_internal(place: Path) -> None:
    seen = read_datalist(place / "data" / "site-01").splits["training"][0]["subject_id"]
    splits = read_datalist(place / "data" / "site-03").splits
    first, *others = splits["test"]
    change_list(place / "data" / "site-03", splits=splits | {"test": [{**first, "subject_id": seen}, *others]})
    (part,) = evaluate(place).relation.shared
    assert (part.site, part.split, part.images, part.patients) == ("site-01", "training", 0, 1)


def test_without_the_runs_data_nothing_is_called_external(place: Path) -> None:
    shutil.copytree(place / "fedavg" / "global", place / "bundle")
    (alone,) = medfl.evaluate(place / "bundle", place / "data" / "site-03")
    assert (alone.relation.kind, alone.relation.reason) == ("unchecked", "no_run")
    assert [path.name for path in (place / "evaluations").iterdir()] == ["bundle-at-site-03"]
    shutil.copytree(place / "data", place / "copy")
    change_list(place / "data" / "site-01", name="another name")
    (changed,) = medfl.evaluate(place / "fedavg", place / "copy" / "site-03")
    assert (changed.relation.kind, changed.relation.reason) == ("unchecked", "changed_data")
    shutil.rmtree(place / "data")
    (missing,) = medfl.evaluate(place / "fedavg", place / "copy" / "site-03")
    assert (missing.relation.kind, missing.relation.reason) == ("unchecked", "missing_data")
    (known,) = medfl.evaluate(place / "fedavg", place / "copy" / "site-02")
    assert (known.relation.kind, known.relation.reason) == ("internal", "participating_site"), "by its digest"


def test_a_run_that_started_from_another_run_is_unchecked(place: Path) -> None:
    start = {"source": "before", "title": "before", "origin": RUN_ORIGIN, "sha256": "0" * 64, "skip": []}
    change_json(place / "fedavg" / RunFile.NAME, lambda content: content["provenance"].update(start=start))
    assert (evaluate(place).relation.kind, evaluate(place).relation.reason) == ("unchecked", "earlier_run")


# ---- wrong inputs


def test_wrong_models(made: Path, tmp_path: Path) -> None:
    site = made / "data" / "site-03"
    with refused(StoreError, "not_a_model", path=str(tmp_path)):
        medfl.evaluate(tmp_path, site)
    with refused(SettingsError, "unknown_site", site="site-9", known=["site-01", "site-02", "global"]):
        medfl.evaluate(f"{made / 'fedavg'}#site-9", site)
    with refused(SettingsError, "unknown_choice", what="split"):
        medfl.evaluate(made / "fedavg", site, split="training")
    stock = tmp_path / "stock"
    shutil.copytree(made / "fedavg" / "global", stock)
    config = json.loads((stock / "configs" / "train.json").read_text())
    (stock / "configs" / "train.json").write_text(json.dumps({"network_def": config["network_def"]}))
    with refused(SettingsError, "unsupported_bundle", missing=["objective", "metrics", "mean", "std"]):
        medfl.evaluate(stock, site)


def test_data_of_another_learning_problem(made: Path, tmp_path: Path) -> None:
    model = made / "fedavg"
    with refused(DataError, "different_classes", found=4):
        medfl.evaluate(model, make_data(tmp_path / "classes", classes=4), out=tmp_path / "out")
    with refused(DataError, "different_shapes", expected=[3, 12, 12], found=[3, 16, 16]):
        medfl.evaluate(model, make_data(tmp_path / "size", size=16), out=tmp_path / "out")
    grey = make_data(tmp_path / "grey")
    images = np.load(grey / "images.npy")[..., 0]
    np.save(grey / "images.npy", np.ascontiguousarray(images))
    with refused(DataError, "different_shapes", expected=[3, 12, 12], found=[1, 12, 12]):
        medfl.evaluate(model, grey, out=tmp_path / "out")
    swapped = make_data(tmp_path / "swapped") / "site-01"
    names = read_datalist(swapped).labels
    change_list(swapped, labels={"0": names["1"], "1": names["0"], "2": names["2"]})
    with refused(DataError, "different_classes", expected=list(names.values())):
        medfl.evaluate(model, swapped, out=tmp_path / "out")
    target = make_data(tmp_path / "target") / "site-01"
    records = [{"image": 0, "target": 1.5}]
    change_list(target, objective={"name": "regression"}, labels={}, num_classes=1, splits={"test": records})
    with refused(DataError, "different_objective", expected="multiclass", found="regression"):
        medfl.evaluate(model, target, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_site_without_test_images(place: Path) -> None:
    splits = read_datalist(place / "data" / "site-03").splits
    change_list(place / "data" / "site-03", splits=splits | {"test": []})
    with refused(DataError, "no_images", split="test"):
        evaluate(place)
    assert evaluate(place, split="all").images == 40 - len(splits["test"])


def test_an_evaluation_of_other_data_is_not_replaced(made: Path, tmp_path: Path) -> None:
    before = evaluate(made, out=tmp_path)
    assert evaluate(made, out=tmp_path) == before
    with refused(StoreError, "other_evaluation", site="site-03"):
        evaluate(made, "site-01", out=tmp_path)


def test_the_command(made: Path, tmp_path: Path, medfl_command) -> None:
    data = made / "data" / "site-03"
    code, out, _ = medfl_command("evaluate", made / "fedavg", "--dataset-dir", data, "--out", tmp_path)
    assert code == 0
    assert out.splitlines()[0] == "global at site-03: 8 images"
    evaluation = Evaluation.read(tmp_path / Evaluation.NAME)
    assert out.splitlines()[1] == evaluation.relation.sentence
    assert len(out.splitlines()) == 2 + len(evaluation.scores)
