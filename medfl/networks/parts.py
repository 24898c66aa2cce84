"""Body and head of a network, identified by attribute and never by a substring of a parameter's name.

The head is the classifier, the network's attribute `head`. The body, its attribute `body`, computes features from
images. B is the number of images of a batch, and d the number of features.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import nn

from medfl.errors import SettingsError
from medfl.utils.text import names_and_more


def head_names(model: nn.Module, network: str) -> list[str]:
    """Return the state-dict names of a network's head.

    Args:
        model: Network with a `head`, its classifier.
        network: Name of the network, for the message.

    Raises:
        SettingsError: If the network has no `head`.
    """
    head = getattr(model, "head", None)
    if not isinstance(head, nn.Module):
        raise SettingsError(
            "missing_head",
            f"Network '{network}' ({type(model).__name__}) has no `head`: expected its classifier under that name, "
            "and a `body` that returns features. Add both, or choose a network that has them.",
            network=network,
            type=type(model).__name__,
        )
    held = {id(tensor) for tensor in [*head.parameters(), *head.buffers()]}
    return [name for name, tensor in model.state_dict(keep_vars=True).items() if id(tensor) in held]


def names_without_head(model: nn.Module, names: list[str]) -> list[str]:
    """Return the given state-dict names without the names of the head's tensors.

    Raises:
        SettingsError: If the network has no `head`.
    """
    head = set(head_names(model, type(model).__name__))
    return [name for name in names if name not in head]


def feature_count(model: nn.Module, network: str) -> int:
    """Return the number of features of a network's body, which is the input size of its head's first linear layer.

    Raises:
        SettingsError: If the network has no body, its head has no linear layer, or parameters belong to neither.
    """
    head = head_names(model, network)
    parts = model.head.modules() if isinstance(model.head, nn.Module) else ()
    first = next((part for part in parts if isinstance(part, nn.Linear)), None)
    if not isinstance(getattr(model, "body", None), nn.Module) or first is None:
        raise SettingsError(
            "missing_feature_layer",
            f"Network '{network}' ({type(model).__name__}): expected a module `body` that returns features, and a "
            f"`head` with a linear layer, got a head of type {type(model.head).__name__}. Choose a network that has "
            "both.",
            network=network,
            type=type(model).__name__,
            found=type(model.head).__name__,
        )
    inside = {id(parameter) for parameter in body_and_head(model)[0].parameters()}
    outside = [name for name, p in model.named_parameters() if name not in set(head) and id(p) not in inside]
    if outside:
        raise SettingsError(
            "stray_parameters",
            f"Network '{network}' ({type(model).__name__}) has parameters in neither `body` nor `head`: "
            f"{names_and_more(outside, 3)}. Expected logits to be head(body(images)). Choose another network.",
            network=network,
            names=outside,
        )
    return first.in_features


class SplitNetwork(nn.Module):
    """Network that combines a body with any head.

    Args:
        body: Module from images to features (B, d).
        head: Module from features to logits (B, num_classes).

    Attributes:
        body: The argument `body`.
        head: The argument `head`.
    """

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, head

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Compute logits (B, num_classes) of images (B, C, *spatial)."""
        logits: torch.Tensor = self.head(self.body(images))
        return logits


def body_and_head(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    """Return the modules `body` and `head` of a network that has both."""
    return model.body, model.head  # type: ignore[return-value]


def features_and_logits(model: nn.Module, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute a network's features (B, d) and logits of images, in one forward pass.

    Args:
        model: Network that equals head(body(images)). Methods with the requirement ``linear_head`` get such networks.
        images: Images (B, C, *spatial).
    """
    body, head = body_and_head(model)
    features = body(images)
    return features.flatten(1), head(features)


def single_linear(model: nn.Module, network: str, why: str) -> tuple[nn.Linear, str]:
    """Return a network's head, which must be one linear layer with a bias, and the prefix of its state-dict names.

    Args:
        model: Network with a `head`.
        network: Name of the network, for the message.
        why: Reason for the requirement, for the message.

    Raises:
        SettingsError: If the head is not a single linear layer with a bias.
    """
    path = head_prefix(model, network)
    head = body_and_head(model)[1]
    if not isinstance(head, nn.Linear) or head.bias is None:
        raise SettingsError(
            "unsupported_head",
            f"{why}: expected one linear layer with a bias as the head of network '{network}', got "
            f"{type(head).__name__}. Choose a network that has it.",
            network=network,
            found=type(head).__name__,
        )
    return head, path


def replace_head(network: nn.Module, head: nn.Module) -> nn.Module:
    """Replace the network's head in place, under the same name, and return the network.

    Raises:
        SettingsError: If the network has no head.
    """
    own = getattr(network, "head", None)
    for module in network.modules():
        for name, child in module.named_children():
            if child is own:
                setattr(module, name, head)
                return network
    raise SettingsError(
        "missing_head",
        f"expected a network with a `head`, got a {type(network).__name__} without one",
        network=type(network).__name__,
    )


def head_prefix(model: nn.Module, network: str) -> str:
    """Return the prefix of the state-dict names of a network's head, for example ``fc.``.

    Args:
        model: Network with a `head`.
        network: Name of the network, for the message.

    Raises:
        SettingsError: If the network has no `head`.
    """
    head_names(model, network)  # raises a readable error if there is no head
    return next(f"{path}." for path, module in model.named_modules() if module is model.head)


def mlp(
    features: int, widths: Sequence[int], outputs: int, norm: bool = True, dropout: Sequence[float] = ()
) -> nn.Module:
    """Create a multilayer perceptron: linear layers with ReLU, and optionally batch norm and dropout, between them.

    Args:
        features: Number of inputs, >= 1.
        widths: Widths of the hidden layers, first to last.
        outputs: Number of outputs of the last layer.
        norm: Whether each hidden layer is followed by batch norm.
        dropout: Dropout rates after the hidden layers, first to last; layers without a rate have no dropout.
    """
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    for number, width in enumerate(widths, start=1):
        parts[f"fc{number}"] = nn.Linear(features, width)
        if norm:
            parts[f"norm{number}"] = nn.BatchNorm1d(width)
        parts[f"relu{number}"] = nn.ReLU()
        if number <= len(dropout):
            parts[f"dropout{number}"] = nn.Dropout(dropout[number - 1])
        features = width
    parts["out"] = nn.Linear(features, outputs)
    return nn.Sequential(parts)
