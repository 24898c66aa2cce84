"""Evaluate finished models on data of a site: predictions, scores with intervals, and the relation to the run's data.

N is the number of evaluated images, M the number of models, and K the number of values of a prediction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import nn

from medfl.bundle.exported import load_exported
from medfl.data.pooled import patients_of
from medfl.data.sites import PATIENT_COLUMN
from medfl.engine.runs.records import read_predictions
from medfl.engine.runs.site_bundles import WEIGHTS, format_predictions
from medfl.errors import SettingsError, StoreError
from medfl.objectives import Objective
from medfl.objectives.objective import format_value
from medfl.records.calibration_evaluation import CalibrationEvaluation
from medfl.records.evaluation import EvaluatedModel, Evaluation, ScoreEstimate
from medfl.settings import Settings
from medfl.training.devices import pick_device
from medfl.training.predict import predict
from medfl.utils.files import sha256_of, write_atomic
from medfl_report.calibration.evaluation import evaluate_calibration
from medfl_report.calibration.validation_predictions import read_bundle_calibration
from medfl_report.cards.score_computation import estimate_from, estimate_metric
from medfl_report.evaluation.cases import (
    LabelledImages,
    SiteCases,
    Split,
    TableColumns,
    choose_rows,
    files_digest,
    load_cases,
    predict_files,
    read_labels,
    site_folders,
)
from medfl_report.evaluation.models import BundleTask, FinishedModels, find_models, read_task
from medfl_report.evaluation.relation import relate_to_run
from medfl_report.evaluation.stored import EVALUATIONS, prediction_path
from medfl_report.objectives.site_scores import RESAMPLES
from medfl_report.predictions import PredictionSet, prediction_set_of
from medfl_report.statistics import bootstrap

SCORES = "scores.csv"
"""Name of the table of scores."""

OPERATING_POINTS = "operating_points.csv"
"""Name of the table of rates at the thresholds of calibrated models, and of the coverage of their prediction sets."""


def evaluate_sites(
    model: str, dataset_dir: Path, out: Path | None = None, split: Split = "test", device: str = "auto"
) -> list[Evaluation]:
    """Evaluate finished models on the data of one or several sites, and write the results.

    Args:
        model: Model as in `find_models`.
        dataset_dir: Folder of a prepared site, or folder with one folder for each site.
        out: Folder to write: the results of one site directly, those of several in a folder for each. None takes
            ``evaluations/MODEL-at-SITE`` in the run folder, or beside a bundle without a run.
        split: Images to evaluate.
        device: ``auto``, ``cpu`` or ``cuda:N``.

    Returns:
        One evaluation for each site, in the order of their names.

    Raises:
        MedflError: If there is no such model, the data do not fit it, or the results can't be written.
    """
    models = find_models(model)
    tasks = {bundle.name: read_task(bundle.folder) for bundle in models.bundles}
    folders = site_folders(dataset_dir)
    places = [_result_folder(models, folder.resolve().name, out, len(folders) > 1) for folder in folders]
    chosen = pick_device(device)
    return [
        _evaluate_site(models, tasks, folder, place, split, chosen)
        for folder, place in zip(folders, places, strict=True)
    ]


def _result_folder(models: FinishedModels, site: str, out: Path | None, several: bool) -> Path:
    """Return the folder for the results of a site."""
    if out is None:
        return models.home / EVALUATIONS / f"{models.name}-at-{site}"
    return out / site if several else out


def _evaluate_site(
    models: FinishedModels, tasks: Mapping[str, BundleTask], folder: Path, out: Path, split: Split, device: str
) -> Evaluation:
    """Evaluate the models on the data of one site and write the results."""
    cases = {bundle.name: load_cases(folder, tasks[bundle.name], split) for bundle in models.bundles}
    first, site = cases[models.bundles[0].name], folder.resolve().name
    _check_place(out, models, first.data.digest)
    sets = {}
    for bundle in models.bundles:
        path = prediction_path(out, bundle.name, len(models.bundles))
        network = load_exported(bundle.folder)
        sets[bundle.name] = predict_cases(
            path, network, tasks[bundle.name], cases[bundle.name], models.settings, device
        )
    relation = relate_to_run(models.run, first.data.digest, first.contents)
    evaluation = Evaluation(
        **_run_fields(models),
        models=_evaluated_models(models, sets, tasks[models.bundles[0].name].metrics, site, out),
        site=site,
        dataset=first.data.source,
        data=first.data.digest,
        split=split,
        images=len(first.data.test),
        patients=next(iter(sets.values())).patient_count,
        relation=relation,
        scores=estimate_scores(list(sets.values()), tasks[models.bundles[0].name].metrics),
    )
    _write_results(evaluation, out)
    return evaluation


def _check_place(out: Path, models: FinishedModels, data: str) -> None:
    """Raise if the folder contains an evaluation of other models or on other data."""
    path = out / Evaluation.NAME
    if not path.is_file():
        return
    before = Evaluation.read(path)
    names = [bundle.name for bundle in models.bundles]
    if before.data != data or [model.name for model in before.models] != names:
        raise StoreError(
            "other_evaluation",
            f"'{out}' contains an evaluation of other models or on other data ({before.model} at {before.site}). "
            "Choose another folder with --out, or delete it.",
            path=out,
            site=before.site,
        )


def predict_cases(
    path: Path, network: nn.Module, task: BundleTask, cases: SiteCases, settings: Settings, device: str
) -> PredictionSet:
    """Predict the cases with a model, write the predictions in the format of a run, and return them as read again.

    So anyone computes the same scores from the file.

    Args:
        path: File to write.
        network: The model.
        task: Configuration of the model's bundle.
        cases: Cases of the site.
        settings: Settings of the run, for the precision.
        device: ``cpu`` or ``cuda:N``.

    Raises:
        StoreError: If the file can't be written.
    """
    predictions, targets = predict(
        network.to(device), cases.data.test, task.objective, task.metrics, settings, device, task.inferer
    )
    patients = patients_of(cases.data.test)
    facts = dict(cases.data.test_metadata)
    facts |= {} if patients is None else {PATIENT_COLUMN: tuple(map(str, patients.tolist()))}
    text = format_predictions(task.objective, task.key_metrics, predictions, targets, facts)
    write_atomic(path, text.encode())
    return prediction_set_of(read_predictions(path), task.objective)


def _run_fields(models: FinishedModels) -> dict[str, str | int | None]:
    """Return the fields of an evaluation that describe the run."""
    run = models.run
    if run is None:
        return {}
    return {"method": run.method, "seed": run.seed, "run": run.folder.resolve().name}


def _evaluated_models(
    models: FinishedModels, sets: Mapping[str, PredictionSet], metrics: Sequence[str], site: str, out: Path
) -> tuple[EvaluatedModel, ...]:
    """Return the records of the models with their own scores, and with the evaluations of their calibrations."""
    return tuple(
        EvaluatedModel(
            name=bundle.name,
            weights=sha256_of(bundle.folder / WEIGHTS),
            predictions=sha256_of(prediction_path(out, bundle.name, len(models.bundles))),
            scores=estimate_scores([sets[bundle.name]], metrics),
            calibrated=_evaluate_calibration(bundle.folder, site, sets[bundle.name]),
        )
        for bundle in models.bundles
    )


def _evaluate_calibration(bundle: Path, site: str, predicted: PredictionSet) -> CalibrationEvaluation | None:
    """Return the evaluation of a bundle's calibration; None if the bundle is not calibrated."""
    calibration = read_bundle_calibration(bundle)
    return None if calibration is None else evaluate_calibration(site, calibration, predicted)


def estimate_scores(sets: Sequence[PredictionSet], metrics: Sequence[str]) -> dict[str, ScoreEstimate | None]:
    """Return the score of a model, or the mean score of several models, with its interval over the patients.

    Args:
        sets: Predictions of each model for the same images.
        metrics: Names of the metrics.

    Returns:
        Maps each metric to its estimate; None if it is not defined for every model.
    """
    if len(sets) == 1:
        return {name: estimate_metric(sets[0], name) for name in metrics}
    return {name: _estimate_mean(sets, name) for name in metrics}


def _estimate_mean(sets: Sequence[PredictionSet], metric: str) -> ScoreEstimate | None:
    """Return the mean score of several models, with a bootstrap over the patients that resamples all models alike."""
    if not all(test_set.defined for test_set in sets):
        return None
    first, width = sets[0], sets[0].predictions.shape[1]

    def mean_score(predictions: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        score = partial(first.objective.weighted_score, metric)
        return torch.stack([score(part, targets, weights) for part in predictions.split(width, dim=1)]).mean(dim=0)

    stacked = torch.cat([test_set.predictions for test_set in sets], dim=1)
    return estimate_from(bootstrap(mean_score, stacked, first.targets, resamples=RESAMPLES, patients=first.patients))


def _write_results(evaluation: Evaluation, out: Path) -> None:
    """Write ``evaluation.json``, the table of scores, and the table of rates of calibrated models."""
    lines = ["metric,value,low,high,images,patients,relation"]
    for metric, score in evaluation.scores.items():
        if score is not None:
            numbers = ",".join(format_value(number) for number in (score.value, score.low, score.high))
            patients = evaluation.images if evaluation.patients is None else evaluation.patients
            lines.append(f"{metric},{numbers},{evaluation.images},{patients},{evaluation.relation.kind}")
    write_atomic(out / SCORES, ("\n".join(lines) + "\n").encode())
    rows = [
        f"{model.name},{rate.name},{','.join(map(format_value, (rate.value, rate.low, rate.high)))},{rate.images}"
        for model in evaluation.models
        if model.calibrated is not None
        for rate in model.calibrated.rates
    ]
    if rows:
        write_atomic(out / OPERATING_POINTS, "\n".join(["model,rate,value,low,high,images", *rows, ""]).encode())
    evaluation.write(out / Evaluation.NAME)


# ---- image files with a table


def evaluate_files(model: str, images: Path, table: Path, columns: TableColumns, out: Path | None = None) -> Evaluation:
    """Predict the image files of a folder, evaluate those that a table labels, and write the results.

    Args:
        model: Model as in `find_models`; exactly one model, of a bundle that predicts a class.
        images: Folder of image files.
        table: CSV or TSV file with a row for each labelled image; rows of other images are left out.
        columns: Columns of the table.
        out: Folder to write; None takes ``evaluations/MODEL-at-FOLDER`` as in `evaluate_sites`.

    Raises:
        SettingsError: If there are several models, or the bundle's objective has no classes.
        DataError: If no image of the folder has a label, or a label is not one of the bundle's classes.
        StoreError: If there is no such model.
    """
    models = find_models(model)
    bundle = models.only_bundle(model, "image files")
    labelled = read_labels(table, columns)
    task = read_task(bundle.folder)
    if not task.objective.has_class_labels:
        raise SettingsError(
            "unsupported_objective",
            f"A table of labels needs a bundle that predicts a class, got the objective '{task.objective.name}'. "
            "Prepare the images with `medfl prep` and give the folder of the site.",
            objective=task.objective.name,
        )
    site = images.resolve().name
    place = _result_folder(models, site, out, several=False)
    predicted = predict_files(bundle.folder, images, table, columns.image, place)
    rows = choose_rows(labelled, predicted, images)
    files = [labelled.files[row] for row in rows]
    test_set = _labelled_set(task.objective, labelled, rows, predicted.probabilities, predicted.classes)
    data = files_digest(images, files, [labelled.labels[row] for row in rows])
    evaluation = Evaluation(
        **_run_fields(models),
        models=_evaluated_models(models, {bundle.name: test_set}, task.metrics, site, place),
        site=site,
        dataset="",
        data=data,
        split="files",
        images=len(rows),
        patients=test_set.patient_count,
        relation=relate_to_run(models.run, data, predicted.contents(files)),
        scores=estimate_scores([test_set], task.metrics),
    )
    _write_results(evaluation, place)
    return evaluation


def _labelled_set(
    objective: Objective,
    labelled: LabelledImages,
    rows: Sequence[int],
    probabilities: Mapping[str, Sequence[float]],
    classes: Sequence[str],
) -> PredictionSet:
    """Return the predictions for the labelled images as a test set."""
    patients = labelled.patients
    return PredictionSet(
        rows=torch.tensor(rows),
        targets=torch.tensor([classes.index(labelled.labels[row]) for row in rows]),
        predictions=torch.tensor([probabilities[labelled.files[row]] for row in rows], dtype=torch.float64),
        objective=objective,
        patients=None if patients is None else torch.tensor([patients[row] for row in rows]),
    )
