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
class SiteExport:
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


def named(site_export: SiteExport) -> str:
    """What a network tells apart, in a line."""
    names = site_export.names or site_export.classes
    kind = "Classes" if not site_export.names else "Structures" if site_export.draws else "Outputs"
    return f"{kind}: {'; '.join(names) or 'not stated'}"


def _inputs(site_export: SiteExport, channels: int, lengths: str) -> str:
    if not lengths:
        return f"{channels} numbers, as in the data that it was trained on"
    how = "as inference.json makes them" if site_export.draws else "scaled to [0, 1], normalised as in inference.json"
    return f"{channels} channels of {lengths}, {how}"


def _targets(site_export: SiteExport) -> str:
    if site_export.draws:
        return f"one of {len(site_export.outputs)} structures in each voxel: {'; '.join(site_export.outputs)}"
    if site_export.objective is not None and not site_export.objective.has_class_labels:
        return "; ".join(site_export.names or site_export.objective.target_columns)
    return f"one of {len(site_export.classes)} classes: {'; '.join(site_export.classes)}"


def describe(metadata: Any, site_export: SiteExport) -> None:
    """Make the metadata say what this network takes and gives, and which data it comes from."""
    names = site_export.names or site_export.classes
    if site_export.shape and names:
        channels, *edges = site_export.shape
        metadata |= {
            "description": f"A network trained by a federation on '{site_export.data}'",
            "data_source": site_export.data or "not stated",
            "image_classes": _inputs(site_export, channels, " x ".join(map(str, edges))),
            "label_classes": _targets(site_export),
            "pred_classes": f"one output for each of: {'; '.join(site_export.outputs)}",
        }
    formats = metadata.get("network_data_format", {})
    image = formats.get("inputs", {}).get("image")
    pred = formats.get("outputs", {}).get("pred")
    if image is not None and site_export.shape:
        channels, *size = site_export.shape
        image |= {
            "num_channels": channels,
            "spatial_shape": list(size),
            "modality": site_export.modality or "not stated",
        }
        if len(image.get("channel_def", {})) != channels:
            image["channel_def"] = {str(number): f"channel {number}" for number in range(channels)}
            image["format"] = "magnitude"
    if pred is not None and names:
        shape = list(site_export.shape[1:]) if site_export.draws else [len(site_export.outputs)]
        numbered = {str(number): name for number, name in enumerate(site_export.outputs)}
        pred |= {"num_channels": len(site_export.outputs), "spatial_shape": shape, "channel_def": numbered}
