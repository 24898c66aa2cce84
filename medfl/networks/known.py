"""Head and stages of networks that don't name them: those that MONAI brings, and any other by its modules' names."""

from __future__ import annotations

from collections.abc import Sequence

from monai.networks import nets
from torch import nn

from medfl.errors import SettingsError
from medfl.networks.dynunet import DynUNet
from medfl.networks.masks import out_of_place
from medfl.networks.segresnet import SegResNet
from medfl.networks.swinunetr import SwinUNETR
from medfl.networks.unet import UNet

Named = tuple[str, tuple[str, ...]]
"""Name of the head, and of each stage in order; one that ends in a star is for all modules whose names begin so."""

LEVELS = ("layer1", "layer2", "layer3", "layer4")

BY_NAME: dict[type[nn.Module], Named] = {
    nets.ResNet: ("fc", LEVELS),
    nets.SENet: ("last_linear", LEVELS),
    nets.DenseNet: ("class_layers.out", ("features.denseblock*",)),
    nets.EfficientNet: ("_fc", ("_blocks.*",)),
    nets.FlexibleUNet: ("segmentation_head", ("encoder._blocks.*",)),
    nets.BasicUNet: ("final_conv", ("conv_0", "down_1", "down_2", "down_3", "down_4")),
    nets.VNet: ("out_tr", ("in_tr", "down_tr32", "down_tr64", "down_tr128", "down_tr256")),
}
"""MONAI's networks whose modules have fixed names."""

AS_OURS: dict[type[nn.Module], type] = {
    nets.UNet: UNet,
    nets.DynUNet: DynUNet,
    nets.SegResNet: SegResNet,
    nets.SwinUNETR: SwinUNETR,
}
"""MONAI's networks to our own subclass of each, whose properties find the two parts in either."""


def name_parts(network: nn.Module, head: str | None = None, stages: Sequence[str] = ()) -> nn.Module:
    """Give a network the attributes `head`, its last layer, and `feature_layers`, the stages of its encoder.

    What it has under these names stays, unless another module is named here. Nothing is added to its tensors, and its
    outputs stay the same bits. A network that MONAI doesn't bring has neither unless they are named.

    Args:
        network: Changed in place.
        head: Name of a module, as in ``named_modules``; None takes the one that is known of MONAI's network.
        stages: Names of modules whose outputs are maps (B, C, *spatial), in the order in which they run; none takes
            those that are known.

    Raises:
        SettingsError: If there is no module of a name.
    """
    named = next((named for kind, named in BY_NAME.items() if isinstance(network, kind)), ("", ()))
    ours = next((ours for kind, ours in AS_OURS.items() if isinstance(network, kind)), None)
    if head or not isinstance(getattr(network, "head", None), nn.Module):
        part = None if ours is None else vars(ours)["head"].fget(network)
        if head or named[0]:
            (part,) = _modules(network, [head or named[0]], "head")
        if part is not None:
            object.__setattr__(network, "head", part)  # by torch's way its tensors would be there under two names
    if stages or not getattr(network, "feature_layers", None):
        layers = _modules(network, stages or named[1], "stages")
        if not layers and ours is not None:
            layers = vars(ours)["feature_layers"].fget(network)
        if layers:
            object.__setattr__(network, "feature_layers", layers)
            out_of_place(network)
    return network


def _modules(network: nn.Module, names: Sequence[str], what: str) -> list[nn.Module]:
    """The modules of some names.

    Raises:
        SettingsError: If one is not there.
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
                f"network {type(network).__name__} has no module '{name}', which is named as its {what}: expected a "
                f"name as in `named_modules()`; at the top there are: {there}. Correct the name.",
                network=type(network).__name__,
                name=name,
                part=what,
                known=[child_name for child_name, _ in network.named_children()],
            ) from None
    return modules
