"""What the models that sites take home say of their test images, read from the run folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
import torch

from medfl.data.pooled import joined
from medfl.data.sites import PATIENT
from medfl.engine.runs.records import PREDICTIONS, RunRecord
from medfl.errors import StoreError
from medfl.objectives import Objective
from medfl.objectives.objective import GROUP
from medfl.types import FACTS
from medfl_report.statistics import Interval, Score, bootstrap, paired_bootstrap


@dataclass(frozen=True)
class Tested:
    """A site's test set under the model that the site takes home.

    Attributes:
        rows: (N,), int64: place of each image in the test split.
        targets: As `Objective.kept` gives them: (N,), int64, for classes, else (N, T), float64.
        judged: (N, K), float64: what the model says, as `Objective.judged` has it, such as probabilities; NaN after a
            diverged training.
        objective: What was learned.
        sex: Of the person of each image, as the data list has it, "" where it is not known; empty where none is.
        centre: Where each image was taken; the same.
        patients: (N,), int64: numbers that images of one patient share; None if each image counts as a patient.
        groups: Of each image (`Objective.groups`); empty where there are none.
    """

    rows: torch.Tensor
    targets: torch.Tensor
    judged: torch.Tensor
    objective: Objective
    sex: tuple[str, ...] = ()
    centre: tuple[str, ...] = ()
    patients: torch.Tensor | None = None
    groups: tuple[str, ...] = ()

    def same_images(self, other: Tested) -> bool:
        """Whether both are about the same images with the same targets, and models of the same kind."""
        return (
            torch.equal(self.rows, other.rows)
            and self.targets.shape == other.targets.shape
            and torch.allclose(self.targets, other.targets, rtol=0, atol=0, equal_nan=True)
            and self.judged.shape == other.judged.shape
        )

    @property
    def defined(self) -> bool:
        """Whether there are images, and the model gave numbers for all of them."""
        return len(self.rows) > 0 and self.objective.gave_numbers(self.judged)

    @property
    def correct(self) -> int:
        """Images whose most probable class is the right one."""
        return int(self.right.sum())

    @property
    def right(self) -> torch.Tensor:
        """(N,), bool: whether the most probable class is the right one."""
        return self.judged.argmax(dim=1) == self.targets

    @property
    def patient_count(self) -> int | None:
        """How many patients there are; None where each image counts as one."""
        return None if self.patients is None else len(self.patients.unique())

    def score(self, metric: str) -> float:
        """A metric of the objective; NaN where it is not defined."""
        return self.objective.score(metric, self.judged, self.targets)

    def interval(self, score: str | Score) -> Interval | None:
        """A score with its 95 % interval over the patients; None where it is not defined.

        Args:
            score: Name of a metric of the objective, or any other score.
        """
        return bootstrap(self._score(score), self.judged, self.targets, patients=self.patients)

    def gain_over(self, other: Tested, metric: str) -> Interval | None:
        """The difference self - other of a metric with its interval, of two models on the same images."""
        score = self._score(metric)
        return paired_bootstrap(score, self.judged, other.judged, self.targets, patients=self.patients)

    def part(self, chosen: torch.Tensor) -> Tested:
        """Some of the images.

        Args:
            chosen: (N,), bool.
        """
        places = chosen.nonzero(as_tuple=True)[0].tolist()
        sex, centre, groups = (
            tuple(texts[place] for place in places) if texts else () for texts in (self.sex, self.centre, self.groups)
        )
        patients = None if self.patients is None else self.patients[chosen]
        return Tested(
            rows=self.rows[chosen],
            targets=self.targets[chosen],
            judged=self.judged[chosen],
            objective=self.objective,
            sex=sex,
            centre=centre,
            patients=patients,
            groups=groups,
        )

    def _score(self, score: str | Score) -> Score:
        return partial(self.objective.weighted_score, score) if isinstance(score, str) else score


def read_tested(run: RunRecord) -> dict[str, Tested]:
    """Site to its test set, for the sites that have one in the run folder.

    Without any unless the predictions are of the round that the scores are of: not where a run that goes on has left
    those of an earlier end, nor where one diverged after rounds that were not scored.

    Raises:
        StoreError: If a file of predictions can't be read.
    """
    test_sets: dict[str, Tested] = {}
    if run.summary is None or run.summary.evaluated_round != run.summary.models_round:
        return test_sets
    for site in run.sites:
        try:
            table = run.predictions(site)
            if table is not None:
                test_sets[site] = tested_of(table, run.objective)
        except (ValueError, KeyError, OSError) as error:
            raise StoreError(
                "unreadable_file",
                f"'{run.folder / 'sites' / site / PREDICTIONS}' can't be read: {error}. "
                "Give the command of that run again: it writes the file anew.",
                path=run.folder / "sites" / site / PREDICTIONS,
            ) from None
    return test_sets


def tested_of(table: pd.DataFrame, objective: Objective) -> Tested:
    """A test set from the rows of its file.

    Args:
        table: From `medfl.engine.runs.records.read_predictions`.
        objective: What was learned.

    Raises:
        ValueError: If the columns are not those of the objective, or a label is no class.
    """
    kept, judged = list(objective.kept_columns), list(objective.columns(()))
    names = ["row", *kept, *judged]
    if [name for name in table.columns if name not in (*FACTS, PATIENT, GROUP)] != names:
        raise ValueError(f"expected the columns {', '.join(names)}, got {len(table.columns)} others")
    sex, centre = (tuple(table[name].fillna("")) if name in table else () for name in FACTS)
    return Tested(
        _integers(table, "row"),
        _labels(table, objective.classes) if objective.has_class_labels else _numbers(table, kept),
        _numbers(table, judged),
        objective,
        sex,
        centre,
        patients=_integers(table, PATIENT) if PATIENT in table else None,
        groups=tuple(table[GROUP]) if GROUP in table else (),
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


def pooled(tested: dict[str, Tested]) -> Tested | None:
    """The test sets of all sites as one, of each what its model says only; None unless some gave numbers."""
    parts = [test_set for _, test_set in sorted(tested.items()) if test_set.defined]
    if not parts:
        return None
    return Tested(
        torch.cat([test_set.rows for test_set in parts]),
        torch.cat([test_set.targets for test_set in parts]),
        torch.cat([test_set.judged for test_set in parts]),
        parts[0].objective,
        patients=joined([test_set.patients for test_set in parts], [len(test_set.rows) for test_set in parts]),
        sex=_texts(parts, [test_set.sex for test_set in parts]),
        centre=_texts(parts, [test_set.centre for test_set in parts]),
    )


def _texts(parts: Sequence[Tested], known: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """A text of each image of all parts, "" where it is not known; empty where it is known of none."""
    texts = [texts or ("",) * len(part.rows) for part, texts in zip(parts, known, strict=True)]
    return tuple(text for part in texts for text in part) if any(map(any, texts)) else ()
