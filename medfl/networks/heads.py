"""Classifiers of two linear layers, and how wide to make several unlike ones."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import nn

from medfl.errors import SettingsError

Activation = Literal["none", "relu"]


class TwoLayerHead(nn.Module):
    """Linear(features, hidden), dropout, Linear(hidden, num_classes).

    Args:
        features: Of the body that it stands on, >= 1.
        hidden: Width of the layer between, >= 1.
        num_classes: Number of classes, >= 2.
        dropout: Share of the layer between that is dropped in training, in [0, 1).
        activation: ``none`` as in FedSDC, or ``relu`` after the first layer.
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
        """Logits (B, num_classes) of features (B, features)."""
        logits: torch.Tensor = self.out(self.dropout(self.act(self.hidden(features))))
        return logits


def make_head(
    features: int, width: int, num_classes: int, dropout: float = 0.2, activation: Activation = "none"
) -> nn.Module:
    """A `TwoLayerHead` of a width, or for width 0 a single linear layer."""
    if width == 0:
        return nn.Linear(features, num_classes)
    return TwoLayerHead(features, width, num_classes, dropout, activation)


class HeadKind(NamedTuple):
    """What a head is made with beside its numbers of features and classes; see `make_head`."""

    width: int
    dropout: float = 0.2
    activation: Activation = "none"


def kind_of(head: nn.Module) -> HeadKind:
    """With what `make_head` makes such a head.

    Raises:
        SettingsError: If it makes none of that kind.
    """
    if isinstance(head, nn.Linear):
        return HeadKind(0)
    if isinstance(head, TwoLayerHead):
        return HeadKind(head.out.in_features, head.dropout.p, "relu" if isinstance(head.act, nn.ReLU) else "none")
    raise SettingsError(
        "unsupported_head",
        f"expected a linear head or a TwoLayerHead, got {type(head).__name__}: choose another network",
        found=type(head).__name__,
    )


def xavier(head: nn.Module) -> nn.Module:
    """Give every linear layer of a head Xavier's normal weights and no bias, in place, from torch's generator."""
    for module in head.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_normal_(module.weight)
            nn.init.zeros_(module.bias)
    return head


def unlike_widths(count: int, features: int, low: float, high: float, generator: torch.Generator) -> list[int]:
    """Widths int(rho_i features) of `count` heads, rho_i uniform in the i-th of `count` equal parts of [low, high].

    Args:
        count: Number of heads, >= 1.
        features: Of the body, >= 1.
        low: Smallest share, > 0.
        high: Largest share, >= `low`.
        generator: Source of randomness.

    Returns:
        A width for each head, ascending, each >= 1.

    Raises:
        SettingsError: If the shares are impossible.

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
