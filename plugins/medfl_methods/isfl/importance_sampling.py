"""Importance sampling over classes: sensitivity of a model to each class, and the resulting sampling distribution."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from medfl.toolkit.fisher import MAX_GRADIENT_ENTRIES
from medfl.types import Tensors

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Type of a loss function, which maps logits (B, num_classes) and labels (B,) of B images to a scalar."""


def sampling_distribution(
    p: torch.Tensor, p_local: torch.Tensor, lipschitz: torch.Tensor, sigma: float
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Return the class distribution that a site should sample, given how much the gradients of each class change.

    L_c is the Lipschitz constant of class c (see `class_lipschitz`). Over the C classes that the site has: CL_c = 1 - C
    L_c^2 / sum L^2, alpha = CL / ||CL||, and q = p + Gamma alpha. Gamma is the smallest positive value of (p_c - sigma
    p_local_c) / (-alpha_c): the distance that q can move in this direction until it reaches sigma p_local.

    The printed formula is not always defined and not always a distribution. If all L are equal or any is not finite, q
    = p. Without a positive candidate Gamma = 0. q is at least sigma p_local. Classes that the site lacks get 0 and are
    left out of C, sums and norms. Finally q is scaled to sum 1.

    Args:
        p: Target distribution of the classes, shape (C,), >= 0; the values of the site's classes are scaled to sum 1.
        p_local: Class distribution of the site, shape (C,), sum 1.
        lipschitz: L of each class, shape (C,), >= 0; values of classes that the site lacks are ignored.
        sigma: Lower limit of q as a fraction of `p_local`, in [0, 1].

    Returns:
        q, shape (C,), float64, sum 1; the weight q / p_local of an image of each class, 0 for a class that the site
        lacks; and Gamma.

    Source: Zhu, Shi, Fan, Peng, Letaief, IEEE Internet of Things Journal 2024, as their released code computes it.
    """
    is_local_class = p_local > 0
    local, values = p_local[is_local_class].double(), lipschitz[is_local_class].double()
    target = p[is_local_class].double()
    target = target / target.sum() if target.sum() > 0 else local
    direction, gamma = _direction(values), 0.0
    candidates = (target - sigma * local) / -direction  # infinite or NaN where the direction is 0
    candidates = candidates[candidates.isfinite() & (candidates > 0)]
    best = target
    if len(candidates):
        gamma = float(candidates.min())
        best = torch.maximum(target + gamma * direction, sigma * local)
    q, weights = torch.zeros(len(p), dtype=torch.float64), torch.zeros(len(p), dtype=torch.float64)
    q[is_local_class] = best / best.sum()
    weights[is_local_class] = q[is_local_class] / local
    return q, weights, gamma


def _direction(values: torch.Tensor) -> torch.Tensor:
    """Return alpha, of length 1 and sum 0; zeros if all values are equal or any is not finite."""
    if not values.isfinite().all() or bool((values == values[0]).all()):
        return torch.zeros_like(values)
    squares = (values / values.max()).square()  # the scale cancels; it avoids overflow
    steps = 1 - len(values) * squares / squares.sum()
    return steps / steps.norm()


def class_lipschitz(
    model: nn.Module,
    loss: Loss,
    before: Tensors,
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    num_classes: int,
) -> torch.Tensor:
    """Return a lower bound of the Lipschitz constant of an image's loss gradient over a training, by class.

    L_c is the largest ||g(after) - g(before)|| / ||after - before|| over the images of class c. g is the gradient of
    one image's loss, and the norms are over all trainable parameters jointly. Both gradients use the buffers of the
    trained model, so that they belong to the same function.

    Args:
        model: Trained model. It is evaluated in evaluation mode and returned to its previous mode.
        loss: Loss of a batch; it is called for one image at a time.
        before: Trainable parameters before the training, by name, on the model's device.
        batches: Images (B, C, *spatial) and labels (B,). The gradients of a batch, or of fewer images for a large
            network, are in memory at once.
        num_classes: Number of classes.

    Returns:
        Constants of shape (num_classes,), float64, on the CPU; 0 for a class without images, and for all classes if no
        parameter has changed.
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

        per_image_gradients = vmap(grad(loss_of), in_dims=(None, 0, 0))
        chunk = max(1, MAX_GRADIENT_ENTRIES // max(1, sum(p.numel() for p in after.values())))
        for images, labels in batches:
            images, labels = images.to(moved.device), labels.to(moved.device)
            for x, y in zip(images[:, None].split(chunk), labels[:, None].split(chunk), strict=True):
                old, new = per_image_gradients(start, x, y), per_image_gradients(after, x, y)
                slopes = (_norms({name: new[name] - old[name] for name in new}) / moved).cpu()
                largest.scatter_reduce_(0, y[:, 0].cpu(), slopes, "amax")
    finally:
        for module, mode in training.items():
            module.training = mode
    return largest


def _norms(parts: Tensors) -> torch.Tensor:
    """Return the L2 norm of each row over all tensors jointly, float64."""
    return torch.stack([part.flatten(1).double().square().sum(1) for part in parts.values()]).sum(0).sqrt()


def draw_probe_rows(labels: torch.Tensor, probe: int, generator: torch.Generator) -> torch.Tensor:
    """Draw row numbers of training images for the measurement of gradients, balanced by class.

    Each class that occurs gives equally many rows, or all of its rows if it has fewer.

    Args:
        labels: Class labels of all rows, shape (n,), n >= 1.
        probe: Total number of rows, >= 1; at least one of each class is drawn.
        generator: Random stream.
    """
    classes = labels.unique()
    each = max(1, probe // len(classes))
    order = torch.randperm(len(labels), generator=generator)
    return torch.cat([order[labels[order] == label][:each] for label in classes])
