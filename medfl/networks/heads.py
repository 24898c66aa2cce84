"""Classifier heads of one or two linear layers, and random widths for heads that differ between sites."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import nn

from medfl.errors import SettingsError

Activation = Literal["none", "relu"]
"""Activation after a head's hidden layer: ``none`` or ``relu``."""


class TwoLayerHead(nn.Module):
    """Head with Linear(features, hidden), dropout, and Linear(hidden, num_classes).

    Args:
        features: Number of features of the body, >= 1.
        hidden: Width of the hidden layer, >= 1.
        num_classes: Number of classes, >= 2.
        dropout: Dropout rate of the hidden layer, in [0, 1).
        activation: Activation after the hidden layer: ``none`` as in FedSDC, or ``relu``.

    Attributes:
        hidden: First linear layer.
        act: Activation after the hidden layer.
        dropout: Dropout after the activation.
        out: Second linear layer, to the logits.
    """

    def __init__(
        self, features: int, hidden: int, num_classes: int, dropout: float = 0.2, activation: Activation = "none"
    ) -> None:
        super().__init__()
        self.hidden = nn.Linear(features, hidden)
        self.act = nn.ReLU() if activation == "relu" else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(hidden, num_classes)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Compute logits (B, num_classes) of features (B, features)."""
        logits: torch.Tensor = self.out(self.dropout(self.act(self.hidden(features))))
        return logits


def make_head(
    features: int, width: int, num_classes: int, dropout: float = 0.2, activation: Activation = "none"
) -> nn.Module:
    """Create a `TwoLayerHead` with a hidden layer of the given width, or a single linear layer for width 0."""
    if width == 0:
        return nn.Linear(features, num_classes)
    return TwoLayerHead(features, width, num_classes, dropout, activation)


class HeadKind(NamedTuple):
    """Arguments of `make_head` besides the numbers of features and classes."""

    width: int
    """Width of the hidden layer; 0 for a head of one linear layer."""
    dropout: float = 0.2
    """Dropout rate of the hidden layer."""
    activation: Activation = "none"
    """Activation after the hidden layer."""


def head_kind(head: nn.Module) -> HeadKind:
    """Return the arguments with which `make_head` creates a head like the given one.

    Raises:
        SettingsError: If `make_head` can't create this kind of head.
    """
    if isinstance(head, nn.Linear):
        return HeadKind(0)
    if isinstance(head, TwoLayerHead):
        return HeadKind(head.out.in_features, head.dropout.p, "relu" if isinstance(head.act, nn.ReLU) else "none")
    raise SettingsError(
        "unsupported_head",
        f"expected a linear head or a TwoLayerHead, got {type(head).__name__}. Choose another network.",
        found=type(head).__name__,
    )


def initialise_xavier(head: nn.Module) -> nn.Module:
    """Initialise all linear layers of a head in place: Xavier's normal weights from torch's generator, zero biases."""
    for module in head.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_normal_(module.weight)
            nn.init.zeros_(module.bias)
    return head


def draw_head_widths(count: int, features: int, low: float, high: float, generator: torch.Generator) -> list[int]:
    """Draw the widths int(rho_i features) of `count` heads, one rho_i from each of `count` equal parts of [low, high].

    Each rho_i is uniform in its part.

    Args:
        count: Number of heads, >= 1.
        features: Number of features of the body, >= 1.
        low: Smallest share, > 0.
        high: Largest share, >= `low`.
        generator: Random generator.

    Returns:
        Widths of the heads, ascending, each >= 1.

    Raises:
        SettingsError: If the shares are invalid.

    Source: Gao, Lan, Liu, Wang, Fan, MICCAI 2025: rho in [0.4, 1]; stratified as in the released code.
    """
    if not 0 < low <= high:
        raise SettingsError(
            "setting_out_of_range",
            f"expected shares 0 < low <= high for the widths of heads, got {low} and {high}",
            low=low,
            high=high,
        )
    places = torch.arange(count, dtype=torch.float64) + torch.rand(count, dtype=torch.float64, generator=generator)
    shares = low + (high - low) * places / count
    return [max(int(share * features), 1) for share in shares.tolist()]
