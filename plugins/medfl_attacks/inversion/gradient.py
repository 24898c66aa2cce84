"""Inversion by gradient descent: search for a smooth image in [0, 1] that explains the observed information.

The information is the shared part of an image (He et al., ACSAC 2019), the update of a site (Geiping et al., NeurIPS
2020), or a class of a trained model (Fredrikson et al., CCS 2015).

An item is the shared part of an image as a site sent it, possibly clipped and with noise. Shapes: B images or items
with C channels; ``*spatial`` stands for two or three axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn

from medfl.privacy.release import ImageRelease
from medfl.types import Tensors

StepCallback = Callable[[], None]
"""Callback after each step, for a progress bar."""

INITIAL_LEARNING_RATE = 0.05
"""Initial learning rate of Adam for images in [0, 1]; a cosine schedule reduces it to 0."""


DEFAULT_SMOOTHNESS = 1e-3
"""Default weight of the total variation, for information without noise."""


def ignore_step() -> None:
    """Do nothing; the default of `on_step`, for callers without a progress bar."""


def total_variation(images: torch.Tensor) -> torch.Tensor:
    """Return the mean absolute difference of neighbouring cells, summed over the axes.

    Args:
        images: (B, C, *spatial).

    Returns:
        (B,), >= 0; 0 for constant images. Axes of one cell are ignored.

    Example:
        >>> total_variation(torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]]))
        tensor([1.])
    """
    axes = [axis for axis in range(2, images.dim()) if images.shape[axis] > 1]
    differences = [images.diff(dim=axis).abs().flatten(1).mean(dim=1) for axis in axes]
    return torch.stack(differences).sum(dim=0) if differences else images.new_zeros(len(images))


def minimize_over_images(
    loss: Callable[[torch.Tensor], torch.Tensor],
    start: torch.Tensor,
    steps: int,
    *,
    signed: bool = False,
    on_step: StepCallback = ignore_step,
) -> torch.Tensor:
    """Minimize a loss over images in [0, 1] with Adam, and return for each image the iterate with the smallest loss.

    Args:
        loss: Maps images (B, C, *spatial) to losses (B,), where the loss of an image depends on no other image, or to
            one joint loss (1,).
        start: Initial images, (B, C, *spatial), in [0, 1].
        steps: Number of steps, >= 1.
        signed: Whether to use only the sign of the gradient, as Geiping et al. do.
        on_step: Callback after each step.

    Returns:
        (B, C, *spatial), detached from the graph.
    """
    images = start.detach().clone().requires_grad_()
    optimizer = torch.optim.Adam([images], lr=INITIAL_LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    best, least = start.detach().clone(), start.new_full((len(start),), torch.inf)
    for _ in range(steps):
        values = loss(images)
        (gradient,) = torch.autograd.grad(values.sum(), images)
        better = (values.detach() < least).expand(len(start))
        best[better], least = images.detach()[better], torch.where(better, values.detach(), least)
        images.grad = gradient.sign() if signed else gradient
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            images.clamp_(0, 1)
        on_step()
    return best


def invert_items(
    items: torch.Tensor,
    part: nn.Module,
    release: ImageRelease | None,
    prior: torch.Tensor,
    smoothness: float,
    steps: int,
    on_step: StepCallback = ignore_step,
) -> torch.Tensor:
    """Find the images whose shared part is closest to the observed items.

    Minimizes mean (sent(x') - item)^2 + smoothness TV(x' - u) over images x', where sent(x') is the clipped shared part
    and TV the total variation. The prior image u is the attacker's best guess without
    the item, and the start of the descent. If u is constant, this is the ordinary total variation of x'. If u is a mean
    image, items without information lead back to it.

    Args:
        items: Observed items, (B, C, *spatial).
        part: Network that computes the shared part of images; it is public.
        release: Settings with which the sites clipped and noised items before sending them. The attacker imitates the
            clipping; None for items that were not clipped.
        prior: Prior image u, (C, *spatial), in [0, 1].
        smoothness: Weight of the total variation, >= 0. `smoothness_for` returns a weight that suits the noise.
        steps: Steps of the descent.
        on_step: Callback after each step.

    Returns:
        (B, C, *spatial), in [0, 1].
    """

    def loss(images: torch.Tensor) -> torch.Tensor:
        sent = _clip_parts(part(images), release)
        return (sent - items).square().flatten(1).mean(dim=1) + smoothness * total_variation(images - prior)

    return minimize_over_images(loss, prior.expand_as(items), steps, on_step=on_step)


def smoothness_for(variance: float) -> float:
    """Return a weight of the total variation that suits the noise of items.

    The weight is 1.2 times the standard deviation of the noise, at least 0.001: the best weight for removing Gaussian
    noise by total variation is proportional to the standard deviation. The factor was found on PneumoniaMNIST and
    BloodMNIST.

    Args:
        variance: Variance of the noise.
    """
    return max(DEFAULT_SMOOTHNESS, 1.2 * variance**0.5)


def _clip_parts(parts: torch.Tensor, release: ImageRelease | None) -> torch.Tensor:
    """Clip parts as a release does, in a differentiable form."""
    if release is None or release.clip is None:
        return parts
    order = {"l1": 1, "l2": 2}[release.norm]
    norms = torch.linalg.vector_norm(parts.flatten(1), order, dim=1).clamp(min=1e-12)
    return parts * (release.clip / norms).clamp(max=1).view(-1, *[1] * (parts.dim() - 1))


def batch_gradient(
    model: nn.Module,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    inputs: torch.Tensor,
    labels: torch.Tensor,
) -> Tensors:
    """Return the gradient of a batch's loss for each parameter name.

    The gradient is differentiable with respect to the images.

    Args:
        model: Network that maps normalised images to logits.
        loss: Maps logits (B, classes) and labels (B,) to a scalar.
        inputs: Normalised images, (B, C, *spatial).
        labels: Labels, (B,), int64.
    """
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    tensors = torch.autograd.grad(
        loss(model(inputs), labels), list(named.values()), create_graph=True, materialize_grads=True
    )
    return dict(zip(named, tensors, strict=True))


def invert_update(
    update: Tensors,
    gradient: Callable[[torch.Tensor], Tensors],
    start: torch.Tensor,
    smoothness: float,
    steps: int,
    on_step: StepCallback = ignore_step,
) -> torch.Tensor:
    """Find the images of a batch whose gradient is parallel to a site's update (Geiping et al. 2020, equation 4).

    Minimizes 1 - cos(gradient(x'), -update) + smoothness TV(x') with signed steps. The attacker knows the labels.

    Args:
        update: Maps each parameter name to its update. Parameters that are missing here are ignored.
        gradient: Maps images in [0, 1], (B, C, *spatial), to the gradient of the loss by parameter name.
        start: Initial images, (B, C, *spatial), in [0, 1].
        smoothness: Weight of the total variation, >= 0.
        steps: Steps of the descent.
        on_step: Callback after each step.

    Returns:
        (B, C, *spatial), in [0, 1].
    """
    towards = {name: -tensor.to(start) for name, tensor in update.items()}
    size = _inner_product(towards, towards).sqrt()

    def loss(images: torch.Tensor) -> torch.Tensor:
        grads = gradient(images)
        likeness = _inner_product(grads, towards) / (size * _inner_product(grads, grads, towards).sqrt()).clamp(
            min=1e-30
        )
        return (1 - likeness + smoothness * total_variation(images).mean()).view(1)

    return minimize_over_images(loss, start, steps, signed=True, on_step=on_step)


def _inner_product(first: Tensors, other: Tensors, names: Iterable[str] | None = None) -> torch.Tensor:
    """Return the inner product over all tensors of `names`, without copying a tensor.

    By default these are all tensors of `other`.
    """
    return torch.stack([(first[name] * other[name]).sum() for name in names or other]).sum()


def invert_classes(
    logits: Callable[[torch.Tensor], torch.Tensor],
    start: torch.Tensor,
    smoothness: float,
    steps: int,
    on_step: StepCallback = ignore_step,
) -> torch.Tensor:
    """Find an image of each class from the model alone.

    Maximizes log p(class given x') - smoothness TV(x').

    Args:
        logits: Maps images in [0, 1] to logits (B, classes).
        start: Initial images, (classes, C, *spatial), in [0, 1]; image c becomes an image of class c.
        smoothness: Weight of the total variation, >= 0.
        steps: Steps of the ascent.
        on_step: Callback after each step.

    Returns:
        (classes, C, *spatial), in [0, 1].
    """
    classes = torch.arange(len(start), device=start.device)

    def loss(images: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(logits(images), classes, reduction="none") + (
            smoothness * total_variation(images)
        )

    return minimize_over_images(loss, start, steps, on_step=on_step)
