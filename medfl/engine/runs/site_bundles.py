"""Export the models of a run: write a MONAI bundle for each site, with the predictions for its test images.

A stock bundle is a MONAI bundle that was not written for medfl; ``medfl adopt`` adds files to it, so that a federation
can train it.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import nn

from medfl.contract import Method, Model
from medfl.data.pooled import patients_of
from medfl.data.sites import PATIENT_COLUMN
from medfl.engine.constant_predictions import SitePredictions, find_constant_predictions
from medfl.engine.evaluation import add_frozen_tensors, build_predictor
from medfl.engine.runs.export import CaseMetadata, SiteExport, describe_names, describe_network
from medfl.engine.runs.records import PREDICTIONS, TEST_CONFIG
from medfl.engine.runs.simulation import SimulatedRun, SimulationResult
from medfl.engine.runs.worst_cases import write_worst_cases
from medfl.engine.site import Splits
from medfl.objectives import Objective
from medfl.objectives.objective import GROUP_COLUMN
from medfl.records.calibration import Calibration
from medfl.settings import Settings
from medfl.task import Task
from medfl.training.predict import predict
from medfl.types import Dataset, ListedDataset, Meta, is_augmenting
from medfl.utils.files import link_or_copy, write_atomic

logger = logging.getLogger(__name__)

README = Path("docs", "README.md")
"""Path of the documentation in a bundle."""

WEIGHTS = Path("models", "model.pt")
"""Path of the weights in a bundle, by MONAI's convention."""

TEST_CASES = Path("test_cases.json")
"""Path, in an exported stock bundle, of the list of the site's test cases. The configuration `TEST_CONFIG` reads it."""

EXCLUDED_FOLDERS = {"models", "runs", ".git", ".cache"}
"""Names of the folders of a stock bundle that are not exported, as they contain other weights, runs or caches."""

ADOPTED_FILES = {Path("configs", "federate.json"), Path("docs", "federate.md")}
"""Files that ``medfl adopt`` added to a stock bundle, which are not exported."""

EXCLUDED_CONFIGS = {"federate.json"}
"""Configurations of a medfl bundle that are not exported, because they are for a federation only."""


def export(run: SimulatedRun, result: SimulationResult, site_export: SiteExport) -> list[Path]:
    """Write an exported bundle for every site, and one for the global model if the method has one.

    Models with a constant prediction are logged as warnings and added to the summary in place.

    Args:
        run: The run. The bundles are written to ``sites/<name>`` and ``global`` in its folder.
        result: Result of the run, whose summary is replaced.
        site_export: Inputs of the exported bundles.

    Returns:
        Paths of the bundles.

    Raises:
        StoreError: If a bundle can't be written.
    """
    written, method, predictions, weights = [], run.method.make(), {}, WeightsWriter()
    for site, models in sorted(result.models.items()):
        if models:
            target, facts = run.folder / "sites" / site, site_export.facts.get(site, {})
            model = export_site(target, site_export, site, result.models_for_images(run, site), method, weights)
            task, data = run.task, run.data.sites[site]
            if features := result.features.get(site):  # the same predictions without the frozen body
                task, data, model = features.task, features.data, exported_model(models)
            predictor = build_predictor(method, task, model)
            predictions[site] = write_predictions(
                target, predictor, data, task, run.settings, facts, run.execution.worst_case_images
            )
            written.append(target)
    constant = find_constant_predictions(predictions, run.task.objective, run.data.classes, run.settings)
    result.summary = result.summary.model_copy(update={"constant_predictions": tuple(constant)})
    for entry in constant:
        logger.warning("%s", entry.sentence)
    server_models = add_frozen_tensors(method, run.task, result.outcome.models)
    return written + export_global(run.folder, site_export, server_models, method, weights)


def export_global(
    folder: Path,
    site_export: SiteExport,
    models: Mapping[str, Model],
    method: Method,
    weights: WeightsWriter | None = None,
) -> list[Path]:
    """Write the global model as a bundle to the folder ``global``, if the server has one.

    Args:
        folder: Path of the run folder.
        site_export: Inputs of the exported bundle.
        models: Maps each kind of model of the server to the model.
        method: The method.
        weights: Writer of the weights, which several bundles of a run share.

    Returns:
        Path of the bundle in a list; an empty list without a global model.

    Raises:
        StoreError: If the bundle can't be written.
    """
    if "global" not in models:
        return []
    _write_bundle(folder / "global", site_export, models["global"], {}, method, weights)
    return [folder / "global"]


def export_site(
    target: Path,
    site_export: SiteExport,
    site: str,
    models: Mapping[str, Model],
    method: Method,
    weights: WeightsWriter | None = None,
) -> Model:
    """Write the exported bundle of a site with its personal model, or with the global model if it has no personal one.

    Args:
        target: Path of the bundle.
        site_export: Inputs of the exported bundle.
        site: Name of the site.
        models: Maps each kind of model of the site to the model.
        method: The method.
        weights: Writer of the weights, which several bundles of a run share.

    Returns:
        The exported model.

    Raises:
        StoreError: If the bundle can't be written.
    """
    model = exported_model(models)
    _write_bundle(target, site_export, model, {"site": site}, method, weights)
    return model


def exported_model(models: Mapping[str, Model]) -> Model:
    """Return the model that a site exports: its personal model, or the global model if it has no personal one."""
    return models.get("personal") or models["global"]


def write_predictions(
    target: Path,
    predictor: nn.Module,
    data: Splits,
    task: Task,
    settings: Settings,
    facts: CaseMetadata,
    worst_case_images: bool = False,
) -> SitePredictions:
    """Write the files with a site's predictions into its bundle, and return the predictions for its test images.

    The files are `PREDICTIONS`, the list of test cases of a stock bundle, and images of the worst cases. For a site
    without test images no file is written, and the predictions for its validation images are returned.

    Args:
        target: Path of the bundle.
        predictor: Network that predicts with the site's model.
        data: Data of the site. If the objective divides cases into groups (`Objective.groups`), the threshold comes
            from the predictions for the validation images. Without these, it comes from the training images, unless
            they change at each visit.
        task: The learning problem.
        settings: Settings of the run.
        facts: Metadata of the test images, such as sex and centre: maps the name of each field to its values.
        worst_case_images: Whether to write images of the worst cases (`medfl.engine.runs.worst_cases`).
    """
    metrics = (*task.metrics, *task.objective.headline)

    def predict_split(part: Dataset) -> tuple[torch.Tensor, torch.Tensor]:
        return predict(predictor, part, task.objective, metrics, settings, task.device, task.inferer)

    if not len(data.test):
        return SitePredictions(*predict_split(data.val), "val")
    predictions, targets = predict_split(data.test)
    patients = patients_of(data.test)
    known = dict(facts) | ({} if patients is None else {PATIENT_COLUMN: tuple(map(str, patients.tolist()))})
    others = data.val if len(data.val) else data.train
    if task.objective.has_groups and len(others) and not (others is data.train and is_augmenting(others)):
        known[GROUP_COLUMN] = task.objective.groups(predictions, predict_split(others)[0])
    text = format_predictions(task.objective, task.metrics, predictions, targets, known)
    write_atomic(target / PREDICTIONS, text.encode())
    write_test_cases(target, data.test)
    write_worst_cases(target, predictor, data.test, task, settings, predictions, worst_case_images)
    return SitePredictions(predictions, targets, "test")


def write_test_cases(target: Path, test: Dataset) -> None:
    """Write `TEST_CONFIG` and `TEST_CASES` into an exported stock bundle, if its cases come from a list.

    The bundle's own ``evaluate`` scores another slice of that list, which may contain training cases of the run. With
    `TEST_CONFIG` as an additional configuration, it scores the site's test cases. The cases are in a separate file, so
    that MONAI does not evaluate any text in them as an expression.

    Args:
        target: Path of the bundle.
        test: Test data of the site.
    """
    if not isinstance(test, ListedDataset) or not test.list_id:
        return
    expression = f"$monai.bundle.ConfigParser.load_config_file(@bundle_root + '/{TEST_CASES.as_posix()}')"
    cases = json.dumps([dict(case) for case in test.listed_cases], indent=1, default=str)
    write_atomic(target / TEST_CASES, (cases + "\n").encode())
    write_atomic(target / TEST_CONFIG, (json.dumps({test.list_id: expression}, indent=4) + "\n").encode())


def _write_bundle(
    target: Path,
    site_export: SiteExport,
    model: Model,
    values: Meta,
    method: Method,
    weights: WeightsWriter | None = None,
) -> None:
    """Write an exported bundle: configurations with the run's values, documentation, licence and weights.

    Deletes a calibration that ``medfl calibrate`` wrote for earlier weights.
    """
    weights = weights or WeightsWriter()
    if site_export.stock is not None:
        _write_stock(target, site_export.bundle_root, site_export.stock, model, method, weights)
        return
    names = list(map(str, site_export.output_names))
    values = site_export.values | values | {"network_name": model.network, "output_names": names}
    for path in _exported_files(site_export.bundle_root):
        inside = path.relative_to(site_export.bundle_root)
        content = path.read_bytes()
        if inside.parent == Path("configs") and path.suffix == ".json":
            content = _insert_values(content, path.name, site_export, values, partial(method.network_config, model))
        if inside != README:
            write_atomic(target / inside, content)
    write_atomic(target / README, _introduction(site_export, model).encode())
    (target / "configs" / Calibration.NAME).unlink(missing_ok=True)  # of earlier weights
    weights.write(target / WEIGHTS, model)


def _write_stock(
    target: Path, root: Path, places: Sequence[Path], model: Model, method: Method, weights: WeightsWriter
) -> None:
    """Copy a stock bundle without the files of ``medfl adopt``, and write the model in place of its weights.

    If the method replaced the network, the definition of the network in the configurations is replaced too.
    """
    for path in sorted(root.rglob("*")):
        inside = path.relative_to(root)
        if path.is_file() and inside.parts[0] not in EXCLUDED_FOLDERS and inside not in ADOPTED_FILES:
            content = path.read_bytes()
            if inside.parent == Path("configs") and path.suffix in (".json", ".yaml", ".yml"):
                content = _replace_network(content, path.suffix == ".json", partial(method.network_config, model))
            write_atomic(target / inside, content)
    for place in places:
        weights.write(target / place, model)


def _replace_network(content: bytes, is_json: bool, network_of: Callable[[Any], Any]) -> bytes:
    """Return a configuration with the network definition of the method, or unchanged if the definition is the same."""
    config = json.loads(content) if is_json else yaml.safe_load(content)
    definition = config.get("network_def") if isinstance(config, Mapping) else None
    if definition is None or network_of(definition) == definition:
        return content
    return (json.dumps({**config, "network_def": network_of(definition)}, indent=4) + "\n").encode()  # JSON is YAML too


class WeightsWriter:
    """Writer of the weights of a run's bundles.

    It writes identical weights once, and makes the files of all other bundles with these weights hard links.
    """

    def __init__(self) -> None:
        self._path_by_digest: dict[str, Path] = {}

    def write(self, path: Path, model: Model) -> None:
        """Write the weights of a model, or link them to an identical file that was written before.

        The tensors are written in the order of their names, so that equal models have equal files: the order of a
        model's tensors changes when a resumed run reads them from its state.

        Raises:
            StoreError: If the file can't be written.
        """
        buffer = io.BytesIO()
        torch.save(dict(sorted(model.tensors.items())), buffer)
        content = buffer.getbuffer()
        digest = hashlib.sha256(content).hexdigest()
        if (original := self._path_by_digest.get(digest)) is not None:
            link_or_copy(path, original, content)
            return
        write_atomic(path, content)
        self._path_by_digest[digest] = path


def _exported_files(root: Path) -> list[Path]:
    """Return the files of a bundle that an exported bundle contains: configurations, documentation and licence."""
    paths = [path for part in ("configs", "docs") for path in sorted((root / part).rglob("*"))]
    return [path for path in (*paths, root / "LICENSE") if path.is_file() and path.name not in EXCLUDED_CONFIGS]


def _introduction(site_export: SiteExport, model: Model) -> str:
    """Return the documentation of an exported bundle: a paragraph about the model, then the run bundle's page."""
    readme = site_export.bundle_root / README
    rest = readme.read_text(encoding="utf-8") if readme.is_file() else ""
    harmonised = f"Harmonised: {site_export.harmonisation}. " if site_export.harmonisation else ""
    return (
        f"# A network '{model.network}' trained by a federation\n\n"
        f"Data: {site_export.data or 'not stated'}. {describe_names(site_export)}. {harmonised}Network, classes and "
        "image size are written into `configs/`, so that no option is needed for them. The run's report has the scores."
        " Research only: not a medical device.\n\nThe rest of this page is about the bundle from which this one was "
        "exported.\n\n" + rest
    )


def _insert_values(
    config: bytes, name: str, site_export: SiteExport, values: Meta, network_of: Callable[[Any], Any]
) -> bytes:
    """Return a configuration with the run's values for its ids, so that no user has to give them again.

    The network definition comes from `medfl.contract.Method.network_config`. In ``metadata.json`` the description of
    the network is replaced instead.
    """
    content = json.loads(config)
    if name == "metadata.json":
        describe_network(content, site_export)
    else:
        content |= {key: value for key, value in values.items() if key in content}
        if "network_def" in content:
            content["network_def"] = network_of(content["network_def"])
    return (json.dumps(content, indent=4, ensure_ascii=False) + "\n").encode()


def format_predictions(
    objective: Objective,
    metrics: Sequence[str],
    predictions: torch.Tensor,
    targets: torch.Tensor,
    facts: CaseMetadata,
) -> str:
    """Return the content of `PREDICTIONS`: row, target, prediction and known metadata of each case.

    A metadata field that is unknown for all cases has no column.

    Args:
        objective: Objective of the task.
        metrics: Names of the task's metrics.
        predictions: Predictions for N cases, (N, K).
        targets: Targets of the cases, (N, ...).
        facts: Maps the name of each metadata field to its values for the N cases.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    known = {name: entries for name, entries in facts.items() if any(entries)}
    writer.writerow(["row", *objective.scoring_target_columns, *objective.columns(metrics), *known])
    truths = targets.reshape(len(targets), -1).tolist()
    for row, numbers in enumerate(zip(truths, predictions.tolist(), strict=True)):
        last = [entries[row] or "" for entries in known.values()]
        writer.writerow([row, *(f"{value:.9g}" for part in numbers for value in part), *last])
    return text.getvalue()
