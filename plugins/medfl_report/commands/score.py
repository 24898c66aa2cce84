"""``medfl score``: predict and score new labelled images with a bundle that a run exported."""

from __future__ import annotations

import csv
import warnings
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from medfl.errors import DataError, SettingsError

if TYPE_CHECKING:
    import torch

    from medfl.objectives import Objective

METRICS = ("balanced_accuracy", "accuracy", "auc", "recall", "specificity")
"""Scores of new images, as far as the bundle's objective has them."""

PREDICTIONS_FILE, SCORES_FILE = "predictions.csv", "scores.csv"
"""Names of the files that the command writes."""


@dataclass(frozen=True)
class LabelledImages:
    """Labels and patients of new images.

    Attributes:
        files: Path of each image relative to the folder of images.
        labels: Class name of each image.
        patients: Patient number of each image, from 0.
    """

    files: list[str]
    labels: list[str]
    patients: list[int]


@dataclass(frozen=True)
class ClassPrediction:
    """Prediction for one image.

    Attributes:
        predicted: Name of the predicted class.
        probabilities: Probability of each class.
    """

    predicted: str
    probabilities: list[float]


@dataclass(frozen=True)
class ImageScore:
    """One score of new images.

    Attributes:
        metric: Name of the metric.
        value: The score.
        low: Lower end of the 95 % interval over the patients.
        high: Upper end of that interval.
        images: Number of images.
        patients: Number of patients.
    """

    metric: str
    value: float
    low: float
    high: float
    images: int
    patients: int


def command(
    bundle: Annotated[Path, typer.Argument(help="Exported bundle, such as RUN/sites/NAME.", show_default=False)],
    images: Annotated[Path, typer.Argument(help="Folder of image files.", show_default=False)],
    table: Annotated[Path, typer.Option(help="CSV or TSV file with one row for each image.")],
    image_column: Annotated[str, typer.Option(help="Column with the path of the image file, relative to IMAGES.")],
    label_column: Annotated[str, typer.Option(help="Column with the class.")],
    group_column: Annotated[str | None, typer.Option(help="Column with the patient.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write; by default BUNDLE/eval.")] = None,
) -> None:
    """Predict all images of a folder, and score those that the table labels.

    Intervals are 95 % bootstrap intervals over the patients. A calibrated bundle (`medfl calibrate`) is scored with its
    recalibrated probabilities and its decisions at the chosen threshold. Images without a row in the table are
    predicted only, and rows of images outside the folder are left out. Score only images of patients who were not used
    for training.
    The command runs the code of the bundle, so score only with bundles that you trust (`medfl check-bundle`).

    Example: medfl score runs/fedavg/sites/north new --table new.csv --image-column file --label-column diagnosis
    """
    out = bundle / "eval" if out is None else out
    labelled = read_labels(table, image_column, label_column, group_column)
    scores = score_images(bundle, images, labelled, out)
    typer.echo(f"{scores[0].images} images of {scores[0].patients} patients")
    if left_out := len(labelled.files) - scores[0].images:
        typer.echo(f"{left_out} of {len(labelled.files)} rows of the table have no image in the folder", err=True)
    for score in scores:
        typer.echo(f"{score.metric}: {score.value:.3f} [{score.low:.3f}, {score.high:.3f}]")
    typer.echo(f"{out / PREDICTIONS_FILE}\n{out / SCORES_FILE}")


def read_labels(table: Path, image_column: str, label_column: str, group_column: str | None) -> LabelledImages:
    """Return the labels and patients in a table; without a column of patients, each image is of another patient.

    Raises:
        DataError: If a column is missing, a cell is empty, or an image has several rows.
    """
    from medfl.data.table import read_table

    rows = read_table(table)
    rows.require([column for column in (image_column, label_column, group_column) if column is not None])
    files = [Path(file).as_posix() for file in rows.column(image_column)]
    if twice := [file for file, count in Counter(files).items() if count > 1]:
        raise DataError(
            "duplicate_image",
            f"expected one row for each image in '{table}', got several rows for {len(twice)} of them. Remove all but "
            "one of each.",
            path=table,
            count=len(twice),
        )
    groups = rows.column(group_column) if group_column else files
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    return LabelledImages(files, rows.column(label_column), [numbers[group] for group in groups])


def score_images(bundle: Path, images: Path, labelled: LabelledImages, out: Path) -> list[ImageScore]:
    """Predict a folder of images with a bundle, score the labelled ones, and write predictions and scores.

    Args:
        bundle: Exported bundle with ``configs/inference.json`` and its model.
        images: Folder of image files.
        labelled: Labels of images; those of images outside the folder are left out.
        out: Folder for `PREDICTIONS_FILE` and `SCORES_FILE`.

    Raises:
        SettingsError: If the folder is not such a bundle, or its objective has no classes.
        DataError: If no image of the folder has a label, or a label is not one of the bundle's classes.
    """
    import torch
    from monai.bundle import ConfigParser, run

    config = bundle / "configs" / "inference.json"
    if not config.is_file() or not (bundle / "models").is_dir():
        raise SettingsError(
            "not_a_bundle",
            f"expected an exported bundle with configs/inference.json and models, such as RUN/sites/NAME, got "
            f"'{bundle}'.",
            path=bundle,
        )
    parser = ConfigParser.load_config_file(str(config))
    settings = ConfigParser({key: parser[key] for key in ("objective", "num_classes") if key in parser})
    objective: Objective = settings.get_parsed_content("objective")
    if not objective.has_class_labels:
        raise SettingsError(
            "unsupported_objective",
            f"medfl score takes bundles that predict a class, got the objective '{objective.name}'. Use evaluate.json.",
            objective=objective.name,
        )
    places = {"bundle_root": bundle, "dataset_dir": images, "output_dir": out, "ckpt_dir": bundle / "models"}
    with warnings.catch_warnings():
        # MONAI warns that a configuration runs code, on every call; the help of this command says so once.
        warnings.filterwarnings("ignore", category=UserWarning, module="monai.bundle.scripts")
        run(config_file=str(config), **{name: str(path) for name, path in places.items()})
    predicted, names = read_class_predictions(out / PREDICTIONS_FILE)
    rows = [row for row, file in enumerate(labelled.files) if file in predicted]
    if not rows:
        raise DataError(
            "no_labelled_images",
            f"expected images of the table in '{images}', but none of its {len(labelled.files)} paths is there. Paths "
            "are relative to the folder of images.",
            path=images,
            count=len(labelled.files),
        )
    if unknown := sorted({labelled.labels[row] for row in rows} - set(names)):
        raise DataError(
            "unknown_class",
            f"expected the bundle's classes {', '.join(names)} as labels, got {', '.join(unknown)}.",
            known=names,
            found=unknown,
        )
    cases = [predicted[labelled.files[row]] for row in rows]
    scores = compute_scores(
        objective,
        torch.tensor([case.probabilities for case in cases], dtype=torch.float64),
        torch.tensor([names.index(labelled.labels[row]) for row in rows]),
        [labelled.patients[row] for row in rows],
        torch.tensor([names.index(case.predicted) for case in cases]),
    )
    _write_scores(scores, out / SCORES_FILE)
    return scores


def read_class_predictions(path: Path) -> tuple[dict[str, ClassPrediction], list[str]]:
    """Return the prediction for each case in a prediction file, by name, and the names of the classes."""
    prefix = "probability_"
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        columns = [column for column in reader.fieldnames or () if column.startswith(prefix)]
        cases = {
            Path(row["case"]).as_posix(): ClassPrediction(
                predicted=row["predicted_class"], probabilities=[float(row[column]) for column in columns]
            )
            for row in reader
        }
    return cases, [column.removeprefix(prefix) for column in columns]


def compute_scores(
    objective: Objective,
    predictions: torch.Tensor,
    targets: torch.Tensor,
    patients: list[int],
    decisions: torch.Tensor | None = None,
) -> list[ImageScore]:
    """Return the scores that are defined, each with its bootstrap interval over the patients.

    Args:
        objective: Objective of the bundle.
        predictions: Class probabilities (N, C).
        targets: Class numbers (N,).
        patients: Patient of each image; any distinct numbers.
        decisions: Predicted class of each image, (N,), for all metrics but the AUC; None for the most probable class.
            It differs in a calibrated bundle, which has a threshold.
    """
    import torch
    from torch.nn.functional import one_hot

    from medfl_report.statistics import bootstrap

    numbers = {patient: number for number, patient in enumerate(dict.fromkeys(patients))}
    units = torch.tensor([numbers[patient] for patient in patients])
    decided = predictions if decisions is None else one_hot(decisions, predictions.shape[1]).double()
    scores = []
    for metric in METRICS:
        if metric not in objective.scores:
            continue
        used = predictions if metric == "auc" else decided
        interval = bootstrap(partial(objective.weighted_score, metric), used, targets, patients=units)
        if interval is not None:
            values = (interval.difference, interval.low, interval.high)
            scores.append(ImageScore(metric, *values, images=len(targets), patients=len(numbers)))
    return scores


def _write_scores(scores: list[ImageScore], path: Path) -> None:
    """Write scores as a table."""
    from medfl.objectives.objective import format_value
    from medfl.utils.files import write_atomic

    lines = ["metric,value,low,high,images,patients"]
    for score in scores:
        numbers = ",".join(format_value(number) for number in (score.value, score.low, score.high))
        lines.append(f"{score.metric},{numbers},{score.images},{score.patients}")
    write_atomic(path, ("\n".join(lines) + "\n").encode())
