"""Write the predictions that a bundle's ``inference.json`` computes to a CSV file, with decisions and units."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from ignite.engine import Engine, Events

from medfl.bundle.calibrated import calibrated_cells, calibrated_columns
from medfl.errors import StoreError
from medfl.objectives import Objective
from medfl.records.calibration import Calibration
from medfl.utils.files import write_atomic


class PredictionSaver:
    """Ignite handler that writes a row for each case: its name, the decision, and the predicted numbers.

    The columns are ``case``, and then columns that depend on the objective: the decision, such as the name of a class,
    and the predicted numbers, such as probabilities (`Objective.prediction_columns`).

    Args:
        output_dir: Folder of the file.
        objective: Objective of the task.
        names: Names of the classes, or of the outputs for an objective without classes. If empty, numbers are used.
        filename: Name of the file; an earlier file is replaced.
        batch_transform: Function of a batch that returns the metadata of its images, with ``filename_or_obj``.
        output_transform: Function of the engine's output that returns the predictions of the batch.
        calibration: Calibration of the model, written by ``medfl calibrate``. The file then contains recalibrated
            predictions, decisions at the chosen threshold, and prediction sets. None writes the model's own
            predictions.

    Raises:
        StoreError: If the calibration is of another objective.
    """

    def __init__(
        self,
        output_dir: str | Path,
        objective: Objective,
        names: Sequence[str] = (),
        filename: str = "predictions.csv",
        batch_transform: Callable[[Any], Any] = lambda batch: batch,
        output_transform: Callable[[Any], Any] = lambda output: output,
        calibration: Calibration | None = None,
    ) -> None:
        self._path, self._objective, self._names = Path(output_dir) / filename, objective, tuple(names)
        self._batch_transform, self._output_transform = batch_transform, output_transform
        self._rows: list[list[str]] = []
        self._calibration = calibration
        if calibration is not None and calibration.objective != objective.name:
            raise StoreError(
                "other_objective",
                f"expected a calibration of the objective '{objective.name}', got one of '{calibration.objective}'. "
                "Run `medfl calibrate` again.",
                expected=objective.name,
                found=calibration.objective,
            )

    def attach(self, engine: Engine) -> None:
        """Register the handler with an engine: collect the predictions of each batch, and write the file at the end."""
        engine.add_event_handler(Events.STARTED, self._start)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._collect)
        engine.add_event_handler(Events.COMPLETED, self._write)

    def _start(self, engine: Engine) -> None:
        """Discard the rows of an earlier run of the engine."""
        self._rows = []

    def _collect(self, engine: Engine) -> None:
        """Add a row for each case of the batch."""
        meta = self._batch_transform(engine.state.batch)
        files = meta["filename_or_obj"] if isinstance(meta, Mapping) else [case["filename_or_obj"] for case in meta]
        predictions = self._output_transform(engine.state.output)
        for file, numbers in zip(files, predictions, strict=True):
            values = torch.as_tensor(numbers).detach().cpu()
            self._rows.append([str(file), *self._cells(values)])

    def _cells(self, predictions: torch.Tensor) -> list[str]:
        """Return the cells of a case after its name."""
        if self._calibration is None:
            return self._objective.prediction_cells(predictions, self._names)
        return calibrated_cells(self._objective, self._calibration, predictions.numpy(), self._names)

    def _columns(self) -> tuple[str, ...]:
        """Return the headings of the cells after the name."""
        if self._calibration is None:
            return self._objective.prediction_columns(self._names)
        return calibrated_columns(self._objective, self._calibration, self._names)

    def _write(self, engine: Engine) -> None:
        """Write the file."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["case", *self._columns()])
        writer.writerows(self._rows)
        write_atomic(self._path, text.getvalue().encode())
