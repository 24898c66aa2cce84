"""Predictions of the exported models on the sites' test images, read from the run folders.

A site exports its personal model if the method trains one, else the global model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
import torch

from medfl.data.pooled import concatenate_patients
from medfl.data.sites import PATIENT_COLUMN
from medfl.engine.runs.records import PREDICTIONS, RunRecord
from medfl.errors import StoreError
from medfl.objectives import Objective
from medfl.objectives.objective import GROUP_COLUMN
from medfl.types import METADATA_KEYS
from medfl_report.statistics import Interval, ScoreFunction, bootstrap, paired_bootstrap


@dataclass(frozen=True)
class PredictionSet:
    """A test set with the predictions of one model. For a site this is the model that the site exports.

    Attributes:
        rows: Index of each image in the test split, (N,), int64.
        targets: Targets of the N images (`Objective.scoring_targets`): class labels (N,), int64, or T values for each
            image, (N, T), float64.
        predictions: Predictions from which metrics are computed (`Objective.scoring_inputs`): K values for each image,
            such as class probabilities, (N, K), float64; NaN after a diverged training.
        objective: Objective of the run.
        sex: Sex of each image's patient as in the data list, "" if unknown; empty if it is known for no image.
        centre: Centre at which each image was taken, "" if unknown; empty if it is known for no image.
        patients: Patient number of each image, (N,), int64; None if each image counts as one patient.
        groups: Group of each image by the model's prediction, such as a risk group in survival analysis
            (`Objective.groups`); empty if the objective has none.
    """

    rows: torch.Tensor
    targets: torch.Tensor
    predictions: torch.Tensor
    objective: Objective
    sex: tuple[str, ...] = ()
    centre: tuple[str, ...] = ()
    patients: torch.Tensor | None = None
    groups: tuple[str, ...] = ()

    def same_images(self, other: PredictionSet) -> bool:
        """Return whether both contain the same images and targets, and predictions of the same shape."""
        return (
            torch.equal(self.rows, other.rows)
            and self.targets.shape == other.targets.shape
            and torch.allclose(self.targets, other.targets, rtol=0, atol=0, equal_nan=True)
            and self.predictions.shape == other.predictions.shape
        )

    @property
    def defined(self) -> bool:
        """True if there are images and the model gave a number for each of them."""
        return len(self.rows) > 0 and self.objective.is_without_nan(self.predictions)

    @property
    def correct(self) -> int:
        """Number of images whose most probable class is the true class."""
        return int(self.right.sum())

    @property
    def right(self) -> torch.Tensor:
        """True for each image whose most probable class is the true class, (N,), bool."""
        return self.predictions.argmax(dim=1) == self.targets

    @property
    def patient_count(self) -> int | None:
        """Number of patients; None if each image counts as one."""
        return None if self.patients is None else len(self.patients.unique())

    def score(self, metric: str) -> float:
        """Return a metric of the objective; NaN if it is not defined."""
        return self.objective.score(metric, self.predictions, self.targets)

    def interval(self, score: str | ScoreFunction) -> Interval | None:
        """Return a score with its 95 % bootstrap interval over the patients; None if it is not defined.

        Args:
            score: Name of a metric of the objective, or a score function.
        """
        return bootstrap(self._score(score), self.predictions, self.targets, patients=self.patients)

    def gain_over(self, other: PredictionSet, metric: str) -> Interval | None:
        """Return the difference self - other in a metric with its interval over patients; None if not defined."""
        score = self._score(metric)
        return paired_bootstrap(score, self.predictions, other.predictions, self.targets, patients=self.patients)

    def part(self, chosen: torch.Tensor) -> PredictionSet:
        """Return the subset of the chosen images.

        Args:
            chosen: True for each chosen image, (N,), bool.
        """
        places = chosen.nonzero(as_tuple=True)[0].tolist()
        sex, centre, groups = (
            tuple(texts[place] for place in places) if texts else () for texts in (self.sex, self.centre, self.groups)
        )
        patients = None if self.patients is None else self.patients[chosen]
        return PredictionSet(
            rows=self.rows[chosen],
            targets=self.targets[chosen],
            predictions=self.predictions[chosen],
            objective=self.objective,
            sex=sex,
            centre=centre,
            patients=patients,
            groups=groups,
        )

    def _score(self, score: str | ScoreFunction) -> ScoreFunction:
        return partial(self.objective.weighted_score, score) if isinstance(score, str) else score


def resampled_unit(test_sets: Iterable[PredictionSet]) -> str:
    """Return the unit of intervals and tests over test sets, in words: patients, or images if patients are not known.

    Args:
        test_sets: Test sets of any models and sites.
    """
    known = {test_set.patients is not None for test_set in test_sets}
    if known == {True, False}:
        return "test patients (test images at sites without patient numbers)"
    return "test patients" if known == {True} else "test images"


def read_prediction_sets(run: RunRecord) -> dict[str, PredictionSet]:
    """Read the test set of each site that has one in the run folder.

    The result is empty unless predictions and scores are of the same round. They are not in a continued run, whose
    predictions are from its earlier end, and in a run that diverged after its last evaluated round.

    Args:
        run: The run.

    Returns:
        Maps each site to its test set.

    Raises:
        StoreError: If a file of predictions can't be read.
    """
    test_sets: dict[str, PredictionSet] = {}
    if run.summary is None or run.summary.evaluated_round != run.summary.models_round:
        return test_sets
    for site in run.sites:
        try:
            table = run.predictions(site)
            if table is not None:
                test_sets[site] = prediction_set_of(table, run.objective)
        except (ValueError, KeyError, OSError) as error:
            raise StoreError(
                "unreadable_file",
                f"'{run.folder / 'sites' / site / PREDICTIONS}' can't be read: {error}. "
                "Give the command of that run again: it writes the file again.",
                path=run.folder / "sites" / site / PREDICTIONS,
            ) from None
    return test_sets


def prediction_set_of(table: pd.DataFrame, objective: Objective) -> PredictionSet:
    """Return the test set in a table of predictions.

    Args:
        table: Table of `medfl.engine.runs.records.read_predictions`.
        objective: Objective of the run.

    Raises:
        ValueError: If the columns do not match the objective, or a label is no class.
    """
    kept, predictions = list(objective.scoring_target_columns), list(objective.columns(()))
    names = ["row", *kept, *predictions]
    if [name for name in table.columns if name not in (*METADATA_KEYS, PATIENT_COLUMN, GROUP_COLUMN)] != names:
        raise ValueError(f"expected the columns {', '.join(names)}, got {len(table.columns)} others")
    sex, centre = (tuple(table[name].fillna("")) if name in table else () for name in METADATA_KEYS)
    return PredictionSet(
        _integers(table, "row"),
        _labels(table, objective.classes) if objective.has_class_labels else _numbers(table, kept),
        _numbers(table, predictions),
        objective,
        sex,
        centre,
        patients=_integers(table, PATIENT_COLUMN) if PATIENT_COLUMN in table else None,
        groups=tuple(table[GROUP_COLUMN]) if GROUP_COLUMN in table else (),
    )


def _labels(table: pd.DataFrame, classes: int) -> torch.Tensor:
    labels = _integers(table, "label")
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise ValueError(f"expected labels in [0, {classes})")
    return labels


def _integers(table: pd.DataFrame, column: str) -> torch.Tensor:
    return torch.from_numpy(table[column].to_numpy(dtype=np.int64).copy())


def _numbers(table: pd.DataFrame, columns: list[str]) -> torch.Tensor:
    return torch.from_numpy(table[columns].to_numpy(dtype=np.float64).copy())


def pooled(tested: dict[str, PredictionSet]) -> PredictionSet | None:
    """Concatenate test sets, each with the predictions of its own model; None if no test set has numbers.

    Args:
        tested: Maps a name to a test set. Sites and seeds are concatenated in the order of the names.
    """
    parts = [test_set for _, test_set in sorted(tested.items()) if test_set.defined]
    if not parts:
        return None
    return PredictionSet(
        torch.cat([test_set.rows for test_set in parts]),
        torch.cat([test_set.targets for test_set in parts]),
        torch.cat([test_set.predictions for test_set in parts]),
        parts[0].objective,
        patients=concatenate_patients(
            [test_set.patients for test_set in parts], [len(test_set.rows) for test_set in parts]
        ),
        sex=_texts(parts, [test_set.sex for test_set in parts]),
        centre=_texts(parts, [test_set.centre for test_set in parts]),
    )


def _texts(parts: Sequence[PredictionSet], texts_by_part: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Concatenate the texts of the images, "" for an image without one; empty if no image has a text."""
    texts = [texts or ("",) * len(part.rows) for part, texts in zip(parts, texts_by_part, strict=True)]
    return tuple(text for part in texts for text in part) if any(map(any, texts)) else ()
