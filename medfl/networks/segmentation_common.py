"""Common parts of MONAI's segmentation networks in medfl: `unet`, `dynunet`, `segresnet` and `swinunetr`.

Each is a subclass of MONAI's class of the same name, with the same tensors under the same names and the same logits.
Weights of MONAI's model zoo can be loaded, and a site's exported weights fit MONAI's class. No activation works in
place, which forward and backward hooks require. MONAI's residual blocks add in place, so networks with them can't be
trained with Opacus. The `head` is the last layer, and the body is the rest. The `feature_layers` are the encoder's
stages from the image to the bottleneck, whose outputs are feature maps. Networks with the same number of stages can be
compared, even with different widths.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.instancenorm import _InstanceNorm

from medfl.errors import SettingsError
from medfl.networks.resnet_blocks import LayerSpec

EdgeLengths = int | Sequence[int]
"""One number for all axes, or one per axis."""


@contextmanager
def convert_monai_errors(name: str) -> Iterator[None]:
    """Convert MONAI's errors about invalid arguments within the block to a `SettingsError` that names the network."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AssertionError) as error:
        text = " ".join(str(error).split())
        raise SettingsError(
            "network_not_buildable",
            f"{name} can't be built with its options: {text}. Correct them.",
            network=name,
            reason=text,
        ) from error


def monai_layer(layer: LayerSpec) -> str | tuple[object, ...]:
    """Return the name or specification of a layer in the form that MONAI expects.

    JSON has a list instead of a tuple.
    """
    return layer if isinstance(layer, str) else tuple(layer)


def disable_inplace(network: nn.Module) -> None:
    """Turn off in-place activations in the network: an activation must not overwrite the output of a stage."""
    for module in network.modules():
        if hasattr(module, "inplace"):
            module.inplace = False  # type: ignore[assignment]


def finalize_network(network: nn.Module, size: EdgeLengths | None, strides: Sequence[int]) -> None:
    """Turn off in-place activations, in place, and raise if images are too small or not divisible by the strides.

    Args:
        network: The network; changed in place.
        size: Size of the images, one edge or one per axis; None skips the check.
        strides: Total stride along each axis.
    """
    disable_inplace(network)
    if size is None:
        return
    name = type(network).__name__
    edges = [size] * len(strides) if isinstance(size, int) else list(size)
    if len(edges) != len(strides):
        raise SettingsError(
            "wrong_edge_count",
            f"{name} expected one size or {len(strides)} of them, got {edges}",
            network=name,
            expected=len(strides),
            found=edges,
        )
    if any(edge < 1 or edge % stride for edge, stride in zip(edges, strides, strict=True)):
        raise SettingsError(
            "edges_not_multiples",
            f"{name} expected images with edges that are multiples of {list(strides)} (its total stride), got "
            f"{edges}. Pad or crop the images, or choose fewer levels.",
            network=name,
            expected=list(strides),
            found=edges,
        )
    single = math.prod(edges) == math.prod(strides)
    if single and any(isinstance(module, _InstanceNorm) for module in network.modules()):
        raise SettingsError(
            "single_voxel_bottom",
            f"{name} expected larger images: with {edges} its bottleneck has one voxel, for which instance "
            "normalisation is undefined. Use larger images, fewer levels, or norm 'batch'.",
            network=name,
            found=edges,
        )
