"""Diagonal of the empirical Fisher information: how much a model's predictions depend on each parameter."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Literal

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from medfl.contract import Site
from medfl.types import Tensors

MAX_GRADIENT_ENTRIES = 16_000_000
"""Maximum number of per-image gradient entries in memory at once: 64 MB in float32."""

Estimator = Literal["per_sample", "per_batch"]
"""Estimator of the Fisher information: squares of per-image gradients, or of the mean gradient of each batch."""


def fisher(
    model: nn.Module,
    names: Collection[str],
    images: torch.Tensor,
    labels: torch.Tensor,
    estimator: Estimator = "per_sample",
    batch_size: int = 32,
) -> Tensors:
    """Compute the diagonal of the empirical Fisher information, the mean squared gradient of the log-likelihood.

    Args:
        model: Model that maps images to logits. It is evaluated in evaluation mode and its modes are restored.
        names: Names of the parameters.
        images: Images (n, C, *spatial), n >= 1, on the model's device.
        labels: True labels (n,); with true labels the Fisher information is the empirical one.
        estimator: ``per_sample`` squares each image's gradient. ``per_batch`` squares the gradient of each batch's mean
            loss and weights it by the batch's size, as some released code does. Its result is smaller by about the
            batch size, and gradients of opposite signs cancel.
        batch_size: Batch size of ``per_batch``, and the maximum number of images whose gradients are computed at once,
            >= 1.

    Returns:
        Mapping from each name to values >= 0 of the parameter's shape, on the model's device.

    Source: Kirkpatrick et al., PNAS 2017; squares of per-sample gradients as in Kunstner et al., NeurIPS 2019.
    """
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        wanted = {name: p.detach() for name, p in model.named_parameters() if name in set(names)}
        rest = {name: t.detach() for name, t in model.state_dict().items() if name not in wanted}
        squares = {name: torch.zeros_like(p) for name, p in wanted.items()}

        def loss(parameters: Tensors, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(functional_call(model, (parameters, rest), (x,)), y)

        if estimator == "per_batch":
            for x, y in zip(images.split(batch_size), labels.split(batch_size), strict=True):
                for name, gradient in grad(loss)(wanted, x, y).items():
                    squares[name] += len(y) * gradient.square()
        else:
            own = vmap(grad(loss), in_dims=(None, 0, 0))
            chunk = max(1, min(batch_size, MAX_GRADIENT_ENTRIES // max(1, sum(p.numel() for p in wanted.values()))))
            for x, y in zip(images.split(chunk), labels.split(chunk), strict=True):
                for name, gradients in own(wanted, x[:, None], y[:, None]).items():
                    squares[name] += gradients.square().sum(dim=0)
    finally:
        for module, mode in training.items():
            module.training = mode
    return {name: total / len(labels) for name, total in squares.items()}


def fisher_at(
    site: Site, model: nn.Module, names: Collection[str], most: int | None = None, estimator: Estimator = "per_sample"
) -> Tensors:
    """Compute `fisher` on a site's training images without augmentation, one batch at a time.

    Args:
        site: The site with its data, task and settings; it has at least one training image.
        model: Model that maps images to logits.
        names: Names of the parameters.
        most: Number of images drawn for the estimate, with a new draw in each round, >= 1; None uses all images.
        estimator: ``per_sample`` squares each image's gradient, ``per_batch`` the gradient of each batch's mean loss;
            batches have the run's `batch_size`.

    Returns:
        Values by parameter name, as in `fisher`.
    """
    drawn = torch.randperm(len(site.train), generator=site.rng("fisher"))[:most]
    means: Tensors = {}
    for rows in drawn.split(site.settings.batch_size):
        images, labels = (part.to(site.task.device) for part in site.train.batch(rows))
        for name, values in fisher(model, names, images, labels, estimator, len(rows)).items():
            part = values * (len(rows) / len(drawn))
            means[name] = means[name] + part if name in means else part
    return means


def split_mask(information: Tensors, share: float) -> tuple[Tensors, Tensors]:
    """Split all coordinates of the parameters into personal ones, with the largest Fisher information, and global ones.

    Args:
        information: Fisher information by parameter name, as from `fisher`.
        share: Share of the coordinates of all parameters together that are personal: none with 0, all with 1. Ties are
            resolved by name and position.

    Returns:
        The personal mask and its complement: each maps every name to a boolean tensor of the parameter's shape.
    """
    names = sorted(information)
    flat = torch.cat([information[name].reshape(-1) for name in names])
    count = min(math.ceil(share * len(flat) - 1e-9), len(flat))
    personal = torch.zeros(len(flat), dtype=torch.bool, device=flat.device)
    personal[flat.argsort(descending=True, stable=True)[:count]] = True
    parts = personal.split([information[name].numel() for name in names])
    mask = {name: part.reshape(information[name].shape) for name, part in zip(names, parts, strict=True)}
    return mask, {name: ~part for name, part in mask.items()}
