"""What the bundles that sites take home are made from, and how their metadata say what a network takes and gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medfl.objectives import Objective
from medfl.types import Meta

Facts = Mapping[str, Sequence[str | None]]
"""Name of a fact to what is known of each image."""


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
        names: What each output of the network is for where that is no class, for the metadata; empty where nobody
            named them.
        facts: Site to each of `medfl.types.FACTS` of its test images, None where it is not known; for
            `PREDICTIONS`.
        objective: What is learned, for the metadata; None for one of the `classes`.
        stock: Where a bundle that somebody else wrote has its weights (`medfl.data.source.Source.weights`): a site
            takes that home as it is, with its own there. None for a bundle of medfl.
    """

    bundle_root: Path
    values: Meta = field(default_factory=dict)
    shape: Sequence[int] = ()
    classes: Sequence[str] = ()
    data: str = ""
    modality: str = ""
    names: Sequence[str] = ()
    facts: Mapping[str, Facts] = field(default_factory=dict)
    objective: Objective | None = None
    stock: Sequence[Path] | None = None

    @property
    def draws(self) -> bool:
        """Whether the network draws masks."""
        return self.objective is not None and self.objective.in_space

    @property
    def output_names(self) -> Sequence[str]:
        """Names of the classes, or of the outputs if cases are of no class; empty if they have no names."""
        has_classes = self.objective is None or self.objective.has_class_labels
        return self.names or (self.classes if has_classes else ())

    @property
    def outputs(self) -> list[str]:
        """What each channel of a network's output is for: a class, or what it is called; else as the objective says."""
        if self.names:
            return list(self.names)
        if self.objective is None:
            return list(self.classes)
        if self.objective.has_class_labels:
            return list(self.classes)[-self.objective.outputs :]  # one logit of two classes is for the second one
        return list(map(str, range(self.objective.outputs))) if self.draws else list(self.objective.columns(()))


def named(home: Home) -> str:
    """What a network tells apart, in a line."""
    names = home.names or home.classes
    kind = "Classes" if not home.names else "Structures" if home.draws else "Outputs"
    return f"{kind}: {'; '.join(names) or 'not stated'}"


def _inputs(home: Home, channels: int, lengths: str) -> str:
    if not lengths:
        return f"{channels} numbers, as in the data that it was trained on"
    how = "as inference.json makes them" if home.draws else "scaled to [0, 1], normalised as in inference.json"
    return f"{channels} channels of {lengths}, {how}"


def _targets(home: Home) -> str:
    if home.draws:
        return f"one of {len(home.outputs)} structures in each voxel: {'; '.join(home.outputs)}"
    if home.objective is not None and not home.objective.has_class_labels:
        return "; ".join(home.names or home.objective.target_columns)
    return f"one of {len(home.classes)} classes: {'; '.join(home.classes)}"


def describe(metadata: Any, home: Home) -> None:
    """Make the metadata say what this network takes and gives, and which data it comes from."""
    names = home.names or home.classes
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
        shape = list(home.shape[1:]) if home.draws else [len(home.outputs)]
        numbered = {str(number): name for number, name in enumerate(home.outputs)}
        pred |= {"num_channels": len(home.outputs), "spatial_shape": shape, "channel_def": numbered}
