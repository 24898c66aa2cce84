"""Heads and stages of networks that don't declare them: MONAI's networks, and any network by its module names."""

from __future__ import annotations

from collections.abc import Sequence

from monai.networks import nets
from torch import nn

from medfl.errors import SettingsError
from medfl.networks.dynunet import DynUNet
from medfl.networks.segmentation_common import disable_inplace
from medfl.networks.segresnet import SegResNet
from medfl.networks.swinunetr import SwinUNETR
from medfl.networks.unet import UNet

PartNames = tuple[str, tuple[str, ...]]
"""Pair of the head's module name and the stages' module names in order. A name that ends in ``*`` stands for all
modules with that prefix. A stage is a module of the encoder whose output is a feature map."""

RESNET_STAGES = ("layer1", "layer2", "layer3", "layer4")
"""Names of the four stages of residual networks."""

PART_NAMES: dict[type[nn.Module], PartNames] = {
    nets.ResNet: ("fc", RESNET_STAGES),
    nets.SENet: ("last_linear", RESNET_STAGES),
    nets.DenseNet: ("class_layers.out", ("features.denseblock*",)),
    nets.EfficientNet: ("_fc", ("_blocks.*",)),
    nets.FlexibleUNet: ("segmentation_head", ("encoder._blocks.*",)),
    nets.BasicUNet: ("final_conv", ("conv_0", "down_1", "down_2", "down_3", "down_4")),
    nets.VNet: ("out_tr", ("in_tr", "down_tr32", "down_tr64", "down_tr128", "down_tr256")),
}
"""Mapping from each MONAI network with fixed module names to the names of its head and stages."""

MEDFL_SUBCLASSES: dict[type[nn.Module], type] = {
    nets.UNet: UNet,
    nets.DynUNet: DynUNet,
    nets.SegResNet: SegResNet,
    nets.SwinUNETR: SwinUNETR,
}
"""Mapping from MONAI's networks to medfl's subclasses, whose properties find the head and stages in both classes."""


def name_parts(network: nn.Module, head: str | None = None, stages: Sequence[str] = ()) -> nn.Module:
    """Set the network's attributes `head`, its last layer, and `feature_layers`, its encoder stages, in place.

    Existing attributes are kept unless other modules are given here. The network's state dict and outputs don't change.
    A network that is not MONAI's gets only the attributes that are given.

    Args:
        network: Network; changed in place.
        head: Name of a module, as in ``named_modules``; None uses the known name in MONAI's network.
        stages: Names of modules whose outputs are feature maps (B, C, *spatial), in the order of execution; empty uses
            the known names.

    Returns:
        The network.

    Raises:
        SettingsError: If there is no module with a name.
    """
    named = next((named for kind, named in PART_NAMES.items() if isinstance(network, kind)), ("", ()))
    ours = next((ours for kind, ours in MEDFL_SUBCLASSES.items() if isinstance(network, kind)), None)
    if head or not isinstance(getattr(network, "head", None), nn.Module):
        part = None if ours is None else vars(ours)["head"].fget(network)
        if head or named[0]:
            (part,) = _modules(network, [head or named[0]], "head")
        if part is not None:
            # Torch's own `__setattr__` would register the module again and list its tensors under two names.
            object.__setattr__(network, "head", part)
    if stages or not getattr(network, "feature_layers", None):
        layers = _modules(network, stages or named[1], "stages")
        if not layers and ours is not None:
            layers = vars(ours)["feature_layers"].fget(network)
        if layers:
            object.__setattr__(network, "feature_layers", layers)
            disable_inplace(network)
    return network


def _modules(network: nn.Module, names: Sequence[str], what: str) -> list[nn.Module]:
    """Return the modules with the given names.

    Raises:
        SettingsError: If a module does not exist.
    """
    modules: list[nn.Module] = []
    for name in names:
        place, _, last = name.rpartition(".")
        try:
            if name.endswith("*"):
                children = network.get_submodule(place).named_children()
                modules += [child for child_name, child in children if child_name.startswith(last.removesuffix("*"))]
            else:
                modules.append(network.get_submodule(name))
        except AttributeError:
            there = ", ".join(child_name for child_name, _ in network.named_children())
            raise SettingsError(
                "unknown_module",
                f"network {type(network).__name__} has no module '{name}', which was given as its {what}: expected a "
                f"name as in `named_modules()`. Its top-level modules are: {there}. Correct the name.",
                network=type(network).__name__,
                name=name,
                part=what,
                known=[child_name for child_name, _ in network.named_children()],
            ) from None
    return modules
