"""SHAP values: how much each pixel of an image adds to what a model says of it, by shap's GradientExplainer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from medfl.data.pooled import labels_of
from medfl.data.sampling import class_rows
from medfl.errors import SettingsError, pip_install
from medfl.types import Dataset, Tensors

BACKGROUND = 50
"""Most images that an explanation compares with."""

DRAWS = 64
"""Draws between an image and the background, for each image."""


@dataclass(frozen=True)
class Explained:
    """SHAP values of some images for some models.

    Attributes:
        images: Shape (n, C, *spatial), as networks see them.
        labels: Shape (n,).
        maps: Model's name to SHAP values of the images for the logit of their label, summed over channels: shape
            (n, *spatial).
    """

    images: torch.Tensor
    labels: torch.Tensor
    maps: Mapping[str, torch.Tensor]

    @property
    def mean_size(self) -> float:
        """Mean absolute SHAP value over models, images and pixels."""
        return float(torch.stack(list(self.maps.values())).abs().mean())

    def tensors(self) -> Tensors:
        """As tensors of a run's findings."""
        named = {f"explained/maps/{name}": values for name, values in self.maps.items()}
        return {"explained/images": self.images, "explained/labels": self.labels} | named


def check_installed() -> Any:
    """The module shap.

    Raises:
        SettingsError: If it is not installed.
    """
    try:
        import shap
    except ImportError:
        raise SettingsError(
            "missing_package",
            f"explaining models needs shap: `{pip_install('explain')}`.",
            package="shap",
            extra="explain",
        ) from None
    return shap


def balanced_rows(labels: torch.Tensor, per_class: int, generator: torch.Generator) -> torch.Tensor:
    """Rows with so many images of each class that is there, or all there are; in the order of the classes."""
    by_class = class_rows(labels)
    return torch.cat([rows[torch.randperm(len(rows), generator=generator)[:per_class]] for rows in by_class])


def explain(
    models: Mapping[str, nn.Module], data: Dataset, per_class: int, generator: torch.Generator, device: str = "cpu"
) -> Explained:
    """SHAP values of a class-balanced sample, against a background of the same data.

    Args:
        models: By name, on `device`; put into evaluation mode.
        data: Images with labels.
        per_class: Images of each class, >= 1.
        generator: Which images, and shap's draws.
        device: Where the models are.

    Raises:
        SettingsError: If shap is not installed.

    Source: Lundberg and Lee, NeurIPS 2017; expected gradients as in Erion et al., Nature Machine Intelligence 2021.
    """
    shap = check_installed()
    images, labels = data.batch(balanced_rows(labels_of(data), per_class, generator))
    background, _ = data.batch(torch.randperm(len(data), generator=generator)[:BACKGROUND])
    seed = int(torch.randint(2**31 - 1, (), generator=generator))
    maps = {}
    for name, model in models.items():
        explainer = shap.GradientExplainer(model.eval(), background.to(device))
        values = np.asarray(explainer.shap_values(images.to(device), nsamples=DRAWS, rseed=seed))
        own = values[np.arange(len(labels)), ..., labels.numpy()]  # of the logit of each image's label
        maps[name] = torch.from_numpy(own).float().sum(dim=1)
    return Explained(images, labels, maps)
