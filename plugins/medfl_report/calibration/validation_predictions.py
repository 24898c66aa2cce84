"""Predictions of an exported model for the validation images of a site, and the calibration in its bundle."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from monai.bundle import ConfigParser

from medfl.bundle.calibrated import read_calibration
from medfl.bundle.exported import load_exported
from medfl.data.datalists import DATALIST_FILE
from medfl.data.pooled import patients_of
from medfl.data.sites import load_site
from medfl.engine.runs.site_bundles import WEIGHTS
from medfl.errors import DataError, SettingsError
from medfl.objectives import Objective
from medfl.records.calibration import Calibration
from medfl.settings import Settings
from medfl.training.predict import predict
from medfl.utils.files import sha256_of, write_atomic
from medfl_report.predictions import PredictionSet

INFERENCE = Path("configs", "inference.json")
"""Path, in a bundle, of the configuration that predicts."""

SAVER = "medfl.bundle.prediction_file.PredictionSaver"
"""Target of the handler in `INFERENCE` that writes predictions."""

COMPONENT = {
    "_target_": "medfl.bundle.calibrated.read_calibration",
    "bundle_root": "@bundle_root",
    "ckpt_dir": "@ckpt_dir",
}
"""Component of `INFERENCE` that reads the calibration."""


@dataclass(frozen=True)
class ExportedModel:
    """Values of an exported bundle that calibration needs.

    Attributes:
        folder: Folder of the bundle.
        objective: Objective of the task.
        mean: Mean that is subtracted from inputs.
        std: Standard deviation by which inputs are divided.
        names: Names of the network's outputs; may be empty.
    """

    folder: Path
    objective: Objective
    mean: tuple[float, ...]
    std: tuple[float, ...]
    names: tuple[str, ...]

    @property
    def weights_digest(self) -> str:
        """SHA-256 of the file of the weights."""
        return sha256_of(self.folder / WEIGHTS)


def read_exported_model(folder: Path) -> ExportedModel:
    """Read the configuration of an exported bundle. It runs code of the bundle.

    Args:
        folder: Folder of the bundle.

    Raises:
        SettingsError: If the folder is not an exported bundle of medfl that writes predictions.
    """
    path = folder / INFERENCE
    if not path.is_file() or not (folder / WEIGHTS).is_file() or not _savers(json.loads(path.read_text())):
        raise SettingsError(
            "not_a_bundle",
            f"expected an exported bundle with '{INFERENCE}' that writes predictions of classes, numbers or risks, and "
            f"with '{WEIGHTS}', such as RUN/sites/NAME, got '{folder}'. Bundles that predict masks, and bundles that "
            "were not written for medfl, can't be calibrated.",
            path=folder,
        )
    parser = ConfigParser()
    parser.read_config(str(path))
    parser.update(pairs={"bundle_root": str(folder)})
    objective, mean, std, names = (
        parser.get_parsed_content(name) for name in ("objective", "mean", "std", "output_names")
    )
    return ExportedModel(folder, objective, tuple(mean), tuple(std), tuple(map(str, names)))


def predict_validation(model: ExportedModel, site_folder: Path, digest: str | None = None) -> PredictionSet:
    """Return the model's predictions for the validation images of a site. Test images are not opened.

    Args:
        model: The exported model.
        site_folder: Folder of the site's data, with a data list.
        digest: Digest of the site's data in the run; None if it is unknown.

    Raises:
        DataError: If the data are missing or invalid, or are not the run's data (``other_data``).
        StoreError: If the model can't be loaded.
    """
    data = load_site(site_folder, model.objective, model.mean, model.std, open_test=False)
    if digest is not None and data.digest != digest:
        raise DataError(
            "other_data",
            f"the data in '{site_folder}' are not those of the run: a validation image now may have been a training "
            "image then. Give the unchanged data with --data.",
            path=site_folder,
            expected=digest,
            found=data.digest,
        )
    predictions, targets = predict(load_exported(model.folder), data.val, model.objective, (), Settings(rounds=1))
    return PredictionSet(
        rows=torch.arange(len(targets)),
        targets=targets if model.objective.has_class_labels else targets.double(),
        predictions=predictions.double(),
        objective=model.objective,
        patients=patients_of(data.val),
    )


def find_site_folder(data: Path, site: str) -> Path:
    """Return the folder of a site's data list: in the folder of all sites' data, or that folder itself.

    Args:
        data: Folder of all sites' data, or of this site's data.
        site: Name of the site.

    Raises:
        DataError: If neither has a data list.
    """
    for folder in (data / site, data):
        if (folder / DATALIST_FILE).is_file():
            return folder
    raise DataError(
        "missing_datalist",
        f"expected '{DATALIST_FILE}' of the site '{site}' in '{data / site}' or in '{data}', got neither. Give the "
        "folder of the data with --data.",
        path=data,
        site=site,
    )


def write_calibration(model: ExportedModel, calibration: Calibration) -> Path:
    """Write a calibration into the bundle, let the bundle's inference use it, and return its path.

    An earlier calibration is replaced.

    Args:
        model: The exported model.
        calibration: Its calibration.

    Raises:
        StoreError: If a file can't be written.
    """
    path = model.folder / "configs" / Calibration.NAME
    calibration.write(path)
    config = json.loads((model.folder / INFERENCE).read_text(encoding="utf-8"))
    config["calibration"] = COMPONENT
    for saver in _savers(config):
        saver["calibration"] = "@calibration"
    write_atomic(model.folder / INFERENCE, (json.dumps(config, indent=4, ensure_ascii=False) + "\n").encode())
    return path


def read_bundle_calibration(bundle: Path) -> Calibration | None:
    """Return the calibration of a bundle; None if there is none.

    Args:
        bundle: Folder of the bundle.

    Raises:
        StoreError: If the file is damaged, or the bundle has other weights.
    """
    is_calibrated = (bundle / "configs" / Calibration.NAME).is_file()
    return read_calibration(bundle, (bundle / WEIGHTS).parent) if is_calibrated else None


def _savers(config: object) -> Sequence[dict[str, object]]:
    """Return the handlers of an inference configuration that write predictions."""
    handlers = config.get("handlers") if isinstance(config, dict) else None
    return [
        handler
        for handler in (handlers if isinstance(handlers, list) else ())
        if isinstance(handler, dict) and handler.get("_target_") == SAVER
    ]
