"""Networks for samples that are vectors of F values, such as rows of a clinical table; B is the size of a batch."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import nn

from medfl.errors import SettingsError

NORMS = ("none", "batch", "layer")
"""Names of the normalisation layers that may follow each hidden layer, for `MLP`."""


class Linear(nn.Module):
    """One linear layer: logistic regression, Cox model or linear regression, depending on the loss.

    The layer is the head, so a method that keeps heads at the sites shares no tensor of this network.

    Args:
        in_features: Number of values of a sample, F, >= 1.
        out_features: Number of outputs, >= 1: one logit per class or finding, a risk, or one output per predicted
            value.

    Attributes:
        body: The identity.
        head: Linear layer from samples to outputs (B, out_features).

    Raises:
        SettingsError: If an argument is too small.
    """

    def __init__(self, in_features: int, out_features: int = 1) -> None:
        super().__init__()
        _check_minima("Linear", in_features=in_features, out_features=out_features)
        self.body = nn.Identity()
        self.head = nn.Linear(in_features, out_features)

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        """Compute outputs (B, out_features) of samples (B, in_features)."""
        outputs: torch.Tensor = self.head(self.body(samples))
        return outputs


class MLP(nn.Module):
    """Multilayer perceptron: hidden layers with normalisation, ReLU and dropout, and a linear output layer.

    Args:
        in_features: Number of values of a sample, F, >= 1.
        out_features: Number of outputs, >= 1: one logit per class or finding, a risk, or one output per predicted
            value.
        widths: Widths of the hidden layers, first to last, each >= 1; at least one.
        norm: One of `NORMS`. A batch of one sample can't be trained with "batch".
        dropout: Dropout rate of each hidden layer, 0 <= dropout < 1; 0 omits the layer.

    Attributes:
        body: Hidden layers, from samples to features (B, widths[-1]).
        head: Last layer, from features to outputs (B, out_features).
        feature_layers: Hidden layers, in order; their outputs are vectors.

    Raises:
        SettingsError: If an argument is invalid.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int = 1,
        widths: Sequence[int] = (64, 32),
        norm: str = "none",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        _check_minima("MLP", in_features=in_features, out_features=out_features, widths=min(widths, default=0))
        if norm not in NORMS:
            raise SettingsError(
                "unknown_choice",
                f"MLP expected norm to be one of {', '.join(NORMS)}, got {norm!r}",
                network="MLP",
                what="norm",
                choice=norm,
                known=NORMS,
            )
        if not 0 <= dropout < 1:
            raise SettingsError(
                "setting_out_of_range",
                f"MLP expected 0 <= dropout < 1, got {dropout}",
                network="MLP",
                setting="dropout",
                found=dropout,
            )
        stages: OrderedDict[str, nn.Module] = OrderedDict()
        before = in_features
        for number, width in enumerate(widths, start=1):
            stages[f"stage{number}"] = _stage(before, width, norm, dropout)
            before = width
        self.body = nn.Sequential(stages)
        self.head = nn.Linear(before, out_features)

    __jit_unused_properties__ = ("feature_layers",)  # TorchScript has no lists of modules

    @property
    def feature_layers(self) -> list[nn.Module]:
        """Hidden layers, whose outputs are features."""
        return list(self.body.children())

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        """Compute outputs (B, out_features) of samples (B, in_features)."""
        outputs: torch.Tensor = self.head(self.body(samples))
        return outputs


def _stage(before: int, width: int, norm: str, dropout: float) -> nn.Sequential:
    """Return a hidden layer with normalisation, ReLU and dropout."""
    parts: OrderedDict[str, nn.Module] = OrderedDict(fc=nn.Linear(before, width))
    if norm != "none":
        parts["norm"] = nn.BatchNorm1d(width) if norm == "batch" else nn.LayerNorm(width)
    parts["relu"] = nn.ReLU()
    if dropout > 0:
        parts["dropout"] = nn.Dropout(dropout)
    return nn.Sequential(parts)


def _check_minima(name: str, **values: int) -> None:
    """Raise if an argument is below 1."""
    for what, value in values.items():
        if value < 1:
            raise SettingsError(
                "setting_out_of_range",
                f"{name} expected {what} >= 1, got {value}",
                network=name,
                setting=what,
                minimum=1,
                found=value,
            )
