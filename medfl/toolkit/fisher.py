"""The diagonal of the empirical Fisher information: which parameters a model's predictions hang on."""

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

CHUNK_NUMBERS = 16_000_000
"""Numbers in the per-sample gradients that are in memory at once (64 MB)."""

Estimator = Literal["per_sample", "per_batch"]
"""How gradients are squared: each image's own, which is the Fisher information, or each batch's mean (see `fisher`)."""


def fisher(
    model: nn.Module,
    names: Collection[str],
    images: torch.Tensor,
    labels: torch.Tensor,
    estimator: Estimator = "per_sample",
    batch_size: int = 32,
) -> Tensors:
    """The diagonal of the empirical Fisher information: the mean squared gradient of the log-likelihood of the labels.

    Args:
        model: Maps images to logits. It is looked at in evaluation mode and left as it was.
        names: The parameters in question, by name.
        images: Shape (n, C, *spatial), n >= 1, on the model's device.
        labels: Shape (n,): the true ones, so this is the empirical Fisher information.
        estimator: ``per_sample`` squares each image's gradient. ``per_batch`` squares the gradient of each batch's mean
            loss and weighs it with the batch's size, as some released code does: smaller by about the batch's size, and
            signs cancel.
        batch_size: Images in a batch of ``per_batch``, and the most whose gradients are computed at once, >= 1.

    Returns:
        Name to values >= 0, of the shape of the parameter, on the model's device.

    Source: Kirkpatrick et al., PNAS 2017; the squares of single gradients as in Kunstner et al., NeurIPS 2019.
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
            chunk = max(1, min(batch_size, CHUNK_NUMBERS // max(1, sum(p.numel() for p in wanted.values()))))
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
    """`fisher` on a site's training images as they are, a batch at a time.

    Args:
        site: Gives data, task and settings; with at least one training image.
        model: As in `fisher`.
        names: As in `fisher`.
        most: Images that are drawn anew in each round, >= 1; None takes all.
        estimator: As in `fisher`; batches are of the run's `batch_size`.

    Returns:
        As `fisher`.
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
    """Which coordinates stay personal, and which are global: each is exactly one of both.

    Args:
        information: Of each parameter, as from `fisher`.
        share: Of the coordinates of all parameters together, those with the largest information are personal: none with
            0, all with 1. Of equal ones the first by name and position are taken.

    Returns:
        Name to bool, of the shape of the parameter: the personal mask, and its complement.
    """
    names = sorted(information)
    flat = torch.cat([information[name].reshape(-1) for name in names])
    count = min(math.ceil(share * len(flat) - 1e-9), len(flat))
    personal = torch.zeros(len(flat), dtype=torch.bool, device=flat.device)
    personal[flat.argsort(descending=True, stable=True)[:count]] = True
    parts = personal.split([information[name].numel() for name in names])
    mask = {name: part.reshape(information[name].shape) for name, part in zip(names, parts, strict=True)}
    return mask, {name: ~part for name, part in mask.items()}
