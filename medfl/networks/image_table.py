"""Networks that take an image and features of its table row, such as age and sex.

A case is one tensor (B, C + F, *spatial): C channels of the image, and F features as channels with one value each
(`medfl.data.arrays.append_features`). B is the number of cases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar

import torch
from torch import nn

from medfl.networks.parts import feature_count, head_prefix, replace_head
from medfl.types import Tensors


class ImageTableBody(nn.Module):
    """Body that returns the features of an image, followed by the features of its table row.

    Args:
        image: Network whose outputs are d features of an image, (B, d).
        count: Number of features of the table row, F, >= 1.

    Attributes:
        image: The argument `image`.
        count: The argument `count`.
    """

    def __init__(self, image: nn.Module, count: int) -> None:
        super().__init__()
        self.image, self.count = image, count

    def forward(self, cases: torch.Tensor) -> torch.Tensor:
        """Compute features (B, d + F) of cases (B, C + F, *spatial).

        The value of a feature is read in the middle of its channel, which a rotated or shifted image still covers.
        """
        images, table = cases[:, : -self.count], cases[:, -self.count :]
        while table.dim() > 2:
            table = table.select(2, table.shape[2] // 2)
        return torch.cat([self.image(images).flatten(1), table], dim=1)


class ImageTableNetwork(nn.Module):
    """Image network whose linear classifier also takes the features of a table row (late fusion).

    The logits are ``head([image features, table features])``: each feature of image and table adds to a logit in
    proportion to its value, without interactions.

    Args:
        network: Image network with `body` and `head`. Its head is replaced.
        count: Number of features of the table row, F, >= 1.
        outputs: Number of outputs, >= 1.
        name: Name of the network, for messages.

    Attributes:
        body: Feature extractor from cases (B, C + F, *spatial) to features (B, d + F).
        head: Linear classifier from these features to logits (B, outputs).
        feature_layers: Stages of the image network, if it lists them.

    Raises:
        SettingsError: If the network has no body, or no head with a linear layer.
    """

    __jit_unused_properties__: ClassVar = ["feature_layers"]  # TorchScript has no lists of modules

    def __init__(self, network: nn.Module, count: int, outputs: int, name: str) -> None:
        super().__init__()
        width = feature_count(network, name)
        self._image_head = head_prefix(network, name)
        self.body = ImageTableBody(replace_head(network, nn.Identity()), count)
        self.head = nn.Linear(width + count, outputs)

    @property
    def feature_layers(self) -> list[nn.Module]:
        """Stages of the image network; none if it lists none."""
        layers: list[nn.Module] = list(getattr(self.body.image, "feature_layers", ()))
        return layers

    @torch.jit.unused
    def rename_weights(self, tensors: Tensors) -> Tensors:
        """Return weights of the image network with this network's names, without the image network's classifier."""
        if any(name.startswith("body.image.") for name in tensors):
            return tensors
        rename = getattr(self.body.image, "rename_weights", None)
        own = rename(tensors) if callable(rename) else tensors
        return {f"body.image.{name}": t for name, t in own.items() if not name.startswith(self._image_head)}

    def forward(self, cases: torch.Tensor) -> torch.Tensor:
        """Compute logits (B, outputs) of cases (B, C + F, *spatial)."""
        logits: torch.Tensor = self.head(self.body(cases))
        return logits


def with_table_features(
    networks: Mapping[str, Callable[[], nn.Module]], count: int, outputs: int
) -> dict[str, Callable[[], nn.Module]]:
    """Return constructors of networks that also take table features, from constructors of image networks.

    Args:
        networks: Maps the name of each image network to its constructor.
        count: Number of table features of a case; 0 returns the image networks.
        outputs: Number of outputs.
    """
    if not count:
        return dict(networks)
    return {name: partial(_build, build, count, outputs, name) for name, build in networks.items()}


def _build(build: Callable[[], nn.Module], count: int, outputs: int, name: str) -> nn.Module:
    return ImageTableNetwork(build(), count, outputs, name)
