"""SHAP values: contribution of each pixel of an image to a model's prediction, by shap's GradientExplainer."""

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

MAX_BACKGROUND_IMAGES = 50
"""Maximum number of background images: the reference with which SHAP compares an image."""

DRAWS_PER_IMAGE = 64
"""Number of random points between an image and background images at which SHAP evaluates gradients, for each image."""


@dataclass(frozen=True)
class Explanations:
    """SHAP values of some images for some models.

    Attributes:
        images: Normalised images, shape (n, C, *spatial).
        labels: Class labels, shape (n,).
        maps: Mapping from the name of each model to its SHAP maps, one for each image: contributions of the pixels to
            the logit of the image's label, summed over channels, shape (n, *spatial).
    """

    images: torch.Tensor
    labels: torch.Tensor
    maps: Mapping[str, torch.Tensor]

    @property
    def mean_size(self) -> float:
        """Mean absolute SHAP value over models, images and pixels."""
        return float(torch.stack(list(self.maps.values())).abs().mean())

    def tensors(self) -> Tensors:
        """Return images, labels and SHAP maps as named tensors, for the findings (report data) of a run."""
        named = {f"explained/maps/{name}": values for name, values in self.maps.items()}
        return {"explained/images": self.images, "explained/labels": self.labels} | named


def import_shap() -> Any:
    """Import and return the optional package shap.

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
    """Draw up to `per_class` row numbers of each class at random, in the order of the classes.

    Args:
        labels: Class label of each row, shape (n,).
        per_class: Number of rows of a class; a class with fewer rows gives all of them.
        generator: Random stream.
    """
    by_class = class_rows(labels)
    return torch.cat([rows[torch.randperm(len(rows), generator=generator)[:per_class]] for rows in by_class])


def explain_models(
    models: Mapping[str, nn.Module], data: Dataset, per_class: int, generator: torch.Generator, device: str = "cpu"
) -> Explanations:
    """Compute the SHAP values of several models for a class-balanced random sample of images.

    The background images come from the same data. Puts the models into evaluation mode.

    Args:
        models: Mapping from the name of each model to the model, on `device`.
        data: Images with labels.
        per_class: Number of images of each class, >= 1.
        generator: Random stream of the sample and of shap.
        device: Device of the models.

    Raises:
        SettingsError: If shap is not installed.

    Source: Lundberg and Lee, NeurIPS 2017; expected gradients as in Erion et al., Nature Machine Intelligence 2021.
    """
    shap = import_shap()
    images, labels = data.batch(balanced_rows(labels_of(data), per_class, generator))
    background, _ = data.batch(torch.randperm(len(data), generator=generator)[:MAX_BACKGROUND_IMAGES])
    seed = int(torch.randint(2**31 - 1, (), generator=generator))
    maps = {}
    for name, model in models.items():
        explainer = shap.GradientExplainer(model.eval(), background.to(device))
        values = np.asarray(explainer.shap_values(images.to(device), nsamples=DRAWS_PER_IMAGE, rseed=seed))
        of_labels = values[np.arange(len(labels)), ..., labels.numpy()]  # for the logit of each image's label
        maps[name] = torch.from_numpy(of_labels).float().sum(dim=1)
    return Explanations(images, labels, maps)
