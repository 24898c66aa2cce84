"""Read the evaluations of a run's models that `medfl evaluate` wrote into the run folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from medfl.engine.runs.records import PREDICTIONS, RunRecord, read_predictions
from medfl.engine.runs.site_bundles import WEIGHTS
from medfl.records.evaluation import EvaluatedModel, Evaluation
from medfl.types import GLOBAL
from medfl.utils.files import sha256_of
from medfl_report.cards.run_bundles import SITE_BUNDLE_FOLDER
from medfl_report.predictions import PredictionSet, prediction_set_of

EVALUATIONS = "evaluations"
"""Name of the folder, in a run folder or beside a bundle, with a folder for each evaluation."""


@dataclass(frozen=True)
class StoredEvaluation:
    """An evaluation in a run folder.

    Attributes:
        folder: Folder of the evaluation.
        record: Content of its ``evaluation.json``.
    """

    folder: Path
    record: Evaluation

    def prediction_path(self, model: EvaluatedModel) -> Path:
        """Return the file of a model's predictions."""
        return prediction_path(self.folder, model.name, len(self.record.models))

    def prediction_sets(self, run: RunRecord) -> list[PredictionSet]:
        """Return the predictions of each model; empty if there are none in a run's format, or a file has changed.

        Args:
            run: The run, for its objective.
        """
        if not self.record.has_prediction_sets:
            return []
        paths = {self.prediction_path(model): model.predictions for model in self.record.models}
        if not all(path.is_file() and sha256_of(path) == sha256 for path, sha256 in paths.items()):
            return []
        return [prediction_set_of(read_predictions(path), run.objective) for path in paths]


def prediction_path(folder: Path, model: str, models: int) -> Path:
    """Return the file of a model's predictions in the folder of an evaluation; several models have a folder each.

    Args:
        folder: Folder of the evaluation.
        model: Name of the model.
        models: Number of models of the evaluation.
    """
    return folder / PREDICTIONS if models == 1 else folder / model / PREDICTIONS


def read_evaluations(run: RunRecord) -> list[StoredEvaluation]:
    """Return the evaluations of a run's current models, in the order of their folders.

    An evaluation of models that the run has replaced since, as a continued run does, is left out.

    Args:
        run: The run.

    Raises:
        StoreError: If a file is damaged.
    """
    evaluations = []
    for path in sorted((run.folder / EVALUATIONS).glob(f"*/{Evaluation.NAME}")):
        record = Evaluation.read(path)
        if all(_has_weights(run, model) for model in record.models):
            evaluations.append(StoredEvaluation(path.parent, record))
    return evaluations


def bundle_of(run: RunRecord, model: EvaluatedModel) -> Path:
    """Return the folder of the run's bundle of an evaluated model."""
    own = run.folder / GLOBAL if model.name == GLOBAL else run.folder / "sites" / model.name
    return own if own.is_dir() else run.folder / SITE_BUNDLE_FOLDER


def _has_weights(run: RunRecord, model: EvaluatedModel) -> bool:
    """Return whether the run's bundle of a model has the weights that were evaluated."""
    bundle = bundle_of(run, model)
    return (bundle / WEIGHTS).is_file() and sha256_of(bundle / WEIGHTS) == model.weights
