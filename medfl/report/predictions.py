"""What the models that sites take home say of their test images, read from the run folders."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from medfl.data.sites import PATIENT
from medfl.errors import StoreError
from medfl.objectives import read_objective
from medfl.runs.records import PREDICTIONS, RunRecord
from medfl.types import FACTS


@dataclass(frozen=True)
class Tested:
    """A site's test set under the model that the site takes home.

    Attributes:
        rows: (N,), int64: place of each image in the test split.
        labels: (N,), int64.
        probabilities: (N, C), float64; NaN after a diverged training.
        sex: Of the person of each image, as the data list has it, "" where it is not known; empty where none is.
        centre: Where each image was taken; the same.
        patients: (N,), int64: numbers that images of one patient share; None if each image counts as a patient.
    """

    rows: torch.Tensor
    labels: torch.Tensor
    probabilities: torch.Tensor
    sex: tuple[str, ...] = ()
    centre: tuple[str, ...] = ()
    patients: torch.Tensor | None = None

    def same_images(self, other: Tested) -> bool:
        """Whether both are about the same images with the same labels and classes."""
        return (
            torch.equal(self.rows, other.rows)
            and torch.equal(self.labels, other.labels)
            and self.probabilities.shape == other.probabilities.shape
        )

    @property
    def defined(self) -> bool:
        """Whether there are images, and no NaN."""
        return len(self.labels) > 0 and not bool(torch.isnan(self.probabilities).any())

    @property
    def correct(self) -> int:
        """Images whose most probable class is the right one."""
        return int(self.right.sum())

    @property
    def right(self) -> torch.Tensor:
        """(N,), bool: whether the most probable class is the right one."""
        return self.probabilities.argmax(dim=1) == self.labels

    @property
    def patient_count(self) -> int | None:
        """How many patients there are; None where each image counts as one."""
        return None if self.patients is None else len(self.patients.unique())


def read_tested(run: RunRecord) -> dict[str, Tested]:
    """Site to its test set, for the sites that have one in the run folder.

    Without any where cases are of no class, and unless the predictions are of the round that the scores are of: not
    where a run that goes on has left those of an earlier end, nor where one diverged after rounds that were not scored.

    Raises:
        StoreError: If a file of predictions can't be read.
    """
    test_sets: dict[str, Tested] = {}
    if not run.summary or run.summary["evaluated_round"] != run.summary["models_round"]:
        return test_sets
    classes = classes_of(run)
    for site in run.run["identity"]["sites"] if classes else ():
        try:
            table = run.predictions(site)
            if table is not None:
                test_sets[site] = _tested(table, classes)
        except (ValueError, KeyError, OSError) as error:
            raise StoreError(
                f"'{run.folder / 'sites' / site / PREDICTIONS}' can't be read: {error}. "
                "Give the command of that run again: it writes the file anew."
            ) from None
    return test_sets


def classes_of(run: RunRecord) -> int:
    """How many classes the cases of a run are of; 0 where they are of none."""
    task = run.run["identity"]["task"]
    if "objective" not in task:
        return int(task["num_classes"])
    objective = read_objective(task["objective"])
    return objective.classes if objective.has_class_labels else 0


def _tested(table: pd.DataFrame, classes: int) -> Tested:
    names = ["row", "label", *(f"p{number}" for number in range(classes))]
    if [name for name in table.columns if name not in (*FACTS, PATIENT)] != names:
        raise ValueError(f"expected the columns {', '.join(names)}, got {len(table.columns)} others")
    labels = table["label"].to_numpy(dtype=np.int64)
    if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        raise ValueError(f"expected labels in [0, {classes})")
    sex, centre = (tuple(table[name].fillna("")) if name in table else () for name in FACTS)
    return Tested(
        torch.from_numpy(table["row"].to_numpy(dtype=np.int64).copy()),
        torch.from_numpy(labels.copy()),
        torch.from_numpy(table[names[2:]].to_numpy(dtype=np.float64).copy()),
        sex,
        centre,
        patients=torch.from_numpy(table[PATIENT].to_numpy(dtype=np.int64).copy()) if PATIENT in table else None,
    )


def pooled(tested: dict[str, Tested]) -> Tested | None:
    """The test sets of all sites as one, of each what its model says only; None unless some are without NaN."""
    parts = [test_set for _, test_set in sorted(tested.items()) if test_set.defined]
    if not parts:
        return None
    return Tested(
        torch.cat([test_set.rows for test_set in parts]),
        torch.cat([test_set.labels for test_set in parts]),
        torch.cat([test_set.probabilities for test_set in parts]),
    )
