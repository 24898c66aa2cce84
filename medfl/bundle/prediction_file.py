"""The file of predictions that a bundle's ``inference.json`` writes: with a header, decisions, thresholds and units."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from ignite.engine import Engine, Events

from medfl.objectives import Objective
from medfl.utils.files import write_atomic


class PredictionSaver:
    """Handler that writes one row per case: its name, the decision, and the predicted numbers.

    The columns are ``case`` and those of `Objective.prediction_columns`.

    Args:
        output_dir: Folder of the file.
        objective: Objective of the task.
        names: Names of the classes, or of the outputs if cases are of no class; empty uses their numbers.
        filename: Name of the file; an earlier file is replaced.
        batch_transform: Takes a batch and returns the metadata of its images, as MONAI's `ClassificationSaver` does.
        output_transform: Takes the engine's output and returns the predictions of the batch.
    """

    def __init__(
        self,
        output_dir: str | Path,
        objective: Objective,
        names: Sequence[str] = (),
        filename: str = "predictions.csv",
        batch_transform: Callable[[Any], Any] = lambda batch: batch,
        output_transform: Callable[[Any], Any] = lambda output: output,
    ) -> None:
        self._path, self._objective, self._names = Path(output_dir) / filename, objective, tuple(names)
        self._batch_transform, self._output_transform = batch_transform, output_transform
        self._rows: list[list[str]] = []

    def attach(self, engine: Engine) -> None:
        """Collect the predictions of an engine's batches and write them when it has completed."""
        engine.add_event_handler(Events.STARTED, self._start)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._collect)
        engine.add_event_handler(Events.COMPLETED, self._write)

    def _start(self, engine: Engine) -> None:
        self._rows = []

    def _collect(self, engine: Engine) -> None:
        meta = self._batch_transform(engine.state.batch)
        files = meta["filename_or_obj"] if isinstance(meta, Mapping) else [case["filename_or_obj"] for case in meta]
        predictions = self._output_transform(engine.state.output)
        for file, numbers in zip(files, predictions, strict=True):
            values = torch.as_tensor(numbers).detach().cpu()
            self._rows.append([str(file), *self._objective.prediction_cells(values, self._names)])

    def _write(self, engine: Engine) -> None:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["case", *self._objective.prediction_columns(self._names)])
        writer.writerows(self._rows)
        write_atomic(self._path, text.getvalue().encode())
