"""A network that tells by an image which site it may come from, and the one that answers by what it says."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from medfl.errors import SettingsError
from medfl.networks.convnet import ConvNet
from medfl.networks.vectors import MLP


class SuperModel(nn.Module):
    """A common network, one of each site's own, and one that selects among them.

    Args:
        common: Maps images (B, C, *spatial) to outputs (B, ...).
        sites: Number of sites, K >= 1; their networks are of the same kind.
        selector: Maps images to a logit for each site, (B, K) or more.
        threshold: How sure the selector has to be, in [0, 1].
    """

    def __init__(self, common: nn.Module, sites: int, selector: nn.Module, threshold: float) -> None:
        super().__init__()
        self.common, self.selector, self.threshold = common, selector, threshold
        self.own = nn.ModuleList(copy.deepcopy(common) for _ in range(sites))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Outputs for each image by the network of the site that is above the threshold; else by the common one."""
        outputs: torch.Tensor = self.common(images).clone()
        sure, site = self.selector(images).float().softmax(dim=1).max(dim=1)
        for number, own in enumerate(self.own):
            rows = (site == number) & (sure > self.threshold)
            if bool(rows.any()):
                outputs[rows] = own(images[rows])
        return outputs


def selector_beside(network: nn.Module, sites: int, width: int) -> nn.Module:
    """A network that maps what another one takes to a logit for each site.

    If the first layer of the other one is a convolution, it has two stages of convolution and pooling, and a hidden
    layer on the mean of each map, for images of 4 pixels and more; otherwise a hidden layer alone. There is no
    normalisation: how bright images are, and how much contrast they have, tells sites apart.

    Args:
        network: The other one.
        sites: K, >= 1; for a single one there are two logits.
        width: Channels of the first convolution, >= 1; a quarter of the hidden layer.

    Raises:
        SettingsError: If the other one has neither convolutions nor linear layers.
    """
    first = next((module for module in network.modules() if isinstance(module, _ConvNd | nn.Linear)), None)
    if first is None:
        raise SettingsError(
            "network_not_supported",
            f"FedSM makes a network that takes the same images: expected a convolution or a linear layer in "
            f"{type(network).__name__}, got neither. Choose another network.",
            network=type(network).__name__,
        )
    if isinstance(first, nn.Linear):
        return nn.Sequential(nn.Flatten(), MLP(first.in_features, max(2, sites), (4 * width,)))
    return ConvNet(
        first.in_channels,
        max(2, sites),
        spatial_dims=first.weight.dim() - 2,
        channels=(width, 2 * width),
        dense=4 * width,
        padding=1,
        pooling="average",
    )


def super_model(network: nn.Module, sites: int, width: int, threshold: float) -> SuperModel:
    """A `SuperModel` of networks like the given one, which becomes the common one.

    Args:
        network: It.
        sites: As for `SuperModel`.
        width: As for `selector_beside`.
        threshold: As for `SuperModel`.
    """
    return SuperModel(network, sites, selector_beside(network, sites, width), threshold)


def new_selector(build: Callable[[], nn.Module], sites: int, width: int) -> nn.Module:
    """`selector_beside` a new network."""
    return selector_beside(build(), sites, width)


def new_super_model(build: Callable[[], nn.Module], sites: int, width: int, threshold: float) -> SuperModel:
    """`super_model` of a new network."""
    return super_model(build(), sites, width, threshold)
