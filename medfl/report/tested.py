"""What the models that sites take home say of their test images, read from the run folders."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from medfl.data.sites import FACTS
from medfl.errors import StoreError
from medfl.report.runs import PREDICTIONS, RunRecord


@dataclass(frozen=True)
class Tested:
    """A site's test set under the model that the site takes home.

    Attributes:
        rows: (N,), int64: place of each image in the test split.
        labels: (N,), int64.
        probabilities: (N, C), float64; NaN after a diverged training.
        sex: Of the person of each image, as the data list has it, "" where it is not known; empty where none is.
        centre: Where each image was taken; the same.
    """

    rows: torch.Tensor
    labels: torch.Tensor
    probabilities: torch.Tensor
    sex: tuple[str, ...] = ()
    centre: tuple[str, ...] = ()

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
        return int((self.probabilities.argmax(dim=1) == self.labels).sum())


def read_tested(run: RunRecord) -> dict[str, Tested]:
    """Site to its test set, for the sites that have one in the run folder.

    Without any unless the predictions are of the round that the scores are of: not where a run that goes on has left
    those of an earlier end, nor where one diverged after rounds that were not scored.

    Raises:
        StoreError: If a file of predictions can't be read.
    """
    found: dict[str, Tested] = {}
    if not run.summary or run.summary["evaluated_round"] != run.summary["models_round"]:
        return found
    for site in run.run["identity"]["sites"]:
        try:
            table = run.predictions(site)
            if table is not None:
                found[site] = _tested(table, int(run.run["identity"]["task"]["num_classes"]))
        except (ValueError, KeyError, OSError) as error:
            raise StoreError(
                f"'{run.folder / 'sites' / site / PREDICTIONS}' can't be read: {error}. "
                "Give the command of that run again: it writes the file anew."
            ) from None
    return found


def _tested(table: pd.DataFrame, classes: int) -> Tested:
    names = ["row", "label", *(f"p{number}" for number in range(classes))]
    if [name for name in table.columns if name not in FACTS] != names:
        raise ValueError(f"expected the columns {', '.join(names)}, got {len(table.columns)} others")
    labels = table["label"].to_numpy(dtype=np.int64)
    if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        raise ValueError(f"expected labels in [0, {classes})")
    return Tested(
        torch.from_numpy(table["row"].to_numpy(dtype=np.int64).copy()),
        torch.from_numpy(labels.copy()),
        torch.from_numpy(table[names[2:]].to_numpy(dtype=np.float64).copy()),
        *(tuple(table[name].fillna("")) if name in table else () for name in FACTS),
    )


def pooled(tested: dict[str, Tested]) -> Tested | None:
    """The test sets of all sites as one, without those with NaN and without sex and centre; None if nothing is left."""
    parts = [one for _, one in sorted(tested.items()) if one.defined]
    if not parts:
        return None
    return Tested(
        torch.cat([one.rows for one in parts]),
        torch.cat([one.labels for one in parts]),
        torch.cat([one.probabilities for one in parts]),
    )
