"""Importance sampling over classes: how sensitive a model is to each class, and how often each should be drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from medfl.toolkit.fisher import CHUNK_NUMBERS
from medfl.types import Tensors

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Maps logits (B, num_classes) and labels (B,) to a scalar."""


def sampling_distribution(
    p: torch.Tensor, p_local: torch.Tensor, lipschitz: torch.Tensor, sigma: float
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """How often a site should draw each class, given how much the gradient of each moves.

    Over the C classes that the site has: CL_c = 1 - C L_c^2 / sum L^2, alpha = CL / ||CL||, and q = p + Gamma alpha,
    where Gamma is the least positive of (p_c - sigma p_local_c) / (-alpha_c): how far q can go that way until it meets
    sigma p_local. Where the formula as printed has no value, or none that is a distribution: with all L equal, or any
    not finite, q = p; with no positive candidate Gamma = 0; q is no less than sigma p_local; classes that the site
    lacks get 0 and have no part in C, sums and norms. In the end q sums to 1.

    Args:
        p: The wanted shares of the classes, shape (C,), >= 0; those of the site's classes are scaled to sum to 1.
        p_local: The site's own shares, shape (C,), sum 1.
        lipschitz: L of each class, shape (C,), >= 0; those of classes that the site lacks don't matter.
        sigma: The least that q may be, as a part of `p_local`, in [0, 1].

    Returns:
        q, shape (C,), float64, sum 1; the weight q / p_local of an image of each class, 0 for a class that the site
        lacks; and Gamma.

    Source: Zhu, Shi, Fan, Peng, Letaief, IEEE Internet of Things Journal 2024, as their released code computes it.
    """
    here = p_local > 0
    local, values = p_local[here].double(), lipschitz[here].double()
    wanted = p[here].double()
    wanted = wanted / wanted.sum() if wanted.sum() > 0 else local
    direction, gamma = _direction(values), 0.0
    candidates = (wanted - sigma * local) / -direction  # infinite or nan where the direction is 0
    candidates = candidates[candidates.isfinite() & (candidates > 0)]
    best = wanted
    if len(candidates):
        gamma = float(candidates.min())
        best = torch.maximum(wanted + gamma * direction, sigma * local)
    q, weights = torch.zeros(len(p), dtype=torch.float64), torch.zeros(len(p), dtype=torch.float64)
    q[here] = best / best.sum()
    weights[here] = q[here] / local
    return q, weights, gamma


def _direction(values: torch.Tensor) -> torch.Tensor:
    """alpha: of length 1 and sum 0; zeros where all values are equal or any is not finite."""
    if not values.isfinite().all() or bool((values == values[0]).all()):
        return torch.zeros_like(values)
    squares = (values / values.max()).square()  # the scale cancels, and can't overflow
    steps = 1 - len(values) * squares / squares.sum()
    return steps / steps.norm()


def class_lipschitz(
    model: nn.Module,
    loss: Loss,
    before: Tensors,
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    num_classes: int,
) -> torch.Tensor:
    """How much the gradient of an image's loss changed over a training, by class: a lower bound of its Lipschitz
    constant.

    L_c is the largest ||g(after) - g(before)|| / ||after - before|| over the images of class c, where g is the
    gradient of one image's loss, and the norms are over all trainable parameters jointly. Buffers are those of the
    trained model in both gradients, so that they are of one function.

    Args:
        model: The trained model. It is looked at in evaluation mode and left as it was.
        loss: Of a batch; it is asked for one image at a time.
        before: Its trainable parameters before the training, by name, on its device.
        batches: Images (B, C, *spatial) and labels (B,). The gradients of a batch are in memory at once, or of fewer
            images if the network is large.
        num_classes: Number of classes.

    Returns:
        Shape (num_classes,), float64, on the CPU; 0 for a class without images, and for all if nothing has moved.
    """
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        after = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
        rest = {name: t.detach() for name, t in model.state_dict().items() if name not in after}
        start = {name: before[name] for name in after}
        largest = torch.zeros(num_classes, dtype=torch.float64)
        moved = _norms({name: (after[name] - start[name])[None] for name in after})
        if not bool(moved > 0):
            return largest

        def loss_of(parameters: Tensors, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return loss(functional_call(model, (parameters, rest), (x,)), y)

        own = vmap(grad(loss_of), in_dims=(None, 0, 0))
        chunk = max(1, CHUNK_NUMBERS // max(1, sum(p.numel() for p in after.values())))
        for images, labels in batches:
            images, labels = images.to(moved.device), labels.to(moved.device)
            for x, y in zip(images[:, None].split(chunk), labels[:, None].split(chunk), strict=True):
                old, new = own(start, x, y), own(after, x, y)
                slopes = (_norms({name: new[name] - old[name] for name in new}) / moved).cpu()
                largest.scatter_reduce_(0, y[:, 0].cpu(), slopes, "amax")
    finally:
        for module, mode in training.items():
            module.training = mode
    return largest


def _norms(parts: Tensors) -> torch.Tensor:
    """L2 norm over all parts jointly, of each row; float64."""
    return torch.stack([part.flatten(1).double().square().sum(1) for part in parts.values()]).sum(0).sqrt()


def probe_rows(labels: torch.Tensor, probe: int, generator: torch.Generator) -> torch.Tensor:
    """Rows of a class-wise subsample: of each class that occurs as many, up to all of it.

    Args:
        labels: Shape (n,), n >= 1.
        probe: How many in all, >= 1; at least one of each class is taken.
        generator: Draws them.
    """
    classes = labels.unique()
    each = max(1, probe // len(classes))
    order = torch.randperm(len(labels), generator=generator)
    return torch.cat([order[labels[order] == label][:each] for label in classes])
