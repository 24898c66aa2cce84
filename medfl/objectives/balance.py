"""Balancing of unequal class sizes at a site: class weights in the loss, or sampling of all classes equally often."""

from __future__ import annotations

import copy

import torch
from torch import nn

from medfl.errors import SettingsError


def class_weights(labels: torch.Tensor, num_classes: int) -> torch.Tensor:
    """Return the weight n / (K n_c) of each class c, for n images, n_c of them in class c, and K occurring classes.

    The mean weight over the images is 1.

    Args:
        labels: Class numbers (n,), int64.
        num_classes: Number of classes of the task.

    Returns:
        Weights (num_classes,), float32; all 1 if all classes have the same size, 0 for a class without images.
    """
    counts = torch.bincount(labels, minlength=num_classes).double()
    occur = counts > 0
    weights = torch.where(occur, len(labels) / (occur.sum().clamp(min=1) * counts.clamp(min=1)), 0.0)
    return weights.float()


def weighted_loss(loss: nn.Module, labels: torch.Tensor, num_classes: int, device: str = "cpu") -> nn.Module:
    """Return a copy of a loss with the `class_weights` of a site.

    Args:
        loss: Loss module with an attribute ``weight`` that is None, as `torch.nn.CrossEntropyLoss` has.
        labels: Labels of the site's training images, shape (n,).
        num_classes: Number of classes.
        device: Device on which the loss is computed.

    Raises:
        SettingsError: If the loss supports no class weights, or already has some.
    """
    if not hasattr(loss, "weight"):
        raise SettingsError(
            "loss_not_supported",
            f"balance 'loss' needs a loss with class weights, such as torch.nn.CrossEntropyLoss; got "
            f"{type(loss).__name__}. Choose balance 'sampling', which works with any loss.",
            setting="balance",
            loss=type(loss).__name__,
        )
    if loss.weight is not None:
        raise SettingsError(
            "duplicate_class_weights",
            "balance 'loss' would replace the class weights of the bundle's loss. Remove one of the two.",
            setting="balance",
        )
    weighted = copy.deepcopy(loss)
    vars(weighted).pop("weight", None)
    weighted.register_buffer("weight", class_weights(labels, num_classes).to(device))  # moves with the loss
    return weighted


def sampling_weights(labels: torch.Tensor) -> torch.Tensor:
    """Return image weights with which all occurring classes are drawn equally often; shape (n,), float64."""
    return class_weights(labels, int(labels.max()) + 1 if len(labels) else 1).double()[labels]
