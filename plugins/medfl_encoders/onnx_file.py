"""Read the weights of a ViT-S/14 from an ONNX file, through the optional package ``onnx``.

The exporter has transposed the matrices of linear layers and replaced their names by numbers. They are recognised by
the name of the node that uses them. Nothing in the file is executed.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from medfl.errors import SettingsError
from medfl.types import Tensors

BACKBONE = "backbone."
"""Prefix of the names of the encoder's tensors; other tensors belong to another model's decoder."""


def read_vit(path: Path) -> Tensors:
    """Return the tensors of the encoder in an ONNX file, with the names of Hugging Face's package transformers.

    Args:
        path: Path of the file.

    Raises:
        SettingsError: If the package ``onnx`` is not installed, or the position embeddings are not unique.
    """
    try:
        import onnx
        from onnx import numpy_helper
    except ImportError:
        raise SettingsError(
            "missing_package",
            f"The weights '{path.name}' are an ONNX file: expected the package onnx. Install it: pip install onnx",
            package="onnx",
            path=path,
        ) from None
    graph = onnx.load(str(path), load_external_data=False).graph
    arrays = {part.name: torch.from_numpy(numpy_helper.to_array(part).copy()) for part in graph.initializer}
    tensors = {name: tensor for name, tensor in arrays.items() if name.startswith(BACKBONE)}
    for node in graph.node:
        for name in node.input:
            if node.op_type == "MatMul" and name in arrays and name not in tensors:
                tensors[_linear_layer(node) + ".weight"] = arrays[name].T.contiguous()
    positions = _position_embeddings(graph.node, arrays)
    tensors[BACKBONE + "embeddings.position_embeddings"] = torch.cat(positions, dim=1)
    return tensors


def _linear_layer(node: Any) -> str:
    """Return the name of the layer of a node, such as ``backbone.layer`` of ``/backbone/layer/MatMul``."""
    return ".".join(node.name.strip("/").split("/")[:-1])


def _position_embeddings(nodes: Iterable[Any], arrays: Tensors) -> list[torch.Tensor]:
    """Return the position embeddings (1, 1, d) of the class token and (1, N, d) of the patches.

    The exporter has split them: the nodes of the embeddings use them under names that are numbers.
    """
    used = {
        name
        for node in nodes
        for name in node.input
        if node.name.startswith("/backbone/embeddings/") and name in arrays and not name.startswith(BACKBONE)
    }
    embeddings = sorted((arrays[name] for name in used), key=lambda tensor: tensor.shape[1] if tensor.dim() == 3 else 0)
    if len(embeddings) != 2 or any(tensor.dim() != 3 for tensor in embeddings):
        raise SettingsError(
            "wrong_tensor_names",
            f"expected two position embeddings in the ONNX file, of the class token and of the patches, got "
            f"{[tuple(tensor.shape) for tensor in embeddings]}",
            expected=2,
            found=len(embeddings),
        )
    return embeddings
