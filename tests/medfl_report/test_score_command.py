"""``medfl score``: predictions and scores of new labelled images, with intervals over patients."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from inference_file import read_inference
from monai.bundle import run
from PIL import Image
from refusals import refused

import medfl
from medfl.errors import DataError, SettingsError
from medfl.objectives import Multiclass
from medfl.testing.synthetic import make_cohort
from medfl_report.commands.score import command, compute_scores, read_labels

COLUMNS = {"image_column": "file", "label_column": "diagnosis"}


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


def score(made: Path, table: Path, out: Path, **options: str) -> list[dict[str, str]]:
    command(made / "run" / "sites" / "site-01", made / "new", table, **COLUMNS, **options, out=out)
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
        assert "1 of 7 rows" in capsys.readouterr().err
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
    table = write_table(tmp_path / "t.csv", [("x.png", "c", "p"), ("z.png", "c", "p"), ("deep/y.png", "b", "q")])
    scores = {row["metric"]: row for row in score(made, table, tmp_path / "out", group_column="patient")}
    assert float(scores["accuracy"]["value"]) == pytest.approx(2 / 3, abs=1e-8)
    assert float(scores["balanced_accuracy"]["value"]) == pytest.approx(0.75, abs=1e-8)  # of b and of c, which has half
    assert (scores["accuracy"]["images"], scores["accuracy"]["patients"]) == ("3", "2")


def test_intervals_resample_patients() -> None:
    predictions = torch.tensor([[0.9, 0.1]] * 50 + [[0.1, 0.9]] * 50, dtype=torch.float64)
    targets = torch.tensor([0] * 40 + [1] * 60)
    each = {score.metric: score for score in compute_scores(Multiclass(2), predictions, targets, list(range(100)))}
    blocks = [number // 10 for number in range(100)]
    grouped = {score.metric: score for score in compute_scores(Multiclass(2), predictions, targets, blocks)}
    assert each["accuracy"].value == grouped["accuracy"].value == pytest.approx(0.9)
    assert (each["accuracy"].patients, grouped["accuracy"].patients) == (100, 10)
    widths = [scores["accuracy"].high - scores["accuracy"].low for scores in (each, grouped)]
    assert widths[0] == pytest.approx(2 * 1.96 * np.sqrt(0.9 * 0.1 / 100), abs=0.02)
    assert widths[1] > 2 * widths[0]


def test_wrong_inputs(made: Path, tmp_path: Path) -> None:
    good = write_table(tmp_path / "good.csv", [("0.png", "unheard of", "p")])
    with refused(DataError, "unknown_class", found=["unheard of"]):
        score(made, good, tmp_path / "out")
    with refused(DataError, "no_labelled_images", count=1):
        score(made, write_table(tmp_path / "other.csv", [("x.png", "a", "p")]), tmp_path / "out")
    with refused(SettingsError, "not_a_bundle", path=str(tmp_path)):
        command(tmp_path, made / "new", good, **COLUMNS)
    with refused(DataError, "duplicate_image", count=1):
        read_labels(write_table(tmp_path / "twice.csv", [("a", "x", "p"), ("a", "y", "p")]), *COLUMNS.values(), None)
    with refused(DataError, "missing_column", columns=["hospital"]):
        read_labels(good, *COLUMNS.values(), "hospital")
