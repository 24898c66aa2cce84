"""Capture of the intermediate features of a network during its forward pass.

A stage is a module of the network whose output is a feature map or vector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from medfl.errors import SettingsError


def network_stages(model: nn.Module, network: str) -> list[nn.Module]:
    """Return the stages of a network in order.

    Args:
        model: A network with `feature_layers`, a list of the modules whose outputs are its features.
        network: Name of the network, for the message.

    Raises:
        SettingsError: If the network has no `feature_layers`.
    """
    layers = getattr(model, "feature_layers", None)
    if not layers:
        raise SettingsError(
            "missing_feature_layers",
            f"Network '{network}' ({type(model).__name__}) has no `feature_layers`: expected a list of the modules "
            "whose outputs are its features, stage by stage. Add one, or choose a network that has it.",
            network=network,
        )
    return list(layers)


def check_comparable_stages(networks: Mapping[str, nn.Module], layers: Sequence[int] | None) -> None:
    """Raise if the stages of the networks can't be compared one by one.

    Args:
        networks: Mapping from each name to a network.
        layers: Numbers of the compared stages, from 1; None means all.

    Raises:
        SettingsError: If a network has no stages, if the numbers of stages differ, or if a compared stage does not
            exist.
    """
    counts = {name: len(network_stages(model, name)) for name, model in networks.items()}
    if len(set(counts.values())) > 1:
        text = ", ".join(f"'{name}' has {count}" for name, count in sorted(counts.items()))
        raise SettingsError(
            "unlike_stage_counts",
            "Networks are compared stage by stage: expected the same number of `feature_layers` at all sites, got "
            f"{text}. Their widths may differ; choose networks of the same depth.",
            counts=counts,
        )
    number = max(counts.values())
    wrong = [layer for layer in layers or () if not 1 <= layer <= number]
    if wrong:
        raise SettingsError(
            "setting_out_of_range",
            f"`layers` names stages from 1 to {number} of {sorted(counts)}, got {wrong}.",
            setting="layers",
            found=wrong,
            minimum=1,
            maximum=number,
        )


class FeatureHooks:
    """Forward hooks that capture the outputs of stages, with their gradients.

    Args:
        modules: The stages.

    Attributes:
        features: Outputs of the latest forward pass in the order of `modules`: (B, C, *spatial), or (B, C) from a stage
            without spatial axes.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.features: list[torch.Tensor] = [torch.empty(0)] * len(modules)
        self._handles = [module.register_forward_hook(self._catch(n)) for n, module in enumerate(modules)]

    def close(self) -> None:
        """Remove the hooks and release the features."""
        for handle in self._handles:
            handle.remove()
        self.features = []

    def _catch(self, number: int) -> Any:
        """Return a forward hook that stores the output of the stage with this number."""

        def hook(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
            self.features[number] = output

        return hook
