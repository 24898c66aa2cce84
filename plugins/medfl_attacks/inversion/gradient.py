"""Attacks by gradient descent: search for the image in [0, 1] that explains what was seen and is smooth as images are.

Three things can be explained: a part of an image that was shared (He et al., ACSAC 2019), the update that a site sends
(Geiping et al., NeurIPS 2020), and a trained model, whose classes are looked for (Fredrikson et al., CCS 2015).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn

from medfl.privacy.release import Release
from medfl.types import Tensors

Tick = Callable[[], None]
"""Called after each step, for a bar of progress."""

RATE = 0.05
"""Step of Adam at the start, in units of images in [0, 1]; it falls to 0 along a cosine."""


SMOOTHNESS = 1e-3
"""Weight of the total variation where nothing is noised."""


def still() -> None:
    """No progress to show."""


def total_variation(images: torch.Tensor) -> torch.Tensor:
    """Mean absolute difference of neighbouring cells, summed over the axes.

    Args:
        images: (B, C, *spatial).

    Returns:
        (B,), >= 0; 0 for even images and for axes of one cell.

    Example:
        >>> total_variation(torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]]))
        tensor([1.])
    """
    axes = [axis for axis in range(2, images.dim()) if images.shape[axis] > 1]
    differences = [images.diff(dim=axis).abs().flatten(1).mean(dim=1) for axis in axes]
    return torch.stack(differences).sum(dim=0) if differences else images.new_zeros(len(images))


def descend(
    loss: Callable[[torch.Tensor], torch.Tensor],
    start: torch.Tensor,
    steps: int,
    *,
    signed: bool = False,
    tick: Tick = still,
) -> torch.Tensor:
    """Minimise a loss over images in [0, 1] with Adam; each image keeps the best place that it came across.

    Args:
        loss: Maps images (B, C, *spatial) to (B,), where the loss of an image depends on no other image, or to (1,).
        start: (B, C, *spatial), in [0, 1].
        steps: >= 1.
        signed: Go by the sign of the gradient alone, as Geiping et al. do.
        tick: Called after each step.

    Returns:
        (B, C, *spatial), without a gradient.
    """
    images = start.detach().clone().requires_grad_()
    optimizer = torch.optim.Adam([images], lr=RATE)
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
        tick()
    return best


def invert_items(
    items: torch.Tensor,
    part: nn.Module,
    release: Release | None,
    usual: torch.Tensor,
    smoothness: float,
    steps: int,
    tick: Tick = still,
) -> torch.Tensor:
    """The images whose shared part is most like what was sent: least mean (sent(x') - item)^2 + smoothness TV(x' - u).

    The usual image u, where the descent begins, is what the attacker takes for likely without any item. With an even
    one this is the plain total variation of x'; with a mean image, items that tell nothing lead back to that.

    Args:
        items: What was sent, (B, C, *spatial).
        part: The shared part of images, which everybody knows.
        release: Its clip is part of what the attacker imitates; None for items without one.
        usual: (C, *spatial), in [0, 1].
        smoothness: Weight of the total variation, >= 0. `smoothness_for` has one that suits the noise.
        steps: Of the descent.
        tick: Called after each step.

    Returns:
        (B, C, *spatial), in [0, 1].
    """

    def loss(images: torch.Tensor) -> torch.Tensor:
        sent = _clipped(part(images), release)
        return (sent - items).square().flatten(1).mean(dim=1) + smoothness * total_variation(images - usual)

    return descend(loss, usual.expand_as(items), steps, tick=tick)


def smoothness_for(variance: float) -> float:
    """A weight of the total variation that suits the noise of items: 1.2 of its standard deviation, at least 0.001.

    The weight at which total variation takes away Gaussian noise best grows with the standard deviation; the factor was
    found on PneumoniaMNIST and BloodMNIST.
    """
    return max(SMOOTHNESS, 1.2 * variance**0.5)


def _clipped(parts: torch.Tensor, release: Release | None) -> torch.Tensor:
    """Parts as a release clips them, in a form that has a gradient."""
    if release is None or release.clip is None:
        return parts
    order = {"l1": 1, "l2": 2}[release.norm]
    norms = torch.linalg.vector_norm(parts.flatten(1), order, dim=1).clamp(min=1e-12)
    return parts * (release.clip / norms).clamp(max=1).view(-1, *[1] * (parts.dim() - 1))


def gradients(
    model: nn.Module,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    seen: torch.Tensor,
    labels: torch.Tensor,
) -> Tensors:
    """The gradient of a batch's loss by the name of each parameter; it can be differentiated by the images.

    Args:
        model: Maps images as networks see them to logits.
        loss: Of logits (B, classes) and labels (B,), a scalar.
        seen: (B, C, *spatial), as the network sees images.
        labels: (B,), int64.
    """
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    tensors = torch.autograd.grad(
        loss(model(seen), labels), list(named.values()), create_graph=True, materialize_grads=True
    )
    return dict(zip(named, tensors, strict=True))


def invert_update(
    update: Tensors,
    gradient: Callable[[torch.Tensor], Tensors],
    start: torch.Tensor,
    smoothness: float,
    steps: int,
    tick: Tick = still,
) -> torch.Tensor:
    """The images of the batch whose gradient points where an update came from (Geiping et al. 2020, equation 4).

    Least 1 - cos(gradient(x'), -update) + smoothness TV(x'), by signed steps. The labels are known to the attacker.

    Args:
        update: By name of the parameter; what `gradient` has beside that is not looked at.
        gradient: Maps images in [0, 1], (B, C, *spatial), to the gradient of the loss by name.
        start: (B, C, *spatial), in [0, 1].
        smoothness: Weight of the total variation, >= 0.
        steps: Of the descent.
        tick: Called after each step.

    Returns:
        (B, C, *spatial), in [0, 1].
    """
    towards = {name: -tensor.to(start) for name, tensor in update.items()}
    size = _inner(towards, towards).sqrt()

    def loss(images: torch.Tensor) -> torch.Tensor:
        grads = gradient(images)
        likeness = _inner(grads, towards) / (size * _inner(grads, grads, towards).sqrt()).clamp(min=1e-30)
        return (1 - likeness + smoothness * total_variation(images).mean()).view(1)

    return descend(loss, start, steps, signed=True, tick=tick)


def _inner(first: Tensors, other: Tensors, names: Iterable[str] | None = None) -> torch.Tensor:
    """The inner product over all tensors of `names`, by default those of `other`, without a copy of any."""
    return torch.stack([(first[name] * other[name]).sum() for name in names or other]).sum()


def invert_classes(
    logits: Callable[[torch.Tensor], torch.Tensor],
    start: torch.Tensor,
    smoothness: float,
    steps: int,
    tick: Tick = still,
) -> torch.Tensor:
    """An image of each class by the model alone: greatest log p(class \\| x') - smoothness TV(x').

    Args:
        logits: Maps images in [0, 1] to logits (B, classes).
        start: (classes, C, *spatial), in [0, 1]; image c becomes one of class c.
        smoothness: Weight of the total variation, >= 0.
        steps: Of the ascent.
        tick: Called after each step.

    Returns:
        (classes, C, *spatial), in [0, 1].
    """
    classes = torch.arange(len(start), device=start.device)

    def loss(images: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(logits(images), classes, reduction="none") + (
            smoothness * total_variation(images)
        )

    return descend(loss, start, steps, tick=tick)
