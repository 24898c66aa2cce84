"""What a site takes home: an ordinary MONAI bundle with its own model, and what that model says of its test images."""

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
from medfl.data.sites import PATIENT
from medfl.engine.constant_predictions import Predictions, find_constant_predictions
from medfl.engine.evaluation import completed, predictor_of
from medfl.engine.runs.export import Facts, SiteExport, describe, named
from medfl.engine.runs.records import PREDICTIONS, TEST_CONFIG
from medfl.engine.runs.simulation import Result, SimulatedRun
from medfl.engine.runs.worst_cases import keep_worst
from medfl.engine.site import Splits
from medfl.objectives.objective import GROUP
from medfl.settings import Settings
from medfl.task import Task
from medfl.training.predict import predict
from medfl.types import Dataset, Listed, Meta, Visited
from medfl.utils.files import link_or_copy, write_atomic

logger = logging.getLogger(__name__)

README = Path("docs", "README.md")
"""A bundle's docs."""

WEIGHTS = Path("models", "model.pt")
"""Where a bundle has its weights, by MONAI's convention."""

TEST_CASES = Path("test_cases.json")
"""The list of a site's test cases that `TEST_CONFIG` reads."""

NOT_TAKEN = {"models", "runs", ".git", ".cache"}
"""Folders of a stock bundle that a site does not take home: other weights, and runs."""

OVERLAY = {Path("configs", "federate.json"), Path("docs", "federate.md")}
"""What ``medfl adopt`` added to a stock bundle."""

LEFT_OUT = {"federate.json"}
"""Configurations that make no sense for one site alone."""


def export(run: SimulatedRun, result: Result, site_export: SiteExport) -> list[Path]:
    """Write a bundle for every site, and ``global/`` where the method has a global model.

    Models that predict the same for every image are logged and added to the summary.

    Args:
        run: The run; bundles go to ``sites/<name>`` and ``global`` in its folder.
        result: Result of the run; its summary is changed in place.
        home: What the bundles are made from.

    Returns:
        The bundles' folders.

    Raises:
        StoreError: If a bundle can't be written.
    """
    written, method, predictions, weights = [], run.method.make(), {}, WeightsWriter()
    for site, models in sorted(result.models.items()):
        if models:
            target, facts = run.folder / "sites" / site, site_export.facts.get(site, {})
            model = export_site(target, site_export, site, completed(method, run.task, models), method, weights)
            predictor = predictor_of(method, run.task, model)
            predictions[site] = write_predictions(
                target, predictor, run.data.sites[site], run.task, run.settings, facts, run.execution.pictures
            )
            written.append(target)
    constant = find_constant_predictions(predictions, run.task.objective, run.data.classes)
    result.summary = result.summary.model_copy(update={"constant_predictions": tuple(constant)})
    for entry in constant:
        logger.warning("%s", entry.sentence)
    server_models = completed(method, run.task, result.outcome.models)
    return written + export_global(run.folder, site_export, server_models, method, weights)


def export_global(
    folder: Path,
    site_export: SiteExport,
    models: Mapping[str, Model],
    method: Method,
    weights: WeightsWriter | None = None,
) -> list[Path]:
    """Write the server's model to ``global`` in a folder, where there is one; returns the bundles' folders.

    Raises:
        StoreError: If it can't be written.
    """
    if "global" not in models:
        return []
    _write(folder / "global", site_export, models["global"], {}, method, weights)
    return [folder / "global"]


def export_site(
    target: Path,
    site_export: SiteExport,
    site: str,
    models: Mapping[str, Model],
    method: Method,
    weights: WeightsWriter | None = None,
) -> Model:
    """Write what a site takes home: its personal model if it has one, otherwise the global one; returns the model.

    Raises:
        StoreError: If it can't be written.
    """
    model = models.get("personal") or models["global"]
    _write(target, site_export, model, {"site": site}, method, weights)
    return model


def write_predictions(
    target: Path,
    predictor: nn.Module,
    data: Splits,
    task: Task,
    settings: Settings,
    facts: Facts,
    pictures: bool = False,
) -> Predictions:
    """Write `PREDICTIONS` beside a site's bundle, and return the predictions for the site's test images.

    A site without test images gets no file, and the predictions for its validation images are returned.

    Args:
        target: The bundle's folder.
        predictor: Of the model.
        data: The site's; its test images are what is said something of. Where the objective has groups
            (`Objective.groups`), they come from what the model says of the validation images, or where there are none
            of the training images, unless these change at each visit.
        task: The learning problem.
        settings: The run's.
        facts: What is known of each of the images.
        pictures: Whether pictures of the worst cases are to be beside it (`medfl.engine.runs.worst_cases`).
    """
    metrics = (*task.metrics, *task.objective.headline)

    def says(part: Dataset) -> tuple[torch.Tensor, torch.Tensor]:
        return predict(predictor, part, task.objective, metrics, settings, task.device, task.inferer)

    if not len(data.test):
        return Predictions(*says(data.val), "val")
    judged, targets = says(data.test)
    patients = patients_of(data.test)
    known = dict(facts) | ({} if patients is None else {PATIENT: tuple(map(str, patients.tolist()))})
    others = data.val if len(data.val) else data.train
    if task.objective.has_groups and len(others) and not (others is data.train and isinstance(others, Visited)):
        known[GROUP] = task.objective.groups(judged, says(others)[0])
    write_atomic(target / PREDICTIONS, _csv(task, judged, targets, known).encode())
    write_test_cases(target, data.test)
    keep_worst(target, predictor, data.test, task, settings, judged, pictures)
    return Predictions(judged, targets, "test")


def write_test_cases(target: Path, test: Dataset) -> None:
    """Write `TEST_CONFIG` and `TEST_CASES` beside a stock bundle's configurations, if its cases come from a list.

    The bundle's own ``evaluate`` scores its own slice of that list, which may hold training cases of the run. With this
    file behind it, it scores the site's test cases. The cases stand in a file of their own, so that MONAI evaluates no
    text of them.
    """
    if not isinstance(test, Listed) or not test.list_id:
        return
    read = f"$monai.bundle.ConfigParser.load_config_file(@bundle_root + '/{TEST_CASES.as_posix()}')"
    cases = json.dumps([dict(case) for case in test.listed_cases], indent=1, default=str)
    write_atomic(target / TEST_CASES, (cases + "\n").encode())
    write_atomic(target / TEST_CONFIG, (json.dumps({test.list_id: read}, indent=4) + "\n").encode())


def _write(
    target: Path,
    site_export: SiteExport,
    model: Model,
    values: Meta,
    method: Method,
    weights: WeightsWriter | None = None,
) -> None:
    """Write a bundle, each of its files whole or not at all."""
    weights = weights or WeightsWriter()
    if site_export.stock is not None:
        _write_stock(target, site_export.bundle_root, site_export.stock, model, method, weights)
        return
    names = list(map(str, site_export.output_names))
    values = site_export.values | values | {"network_name": model.network, "output_names": names}
    for path in _files(site_export.bundle_root):
        inside = path.relative_to(site_export.bundle_root)
        content = path.read_bytes()
        if inside.parent == Path("configs") and path.suffix == ".json":
            content = _settled(content, path.name, site_export, values, partial(method.network_config, model))
        if inside != README:
            write_atomic(target / inside, content)
    write_atomic(target / README, _introduction(site_export, model).encode())
    weights.write(target / WEIGHTS, model)


def _write_stock(
    target: Path, root: Path, places: Sequence[Path], model: Model, method: Method, weights: WeightsWriter
) -> None:
    """Write a stock bundle byte by byte, without the overlay, and with the model in place of the weights it came with.

    Only where the method's models have another network, configurations that define it say so.
    """
    for path in sorted(root.rglob("*")):
        inside = path.relative_to(root)
        if path.is_file() and inside.parts[0] not in NOT_TAKEN and inside not in OVERLAY:
            content = path.read_bytes()
            if inside.parent == Path("configs") and path.suffix in (".json", ".yaml", ".yml"):
                content = _with_network(content, path.suffix == ".json", partial(method.network_config, model))
            write_atomic(target / inside, content)
    for place in places:
        weights.write(target / place, model)


def _with_network(content: bytes, is_json: bool, network_of: Callable[[Any], Any]) -> bytes:
    """A configuration with another definition of its network, where that is another one; else as it is."""
    config = json.loads(content) if is_json else yaml.safe_load(content)
    definition = config.get("network_def") if isinstance(config, Mapping) else None
    if definition is None or network_of(definition) == definition:
        return content
    return (json.dumps({**config, "network_def": network_of(definition)}, indent=4) + "\n").encode()  # also YAML


class WeightsWriter:
    """Writes the weights of bundles of one run, identical ones once: the others are hard links to the first."""

    def __init__(self) -> None:
        self._path_by_digest: dict[str, Path] = {}

    def write(self, path: Path, model: Model) -> None:
        """Write a model's weights.

        Raises:
            StoreError: If the file can't be written.
        """
        buffer = io.BytesIO()
        torch.save(model.tensors, buffer)
        content = buffer.getbuffer()
        digest = hashlib.sha256(content).hexdigest()
        if (original := self._path_by_digest.get(digest)) is not None:
            link_or_copy(path, original, content)
            return
        write_atomic(path, content)
        self._path_by_digest[digest] = path


def _files(root: Path) -> list[Path]:
    """What a bundle hands on: its configurations, docs and licence."""
    paths = [path for part in ("configs", "docs") for path in sorted((root / part).rglob("*"))]
    return [path for path in (*paths, root / "LICENSE") if path.is_file() and path.name not in LEFT_OUT]


def _introduction(site_export: SiteExport, model: Model) -> str:
    """The bundle's docs, which begin with what this model is; the rest is about the bundle that it was made from."""
    readme = site_export.bundle_root / README
    rest = readme.read_text(encoding="utf-8") if readme.is_file() else ""
    return (
        f"# A network '{model.network}' trained by a federation\n\n"
        f"Data: {site_export.data or 'not stated'}. {named(site_export)}. Network, classes and "
        "image size are written into `configs/`, so that no option is needed for them. The run's report has the scores."
        " Research only: not a medical device.\n\nWhat follows is about the bundle from which it was made.\n\n" + rest
    )


def _settled(
    config: bytes, name: str, site_export: SiteExport, values: Meta, network_of: Callable[[Any], Any]
) -> bytes:
    """A configuration with the run's values where it has such ids, so that nobody needs to give them again.

    What builds the network is as the method says (`medfl.contract.Method.network_config`).
    """
    content = json.loads(config)
    if name == "metadata.json":
        describe(content, site_export)
    else:
        content |= {key: value for key, value in values.items() if key in content}
        if "network_def" in content:
            content["network_def"] = network_of(content["network_def"])
    return (json.dumps(content, indent=4, ensure_ascii=False) + "\n").encode()


def _csv(task: Task, judged: torch.Tensor, targets: torch.Tensor, facts: Facts) -> str:
    """Row, target and predictions of each case, and the facts that are known of any."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    known = {name: entries for name, entries in facts.items() if any(entries)}
    writer.writerow(["row", *task.objective.kept_columns, *task.objective.columns(task.metrics), *known])
    truths = targets.reshape(len(targets), -1).tolist()
    for row, numbers in enumerate(zip(truths, judged.tolist(), strict=True)):
        last = [entries[row] or "" for entries in known.values()]
        writer.writerow([row, *(f"{value:.9g}" for part in numbers for value in part), *last])
    return text.getvalue()
