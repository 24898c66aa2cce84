"""Inputs of the exported bundles, and the description of a network in the metadata of such a bundle.

An exported bundle is the MONAI bundle with the trained model that a site keeps after a run. A stock bundle is a MONAI
bundle that was not written for medfl.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medfl.objectives import Objective
from medfl.types import Meta
from medfl.utils.formats import join_words

CaseMetadata = Mapping[str, Sequence[str | None]]
"""Maps the name of each metadata field of cases, such as the sex, to its values, one for each image in order.

A value is None if it is not known.
"""


@dataclass(frozen=True)
class SiteExport:
    """Inputs from which the exported bundles of a run are written.

    Attributes:
        bundle_root: Path of the run's bundle, whose configurations, documentation and licence are copied.
        values: Maps ids in the bundle's configurations, such as ``num_classes``, to values of the run, which replace
            the bundle's values.
        shape: Shape of an image, (channels, *spatial), for the bundle's metadata.
        classes: Names of the classes, for the bundle's metadata.
        data: Name of the data set, for the bundle's metadata.
        modality: Imaging modality, for the bundle's metadata.
        names: Names of the network's outputs if these are not classes, for the bundle's metadata; empty if unknown.
        facts: Maps each site to the metadata of its test images (such as sex and centre), for the predictions file.
        objective: Objective of the task, for the bundle's metadata; None for a classification into `classes`.
        stock: Paths of the weight files in a stock bundle, which is copied unchanged except for these files. None for a
            bundle of medfl.
        harmonisation: Harmonisation of images and features in words, for the bundle's documentation; empty without one.
    """

    bundle_root: Path
    values: Meta = field(default_factory=dict)
    shape: Sequence[int] = ()
    classes: Sequence[str] = ()
    data: str = ""
    modality: str = ""
    names: Sequence[str] = ()
    facts: Mapping[str, CaseMetadata] = field(default_factory=dict)
    objective: Objective | None = None
    stock: Sequence[Path] | None = None
    harmonisation: str = ""

    @property
    def draws(self) -> bool:
        """True if the network segments: its outputs are masks."""
        return self.objective is not None and self.objective.has_spatial_targets

    @property
    def table_features(self) -> list[str]:
        """Names of the table features that follow an image as its last channels; empty without any."""
        return list(self.values.get("features", ())) if self.values.get("image_features") else []

    @property
    def output_names(self) -> Sequence[str]:
        """Names of the classes, or of the outputs if cases are of no class; empty if they have no names."""
        has_classes = self.objective is None or self.objective.has_class_labels
        return self.names or (self.classes if has_classes else ())

    @property
    def outputs(self) -> list[str]:
        """Names of the channels of the network's output, for the bundle's metadata.

        They are the names of the outputs or the classes. Without names, they are numbers for masks, and otherwise the
        column names of the objective's predictions.
        """
        if self.names:
            return list(self.names)
        if self.objective is None:
            return list(self.classes)
        if self.objective.has_class_labels:
            return list(self.classes)[-self.objective.outputs :]  # a single logit is for the second class
        return list(map(str, range(self.objective.outputs))) if self.draws else list(self.objective.columns(()))


def describe_names(site_export: SiteExport) -> str:
    """Return a line that lists the names of a network's classes, segmented structures or other outputs.

    Args:
        site_export: Inputs of the exported bundle, which contain the names.
    """
    names = site_export.names or site_export.classes
    kind = "Classes" if not site_export.names else "Structures" if site_export.draws else "Outputs"
    return f"{kind}: {'; '.join(names) or 'not stated'}"


def _describe_inputs(site_export: SiteExport, channels: int, lengths: str) -> str:
    if not lengths:
        return f"{channels} numbers, as in the data that it was trained on"
    if site_export.table_features:
        columns = join_words([str(column["name"]) for column in site_export.values["columns"]])
        images = f"{channels - len(site_export.table_features)} channels of {lengths}, scaled to [0, 1]"
        return f"{images}, and of a table: {columns}; normalised as in inference.json"
    form = "as inference.json makes them" if site_export.draws else "scaled to [0, 1], normalised as in inference.json"
    return f"{channels} channels of {lengths}, {form}"


def _describe_targets(site_export: SiteExport) -> str:
    if site_export.draws:
        return f"one of {len(site_export.outputs)} structures in each voxel: {'; '.join(site_export.outputs)}"
    if site_export.objective is not None and not site_export.objective.has_class_labels:
        return "; ".join(site_export.names or site_export.objective.target_columns)
    return f"one of {len(site_export.classes)} classes: {'; '.join(site_export.classes)}"


def describe_network(metadata: Any, site_export: SiteExport) -> None:
    """Write the network's inputs, outputs and data set into a bundle's metadata, in place.

    Args:
        metadata: Content of the bundle's ``metadata.json``.
        site_export: Inputs of the exported bundle.
    """
    names = site_export.names or site_export.classes
    if site_export.shape and names:
        channels, *edges = site_export.shape
        metadata |= {
            "description": f"A network trained by a federation on '{site_export.data}'",
            "data_source": site_export.data or "not stated",
            "image_classes": _describe_inputs(site_export, channels, " x ".join(map(str, edges))),
            "label_classes": _describe_targets(site_export),
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
        table = site_export.table_features
        if table or len(image.get("channel_def", {})) != channels:
            titles = [*(f"channel {number}" for number in range(channels - len(table))), *table]
            image["channel_def"] = {str(number): title for number, title in enumerate(titles)}
            image["format"] = "magnitude"
    if pred is not None and names:
        shape = list(site_export.shape[1:]) if site_export.draws else [len(site_export.outputs)]
        numbered = {str(number): name for number, name in enumerate(site_export.outputs)}
        pred |= {"num_channels": len(site_export.outputs), "spatial_shape": shape, "channel_def": numbered}
