"""Selector, which predicts from which site an image may come, and the super model, which contains a selector.

Exported bundles refer to `super_model` by its import path.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from medfl.errors import SettingsError
from medfl.networks.convnet import ConvNet
from medfl.networks.image_table import ImageTableNetwork
from medfl.networks.vectors import MLP


class SuperModel(nn.Module):
    """Global network, a personal network of each site, and a selector that chooses between them for each image.

    Args:
        common: Global network, which maps images (B, C, *spatial) to outputs (B, ...).
        sites: Number of sites, K >= 1; their networks have the same architecture.
        selector: Network that maps images to a logit for each site, (B, K) or more.
        threshold: Probability above which a site's network is chosen, in [0, 1].

    Attributes:
        own: Personal network of each site.
    """

    def __init__(self, common: nn.Module, sites: int, selector: nn.Module, threshold: float) -> None:
        super().__init__()
        self.common, self.selector, self.threshold = common, selector, threshold
        self.own = nn.ModuleList(copy.deepcopy(common) for _ in range(sites))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return for each image the outputs of the chosen network.

        It is the network of the site whose probability from the selector exceeds the threshold, else the global one.
        """
        outputs: torch.Tensor = self.common(images).clone()
        probability, site = self.selector(images).float().softmax(dim=1).max(dim=1)
        for number, own in enumerate(self.own):
            rows = (site == number) & (probability > self.threshold)
            if bool(rows.any()):
                outputs[rows] = own(images[rows])
        return outputs


def build_selector(network: nn.Module, sites: int, width: int) -> nn.Module:
    """Return a selector: a network that maps the inputs of another network to a logit for each site.

    If the first layer of the other network is a convolution, the selector has two stages of convolution and pooling and
    a hidden layer on the mean of each map, for images of at least 4 pixels. Otherwise the selector has only a hidden
    layer. The selector has no normalisation, because brightness and contrast distinguish sites.

    Args:
        network: Network with the same inputs.
        sites: Number K of sites, >= 1; for a single site there are two logits.
        width: Number of channels of the first convolution, >= 1; the hidden layer has four times as many.

    Raises:
        SettingsError: If the other network has neither convolutions nor linear layers.
    """
    first = next((module for module in network.modules() if isinstance(module, _ConvNd | nn.Linear)), None)
    if first is None:
        raise SettingsError(
            "network_not_supported",
            "FedSM builds a selector with the same inputs as the network: expected a convolution or a linear layer in "
            f"{type(network).__name__}, found neither. Choose another network.",
            network=type(network).__name__,
        )
    if isinstance(first, nn.Linear):
        return nn.Sequential(nn.Flatten(), MLP(first.in_features, max(2, sites), (4 * width,)))
    table_features = network.body.count if isinstance(network, ImageTableNetwork) else 0
    return ConvNet(
        first.in_channels + table_features,
        max(2, sites),
        spatial_dims=first.weight.dim() - 2,
        channels=(width, 2 * width),
        dense=4 * width,
        padding=1,
        pooling="average",
    )


def super_model(network: nn.Module, sites: int, width: int, threshold: float) -> SuperModel:
    """Build a `SuperModel` from a network, copies of it for the sites, and a new selector.

    Args:
        network: Network that becomes the global one.
        sites: Number of sites, >= 1.
        width: Number of channels of the selector's first convolution, >= 1.
        threshold: Probability above which a site's network is chosen, in [0, 1].
    """
    return SuperModel(network, sites, build_selector(network, sites, width), threshold)


def new_selector(build: Callable[[], nn.Module], sites: int, width: int) -> nn.Module:
    """Build a network and return a selector for the inputs of that network, see `build_selector`."""
    return build_selector(build(), sites, width)


def new_super_model(build: Callable[[], nn.Module], sites: int, width: int, threshold: float) -> SuperModel:
    """Build a network and return a super model of networks like it, see `super_model`."""
    return super_model(build(), sites, width, threshold)
