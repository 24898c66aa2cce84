"""What a site takes home: an ordinary MONAI bundle with its own model, and what that model says of its test images."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from medfl.contract import Method, Model
from medfl.core.evaluation import predictor_of
from medfl.data.pooled import patients_of
from medfl.data.sites import PATIENT
from medfl.objectives import Objective
from medfl.runs.records import PREDICTIONS
from medfl.runs.simulation import Result, Run
from medfl.runs.worst_cases import keep_worst
from medfl.settings import Settings
from medfl.task import Task
from medfl.training.predict import predict
from medfl.types import Dataset, Meta
from medfl.utils.files import write_atomic

Facts = Mapping[str, Sequence[str | None]]
"""Name of a fact to what is known of each image."""

README = Path("docs", "README.md")
"""A bundle's docs."""

LEFT_OUT = {"federate.json"}
"""Configurations that make no sense for one site alone."""


@dataclass(frozen=True)
class Home:
    """What the bundles that sites take home are made from.

    Attributes:
        bundle_root: The bundle of the run; its configurations, docs and licence are copied.
        values: Values of the run for ids of the configurations, such as ``num_classes``: they replace the bundle's.
        shape: Of an image, (channels, *spatial), for the metadata.
        classes: Names of the classes, for the metadata.
        data: Name of the data set, for the metadata.
        modality: How the images were taken, for the metadata.
        structures: Names of what masks show, for the metadata; empty where the network draws none.
        facts: Site to each of `medfl.types.FACTS` of its test images, None where it is not known; for
            `PREDICTIONS`.
        objective: What is learned, for the metadata; None for one of the `classes`.
    """

    bundle_root: Path
    values: Meta = field(default_factory=dict)
    shape: Sequence[int] = ()
    classes: Sequence[str] = ()
    data: str = ""
    modality: str = ""
    structures: Sequence[str] = ()
    facts: Mapping[str, Facts] = field(default_factory=dict)
    objective: Objective | None = None

    @property
    def outputs(self) -> list[str]:
        """What each channel of a network's output is for: a class, a structure, or what the objective calls it."""
        if self.structures:
            return list(self.structures)
        if self.objective is None or not self.objective.target_columns:
            return list(self.classes)
        names = self.classes if self.objective.has_class_labels else self.objective.columns(())
        return list(names)[-self.objective.outputs :]  # one logit of two classes is for the second one


def export(result: Result, run: Run, home: Home) -> list[Path]:
    """Write a bundle for every site, and ``global/`` where the method has a global model.

    Args:
        result: Of the run.
        run: The run; bundles go to ``sites/<name>`` and ``global`` in its folder.
        home: What they are made from.

    Returns:
        The bundles' folders.

    Raises:
        StoreError: If one can't be written.
    """
    written, method = [], run.make_method()
    for site, models in sorted(result.models.items()):
        if models:
            target, facts = run.folder / "sites" / site, home.facts.get(site, {})
            model = export_site(target, home, site, models, method)
            predictor = predictor_of(method, run.task, model)
            write_predictions(target, predictor, run.sites[site].test, run.task, run.settings, facts)
            written.append(target)
    return written + export_global(run.folder, home, result.outcome.models, method)


def export_global(folder: Path, home: Home, models: Mapping[str, Model], method: Method) -> list[Path]:
    """Write the server's model to ``global`` in a folder, where there is one; returns the bundles' folders.

    Raises:
        StoreError: If it can't be written.
    """
    if "global" not in models:
        return []
    _write(folder / "global", home, models["global"], {}, method)
    return [folder / "global"]


def export_site(target: Path, home: Home, site: str, models: Mapping[str, Model], method: Method) -> Model:
    """Write what a site takes home: its personal model if it has one, otherwise the global one; returns the model.

    Raises:
        StoreError: If it can't be written.
    """
    model = models.get("personal") or models["global"]
    _write(target, home, model, {"site": site}, method)
    return model


def write_predictions(
    target: Path, predictor: nn.Module, test: Dataset, task: Task, settings: Settings, facts: Facts
) -> None:
    """Write `PREDICTIONS` beside a site's bundle: what its model says of its test images, in their order; if any.

    Pictures of the worst cases are beside it only if the settings ask for them (`medfl.runs.worst_cases`).

    Args:
        target: The bundle's folder.
        predictor: Of the model.
        test: The site's test images.
        task: The learning problem.
        settings: The run's.
        facts: What is known of each of the images.
    """
    if len(test):
        metrics = (*task.metrics, *task.objective.headline)
        judged, targets = predict(predictor, test, task.objective, metrics, settings, task.device, task.inferer)
        patients = patients_of(test)
        known = dict(facts) | ({} if patients is None else {PATIENT: tuple(map(str, patients.tolist()))})
        write_atomic(target / PREDICTIONS, _csv(task, judged, targets, known).encode())
        keep_worst(target, predictor, test, task, settings, judged)


def _write(target: Path, home: Home, model: Model, values: Meta, method: Method) -> None:
    """Write a bundle, each of its files whole or not at all."""
    values = home.values | values | {"network_name": model.network}
    for path in _files(home.bundle_root):
        inside = path.relative_to(home.bundle_root)
        content = path.read_bytes()
        if inside.parent == Path("configs") and path.suffix == ".json":
            content = _settled(content, path.name, home, values, partial(method.network_config, model))
        if inside != README:
            write_atomic(target / inside, content)
    write_atomic(target / README, _introduction(home, model).encode())
    tensors = io.BytesIO()
    torch.save(model.tensors, tensors)
    write_atomic(target / "models" / "model.pt", tensors.getbuffer())


def _files(root: Path) -> list[Path]:
    """What a bundle hands on: its configurations, docs and licence."""
    paths = [path for part in ("configs", "docs") for path in sorted((root / part).rglob("*"))]
    return [path for path in (*paths, root / "LICENSE") if path.is_file() and path.name not in LEFT_OUT]


def _introduction(home: Home, model: Model) -> str:
    """The bundle's docs, which begin with what this model is; the rest is about the bundle that it was made from."""
    readme = home.bundle_root / README
    rest = readme.read_text(encoding="utf-8") if readme.is_file() else ""
    return (
        f"# A network '{model.network}' trained by a federation\n\n"
        f"Data: {home.data or 'not stated'}. {_named(home)}. Network, classes and "
        "image size are written into `configs/`, so that no option is needed for them. The run's report has the scores."
        " Research only: not a medical device.\n\nWhat follows is about the bundle from which it was made.\n\n" + rest
    )


def _settled(config: bytes, name: str, home: Home, values: Meta, network_of: Callable[[Any], Any]) -> bytes:
    """A configuration with the run's values where it has such ids, so that nobody needs to give them again.

    What builds the network is as the method says (`medfl.contract.Method.network_config`).
    """
    content = json.loads(config)
    if name == "metadata.json":
        _describe(content, home)
    else:
        content |= {key: value for key, value in values.items() if key in content}
        if "network_def" in content:
            content["network_def"] = network_of(content["network_def"])
    return (json.dumps(content, indent=4, ensure_ascii=False) + "\n").encode()


def _named(home: Home) -> str:
    kind, names = ("Structures", home.structures) if home.structures else ("Classes", home.classes)
    return f"{kind}: {'; '.join(names) or 'not stated'}"


def _inputs(home: Home, channels: int, lengths: str) -> str:
    if not lengths:
        return f"{channels} numbers, as in the data that it was trained on"
    how = "as inference.json makes them" if home.structures else "scaled to [0, 1], normalised as in inference.json"
    return f"{channels} channels of {lengths}, {how}"


def _targets(home: Home) -> str:
    if home.structures:
        return f"one of {len(home.structures)} structures in each voxel: {'; '.join(home.structures)}"
    if home.objective is not None and home.objective.target_columns and not home.objective.has_class_labels:
        return "; ".join(home.objective.target_columns)
    return f"one of {len(home.classes)} classes: {'; '.join(home.classes)}"


def _describe(metadata: Any, home: Home) -> None:
    """Make the metadata say what this network takes and gives, and which data it comes from."""
    names = home.structures or home.classes
    if home.shape and names:
        channels, *edges = home.shape
        metadata |= {
            "description": f"A network trained by a federation on '{home.data}'",
            "data_source": home.data or "not stated",
            "image_classes": _inputs(home, channels, " x ".join(map(str, edges))),
            "label_classes": _targets(home),
            "pred_classes": f"one output for each of: {'; '.join(home.outputs)}",
        }
    formats = metadata.get("network_data_format", {})
    image = formats.get("inputs", {}).get("image")
    pred = formats.get("outputs", {}).get("pred")
    if image is not None and home.shape:
        channels, *size = home.shape
        image |= {"num_channels": channels, "spatial_shape": list(size), "modality": home.modality or "not stated"}
        if len(image.get("channel_def", {})) != channels:
            image["channel_def"] = {str(number): f"channel {number}" for number in range(channels)}
            image["format"] = "magnitude"
    if pred is not None and names:
        shape = list(home.shape[1:]) if home.structures else [len(home.outputs)]
        numbered = {str(number): name for number, name in enumerate(home.outputs)}
        pred |= {"num_channels": len(home.outputs), "spatial_shape": shape, "channel_def": numbered}


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
