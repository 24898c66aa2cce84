"""Predictions of a run's global model for the server's test images. A run itself does not write them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

from medfl.bundle.exported import CONFIG, load_exported
from medfl.data.datalists import DATALIST_FILE
from medfl.engine.runs.records import PREDICTIONS, RunRecord, read_predictions, read_run
from medfl.engine.runs.site_bundles import WEIGHTS
from medfl.errors import MedflError
from medfl.types import GLOBAL
from medfl_report.evaluation.cases import load_cases
from medfl_report.evaluation.evaluate import predict_cases
from medfl_report.evaluation.models import read_task
from medfl_studies.results.compressed_tables import MAX_ROUNDING_ERROR

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CollectedRun(RunRecord):
    """A run in a study that is collected.

    Attributes:
        server_table: Predictions of the global model for the server's test images; None without them.
    """

    server_table: pd.DataFrame | None

    def predictions(self, site: str) -> pd.DataFrame | None:
        """Return the predictions for the test images of a site, or of the server under the name ``global``."""
        return self.server_table if site == GLOBAL else super().predictions(site)


def collect_run(folder: Path, dataset_dir: Path) -> CollectedRun:
    """Read a run folder, and predict the server's test images with its global model.

    Args:
        folder: Run folder.
        dataset_dir: Folder with the data of the sites, and of the server in ``global``.

    Raises:
        StoreError: If the run folder can't be read.
    """
    run = read_run(folder)
    table = _predict_server_test(run, dataset_dir / GLOBAL)
    return CollectedRun(folder=run.folder, run=run.run, summary=run.summary, metrics=run.metrics, server_table=table)


def _predict_server_test(run: RunRecord, data: Path) -> pd.DataFrame | None:
    """Return the predictions of the exported global model, in the columns of a site's file of predictions.

    Args:
        run: The run.
        data: Folder of the server's data.

    Returns:
        None if the run has no score of a global model on the server's test images, or its model or these images are not
        there. None, with a warning, if the predictions can't be made or contradict the recorded scores.
    """
    recorded = {metric: run.server_score(metric) for metric in run.task_metrics}
    bundle = run.folder / GLOBAL
    files = (bundle / WEIGHTS, bundle / CONFIG, data / DATALIST_FILE)
    is_last = run.summary is not None and run.summary.evaluated_round == run.summary.models_round
    if set(recorded.values()) == {None} or not is_last or not all(path.is_file() for path in files):
        return None
    try:
        task = read_task(bundle)
        with TemporaryDirectory() as place:
            path = Path(place) / PREDICTIONS
            predicted = predict_cases(
                path, load_exported(bundle), task, load_cases(data, task, "test"), run.settings, "cpu"
            )
            table = read_predictions(path)
    except MedflError as error:
        logger.warning("%s: the predictions for the server's test images are not kept: %s", run.folder, error)
        return None
    for metric, score in recorded.items():
        computed = predicted.score(metric)
        if score is not None and not abs(computed - score) <= MAX_ROUNDING_ERROR:
            reason = f"their {metric} is {computed:.6f}, the run recorded {score:.6f}"
            logger.warning("%s: the predictions for the server's test images are not kept: %s", run.folder, reason)
            return None
    return table
