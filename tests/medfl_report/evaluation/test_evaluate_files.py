"""``medfl evaluate --table``: predictions and scores of image files with labels, and intervals over patients."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from inference_file import read_inference
from monai.bundle import run
from PIL import Image
from refusals import refused

import medfl
from medfl.errors import DataError, SettingsError, StoreError
from medfl.objectives import Multiclass
from medfl.records.evaluation import Evaluation, ScoreEstimate
from medfl.testing.synthetic import make_cohort
from medfl_report.commands.evaluate import command
from medfl_report.evaluation.cases import TableColumns, class_column, read_labels
from medfl_report.evaluation.evaluate import estimate_scores
from medfl_report.predictions import PredictionSet

COLUMNS = {"image_column": "file", "target": "diagnosis"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run's exported bundle, and a folder of images."""
    folder = tmp_path_factory.mktemp("score")
    make_cohort(folder / "data", sites=2, images_per_site=20, classes=3, size=16, seed=2)
    medfl.run("medmnist_classification", folder / "data", out=folder / "run", rounds=1, epochs=1, progress=False)
    (folder / "new" / "deep").mkdir(parents=True)
    for number, pixels in enumerate(np.load(folder / "data" / "images.npy")[:8]):
        Image.fromarray(pixels).save(folder / "new" / ("deep" if number > 5 else "") / f"{number}.png")
    return folder


def write_table(path: Path, rows: list[tuple[str, str, str]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("file", "diagnosis", "patient"), *rows])
    return path


def score(made: Path, table: Path, out: Path, images: Path | None = None, **options: str) -> list[dict[str, str]]:
    folder = images or made / "new"
    command(str(made / "run" / "sites" / "site-01"), folder, table=table, **COLUMNS, **options, out=out)
    with (out / "scores.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_labelled_images_are_scored_and_the_others_predicted(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    files = [*(f"{number}.png" for number in range(5)), "deep/6.png"]
    bundle = made / "run" / "sites" / "site-01"
    config = str(bundle / "configs" / "inference.json")
    run(config_file=config, bundle_root=str(bundle), dataset_dir=str(made / "new"), output_dir=str(tmp_path / "plain"))
    predicted = {row["case"]: row["predicted_class"] for row in read_inference(tmp_path / "plain" / "predictions.csv")}
    assert len(predicted) == 8
    recwarn.clear()
    heading = read_inference(tmp_path / "plain" / "predictions.csv")[0]
    names = [name.removeprefix("probability_") for name in heading if name.startswith("probability_")]
    right = [(file, predicted[file], f"p{number // 2}") for number, file in enumerate(files)]
    wrong = [(files[0], next(name for name in names if name != predicted[files[0]]), "p0"), *right[1:]]
    elsewhere = ("not/there.png", names[0], "p9")
    for rows, accuracy in ((right, 1.0), (wrong, 5 / 6)):
        table = write_table(tmp_path / "t.csv", [*rows, elsewhere])
        scores = score(made, table, tmp_path / "out", group_column="patient")
        row = next(row for row in scores if row["metric"] == "accuracy")
        assert float(row["value"]) == pytest.approx(accuracy, abs=1e-8)
        assert float(row["low"]) <= accuracy <= float(row["high"])
        assert (row["images"], row["patients"]) == ("6", "3")
        assert "6 images of 3 patients" in capsys.readouterr().out
    assert not [warning for warning in recwarn if "monai" in warning.filename]
    assert len(read_inference(tmp_path / "out" / "predictions.csv")) == 8


def test_each_label_is_compared_with_the_prediction_of_its_own_image(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def predict(config_file: str, output_dir: str, **places: str) -> None:
        Path(output_dir).mkdir()
        heading = "case,predicted_class,probability_a,probability_b,probability_c"
        lines = (heading, "z.png,a,1,0,0", "deep/y.png,b,0,1,0", "x.png,c,0,0,1")
        (Path(output_dir) / "predictions.csv").write_text("\n".join(lines) + "\n")

    monkeypatch.setattr("monai.bundle.run", predict)
    (tmp_path / "new" / "deep").mkdir(parents=True)
    for file in ("x.png", "z.png", "deep/y.png"):
        shutil.copy(made / "new" / "0.png", tmp_path / "new" / file)
    table = write_table(tmp_path / "t.csv", [("x.png", "c", "p"), ("z.png", "c", "p"), ("deep/y.png", "b", "q")])
    scores = {
        row["metric"]: row for row in score(made, table, tmp_path / "out", tmp_path / "new", group_column="patient")
    }
    assert float(scores["accuracy"]["value"]) == pytest.approx(2 / 3, abs=1e-8)
    assert float(scores["balanced_accuracy"]["value"]) == pytest.approx(0.75, abs=1e-8)  # of b and of c, which has half
    assert (scores["accuracy"]["images"], scores["accuracy"]["patients"]) == ("3", "2")


def test_intervals_resample_patients() -> None:
    predictions = torch.tensor([[0.9, 0.1]] * 50 + [[0.1, 0.9]] * 50, dtype=torch.float64)
    targets = torch.tensor([0] * 40 + [1] * 60)

    def accuracy(patients: torch.Tensor | None) -> ScoreEstimate:
        test_set = PredictionSet(torch.arange(100), targets, predictions, Multiclass(2), patients=patients)
        score = estimate_scores([test_set, test_set], ["accuracy"])["accuracy"]
        assert score is not None
        return score

    each, grouped = accuracy(None), accuracy(torch.arange(100) // 10)
    assert each.value == grouped.value == pytest.approx(0.9)
    widths = [score.high - score.low for score in (each, grouped)]
    assert widths[0] == pytest.approx(2 * 1.96 * np.sqrt(0.9 * 0.1 / 100), abs=0.02)
    assert widths[1] > 2 * widths[0]


def test_image_files_of_the_training_are_found(made: Path, tmp_path: Path) -> None:
    bundle = made / "run" / "sites" / "site-01"
    names = list(json.loads((bundle / "configs" / "inference.json").read_text())["output_names"])
    score(made, write_table(tmp_path / "t.csv", [("0.png", names[0], "p"), ("1.png", names[0], "p")]), tmp_path / "out")
    relation = Evaluation.read(tmp_path / "out" / Evaluation.NAME).relation
    assert (relation.kind, relation.reason) == ("internal", "shared_cases")
    assert sum(part.images for part in relation.shared) == 2


def test_new_image_files_are_external(made: Path, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(tmp_path / "new/a.png")
    bundle = made / "run" / "sites" / "site-01"
    names = list(json.loads((bundle / "configs" / "inference.json").read_text())["output_names"])
    table = write_table(tmp_path / "t.csv", [("a.png", names[0], "p")])
    command(str(bundle), tmp_path / "new", table=table, **COLUMNS, out=tmp_path / "out")
    assert Evaluation.read(tmp_path / "out" / Evaluation.NAME).relation.reason == "nothing_shared"


def test_wrong_inputs(made: Path, tmp_path: Path) -> None:
    good = write_table(tmp_path / "good.csv", [("0.png", "unheard of", "p")])
    with refused(DataError, "unknown_class", found=["unheard of"]):
        score(made, good, tmp_path / "out")
    with refused(DataError, "no_labelled_images", count=1):
        score(made, write_table(tmp_path / "other.csv", [("x.png", "a", "p")]), tmp_path / "out")
    with refused(StoreError, "not_a_model", path=str(tmp_path)):
        command(str(tmp_path), made / "new", table=good, **COLUMNS)
    with refused(SettingsError, "missing_setting", setting="target"):
        command(str(made / "run"), made / "new", table=good, image_column="file")
    with refused(SettingsError, "incompatible_settings", settings=["table", "group_column"]):
        command(str(made / "run"), made / "new", group_column="patient")
    with refused(DataError, "duplicate_image", count=1):
        read_labels(
            write_table(tmp_path / "twice.csv", [("a", "x", "p"), ("a", "y", "p")]), TableColumns(*COLUMNS.values())
        )
    with refused(DataError, "missing_column", columns=["hospital"]):
        read_labels(good, TableColumns(*COLUMNS.values(), "hospital"))


def test_a_table_of_files_is_scored_by_classes_only() -> None:
    assert class_column("class:diagnosis") == class_column("diagnosis") == "diagnosis"
    for target in ("number:age", "multilabel:a,b", "a,b"):
        with refused(SettingsError, "unsupported_target", setting="target"):
            class_column(target)
