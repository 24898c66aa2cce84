"""What MONAI's networks for masks have in common here: `unet`, `dynunet`, `segresnet` and `swinunetr`.

Each is MONAI's class of the same name with the same tensors under the same names, and gives the same logits: the zoo's
weights fit, and what a site takes home fits into MONAI's. No activation works in place, which hooks could not bear; but
MONAI's residual blocks add in place, so networks with them can't be trained with Opacus. The `head` is the last layer,
and the body all the rest. The `feature_layers` are the stages of the encoder from the image to the bottleneck, whose
outputs are maps; networks of as many stages can be compared whatever their widths.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.instancenorm import _InstanceNorm

from medfl.errors import SettingsError
from medfl.networks.resnet_blocks import LayerSpec

Edges = int | Sequence[int]
"""One number for all axes, or one for each."""


@contextmanager
def refusals(name: str) -> Iterator[None]:
    """Say what MONAI says against an argument as an error in settings."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AssertionError) as error:
        text = " ".join(str(error).split())
        raise SettingsError(
            "network_not_buildable",
            f"{name} can't be built as its options say: {text}. Correct them.",
            network=name,
            reason=text,
        ) from error


def layer_spec(layer: LayerSpec) -> str | tuple[object, ...]:
    """A layer as MONAI takes it; from JSON it comes as a list."""
    return layer if isinstance(layer, str) else tuple(layer)


def out_of_place(network: nn.Module) -> None:
    """Let no activation overwrite its input, which may be what a stage gave."""
    for module in network.modules():
        if hasattr(module, "inplace"):
            module.inplace = False  # type: ignore[assignment]


def make_ready(network: nn.Module, size: Edges | None, strides: Sequence[int]) -> None:
    """Let no activation work in place, and refuse images that its levels can't halve."""
    out_of_place(network)
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
            f"{name} expected images with edges that are multiples of {list(strides)} (its strides multiplied), got "
            f"{edges}. Pad or crop them, or choose fewer levels.",
            network=name,
            expected=list(strides),
            found=edges,
        )
    single = math.prod(edges) == math.prod(strides)
    if single and any(isinstance(module, _InstanceNorm) for module in network.modules()):
        raise SettingsError(
            "single_voxel_bottom",
            f"{name} expected larger images: of {edges} its bottom has one voxel, over which instance normalisation "
            "has no spread. Use larger images, fewer levels, or norm 'batch'.",
            network=name,
            found=edges,
        )
