"""What the stages of a network compute, caught while it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from medfl.errors import SettingsError


def stages(model: nn.Module, network: str) -> list[nn.Module]:
    """The stages of a network, in order.

    Args:
        model: Has `feature_layers`, a list of the modules whose outputs are its features.
        network: Its name, for the message.

    Raises:
        SettingsError: If it has none.
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


def check_alike(networks: Mapping[str, nn.Module], layers: Sequence[int] | None) -> None:
    """Refuse networks whose stages can't be compared one by one.

    Args:
        networks: Network's name to a network.
        layers: Numbers of the stages that are compared, from 1; None means all.

    Raises:
        SettingsError: If a network has no stages, if two have unlike numbers of them, or if a stage is named that is
            not there.
    """
    counts = {name: len(stages(model, name)) for name, model in networks.items()}
    if len(set(counts.values())) > 1:
        text = ", ".join(f"'{name}' has {count}" for name, count in sorted(counts.items()))
        raise SettingsError(
            "unlike_stage_counts",
            f"Networks are compared stage by stage: expected one number of `feature_layers` at all sites, got {text}. "
            "Their widths may differ; choose networks of one depth.",
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
    """Catches the outputs of stages at each forward pass, with their gradients.

    Args:
        modules: The stages.

    Attributes:
        features: The outputs of the last pass, in the order of `modules`: (B, C, *spatial), or (B, C) from a stage
            without space.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.features: list[torch.Tensor] = [torch.empty(0)] * len(modules)
        self._handles = [module.register_forward_hook(self._catch(n)) for n, module in enumerate(modules)]

    def close(self) -> None:
        """Take the hooks off, and let the features go."""
        for handle in self._handles:
            handle.remove()
        self.features = []

    def _catch(self, number: int) -> Any:
        def hook(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
            self.features[number] = output

        return hook
