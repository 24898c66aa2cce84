"""Inversion attacks on each of the three targets: shared images, the update of a site, the global model.

An opened run is a finished run with everything that an attack needs, such as data, method and models. A feature
generator splits an image into a shared part and a rest: ``x_s`` is the shared part, ``x_p`` the shared part as it was
sent, clipped and with noise. Shapes: n images with C channels; ``*spatial`` stands for two or three axes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import nn

from medfl.data.pooled import labels_of
from medfl.engine.filters import Filters
from medfl.engine.filters import decode as decode_update
from medfl.engine.secure.fixed_point import FixedPoint
from medfl.engine.secure.masks import add_mask
from medfl.engine.secure.weights import clip_of
from medfl.privacy.gaussian import clip_by_norm
from medfl.privacy.policy import policy_of
from medfl.settings import SecureAggregation
from medfl.task import ImageScale
from medfl.types import MODEL_PREFIX, Dataset, Tensors
from medfl.utils.rng import SecretStream, make_generator
from medfl.utils.wire import prefixed, select
from medfl_attacks.inversion.decoder import decode, invert_by_fixed_point, train_decoder
from medfl_attacks.inversion.gradient import (
    StepCallback,
    batch_gradient,
    ignore_step,
    invert_classes,
    invert_items,
    invert_update,
    smoothness_for,
)
from medfl_attacks.inversion.reconstructions import AttackReconstruction, InversionFindings, evaluate_reconstruction

if TYPE_CHECKING:
    from medfl_attacks.open_run import OpenedRun

NEAREST_CHUNK = 256
"""Number of training images that are compared with a reconstructed class at a time."""

MAX_UPDATES = 4
"""Largest number of attacked updates: each needs its own optimization with second derivatives of the network."""

CLASS_SMOOTHNESS_FACTOR = 100.0
"""Factor by which attacks on classes multiply the weight of the total variation, which makes images smooth.

These attacks maximize a log probability, whose values are larger than squared errors.
"""

GREY_VALUE = 0.5
"""Value of the prior image if the attacker has no auxiliary images."""


@dataclass(frozen=True)
class InversionSetup:
    """Images under attack, the attacker's knowledge and the settings of the optimization.

    Attributes:
        truth: Images under attack, (n, C, *spatial), in [0, 1].
        labels: Labels of the images under attack, (n,), known to the attacker.
        auxiliary: The attacker's images of the same kind from another source, (N, C, *spatial), in [0, 1]; N may be 0.
        training: All training images of the run, for comparisons with reconstructed classes.
        batch: Number of images in an update.
        steps: Steps of each optimization.
        smoothness: Weight of the total variation.
        seed: Seed of all random numbers.
        on_step: Callback after each step.
    """

    truth: torch.Tensor
    labels: torch.Tensor
    auxiliary: torch.Tensor
    training: Dataset
    batch: int
    steps: int
    smoothness: float
    seed: int
    on_step: StepCallback = ignore_step

    @property
    def prior(self) -> torch.Tensor:
        """The image (C, *spatial) that an attacker guesses without any information.

        It is the mean of the auxiliary images, or grey without auxiliary images.
        """
        return self.auxiliary.mean(dim=0) if len(self.auxiliary) else torch.full_like(self.truth[0], GREY_VALUE)

    def generator(self, label: str) -> torch.Generator:
        """Return a random generator for one purpose, seeded with the seed and the label of the purpose."""
        return make_generator(self.seed, "inversion", label)

    def noise(self, *key: str | int) -> SecretStream:
        """Return a stream of random numbers for privacy noise with the same distribution as in the run.

        Its values differ from the sites' noise, because the attacker does not know their secrets.
        """
        return SecretStream(b"medfl attacks: no secret", self.seed, *key)


def raw_images(data: Dataset, rows: torch.Tensor, scale: ImageScale) -> torch.Tensor:
    """Return the images at some row numbers of a data set, with values in [0, 1], (n, C, *spatial)."""
    return scale.to_images(data.batch(rows)[0]).clamp(0, 1)


def _mean_image_baseline(setup: InversionSetup, item: str, truth: torch.Tensor) -> AttackReconstruction:
    """Return the baseline result: the attacker's mean image as a guess of each image."""
    return evaluate_reconstruction("mean_image", item, setup.prior.cpu(), truth)


def _class_names(opened: OpenedRun, labels: torch.Tensor) -> tuple[str, ...]:
    """Return the class names of labels."""
    return tuple(opened.classes[label] if opened.classes else str(label) for label in labels.tolist())


# ---- shared images


def attack_shared_images(opened: OpenedRun, setup: InversionSetup) -> InversionFindings:
    """Reconstruct images from their shared part, without noise (``x_s``) and as it was sent (``x_p``)."""
    released = opened.released()
    assert released is not None
    part, truth = released.part.eval().to(opened.task.device), setup.truth.cpu()
    release = released.releases[0]  # all copies have the same clipping, and all or none have noise
    with torch.no_grad():
        x_s = torch.cat([part(image) for image in setup.truth.split(1)])
    results = [evaluate_reconstruction("none", "raw", truth, truth), _mean_image_baseline(setup, "none", truth)]
    shown = {"private part x_r": truth - x_s.cpu(), "shared part x_s": x_s.cpu()}
    notes: list[str] = []
    makers: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"x_s": part}
    sent = {"x_s": x_s}
    if release.noise != "none" or release.clip is not None:
        stream = setup.noise("decoder")
        makers["x_p"] = lambda images: released.sent(part(images), stream)
        sent["x_p"] = released.sent(x_s, setup.noise("items"))
        shown["sent x_p"] = sent["x_p"].cpu()
    else:
        notes.append("This run neither clipped nor noised the shared images: the sites sent x_s itself.")
    if len(released.releases) > 1:
        notes.append(
            f"Each image was sent in {len(released.releases)} copies. The attacker averages the copies, weighted by "
            f"their precision: the noise of the mean has the variance {released.variance:.3g}, that of the copies "
            f"{' and '.join(f'{release.variance:.3g}' for release in released.releases)}."
        )
    if not len(setup.auxiliary):
        notes.append("No site has validation images, so no decoder was trained, and the mean image is grey.")
    for item, items in sent.items():
        known = release if item == "x_p" else None
        smoothness = max(setup.smoothness, smoothness_for(released.variance)) if known else setup.smoothness
        images = invert_items(items, part, known, setup.prior, smoothness, setup.steps, setup.on_step)
        results.append(evaluate_reconstruction("gradient", item, images, truth))
        if len(setup.auxiliary):
            generator = setup.generator(f"decoder {item}")
            decoder = train_decoder(setup.auxiliary, makers[item], setup.steps, generator, setup.on_step)
            results.append(evaluate_reconstruction("decoder", item, decode(decoder, items), truth))
        images, converged = invert_by_fixed_point(items, part, on_step=setup.on_step)
        results.append(evaluate_reconstruction("fixed_point", item, images, truth, converged.cpu()))
    return InversionFindings(
        target="shared",
        truth=truth,
        names=_class_names(opened, setup.labels),
        shown=shown,
        reconstructions=tuple(results),
        sent=list(sent)[-1],
        notes=tuple(notes),
    )


# ---- updates


def plan_updates(images: int, batch: int) -> tuple[int, int]:
    """Return how many updates are attacked, at most `MAX_UPDATES`, and with how many images each.

    Args:
        images: Number of images under attack.
        batch: Number of images in an update.

    Returns:
        Number of updates, and number of images in them.
    """
    count = min(MAX_UPDATES, -(-images // batch))
    return count, min(images, count * batch)


def attack_updates(opened: OpenedRun, setup: InversionSetup) -> InversionFindings:
    """Reconstruct images from the update that a site would send for one plain step from the run's last global model."""
    rows = torch.linspace(0, len(setup.truth) - 1, plan_updates(len(setup.truth), setup.batch)[1]).round().long()
    images_, labels_ = setup.truth[rows], setup.labels[rows]
    scale, truth = _scale(opened), images_.cpu()
    model = copy.deepcopy(opened.model()).eval()
    learned = model.state_dict().keys()  # without frozen parameters, whose gradients never leave a site
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in learned)
    generator = setup.generator("update")
    reconstructed = []
    for number, (images, labels) in enumerate(zip(images_.split(setup.batch), labels_.split(setup.batch), strict=True)):

        def gradient(guess: torch.Tensor, labels: torch.Tensor = labels) -> Tensors:
            return batch_gradient(model, opened.task.loss, scale.to_inputs(guess), labels)

        update = _sent_update(opened, model, images, labels, setup, number)
        noise = torch.randn(images.shape, generator=generator).to(images.device)
        start = (setup.prior + 0.1 * noise).clamp(0, 1)
        guess = invert_update(update, gradient, start, setup.smoothness, setup.steps, setup.on_step)
        reconstructed.append(_reorder_to_match(guess.cpu(), images.cpu()))
    results = (
        _mean_image_baseline(setup, "none", truth),
        evaluate_reconstruction("gradient", "update", torch.cat(reconstructed), truth),
    )
    return InversionFindings(
        target="update",
        truth=truth,
        names=_class_names(opened, labels_),
        shown={},
        reconstructions=results,
        sent="update",
        notes=_update_notes(opened),
    )


def _scale(opened: OpenedRun) -> ImageScale:
    """Return the scale of the task's images, which is not None here."""
    assert opened.task.scale is not None
    return opened.task.scale


def _sent_update(
    opened: OpenedRun, model: nn.Module, images: torch.Tensor, labels: torch.Tensor, setup: InversionSetup, number: int
) -> Tensors:
    """Compute the update of one plain step with the run's learning rate, after the run's filters.

    Privacy noise, the mask of secure aggregation and quantisation are applied as in the run.
    """
    settings, task, policy = opened.settings, opened.task, policy_of(opened.settings)
    seen = _scale(opened).to_inputs(images)
    if policy.noises_training:
        size = max(len(site.train) for site in opened.sites.values())
        release, privacy = policy.release(size), policy.privacy
        assert release is not None
        assert privacy is not None
        std = release.sigma * privacy.clip
        each = [
            clip_by_norm(_detach(batch_gradient(model, task.loss, seen[i : i + 1], labels[i : i + 1])), privacy.clip)
            for i in range(len(images))
        ]
        stream = setup.noise("samples", number)
        mean = {
            name: (sum(grads[name] for grads in each) + std * stream.normal(tuple(first.shape)).to(first)) / len(images)
            for name, first in each[0].items()
        }
    else:
        mean = _detach(batch_gradient(model, task.loss, seen, labels))
    rate = task.optimizer([nn.Parameter(torch.zeros(1))]).param_groups[0]["lr"]
    update = {name: -rate * tensor.cpu() for name, tensor in mean.items()}
    secure = settings.secure_aggregation
    if secure is not None:
        return mask_update(update, secure, clip_of(settings), setup.noise("mask", number))
    filters = Filters({MODEL_PREFIX: "update"}, {}, settings, settings.rounds)
    leaves = filters.outgoing(
        prefixed(update, MODEL_PREFIX),
        {},
        site="under attack",
        stream_factory=lambda payload: setup.noise("update", number, payload),
    )
    return select(decode_update(*leaves)[0], MODEL_PREFIX)


def _detach(tensors: Tensors) -> Tensors:
    """Detach tensors from the graph."""
    return {name: tensor.detach() for name, tensor in tensors.items()}


def _reorder_to_match(guess: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Reorder reconstructed images so that they match the true images best, because a batch has no order."""
    costs = (guess.unsqueeze(0) - truth.unsqueeze(1)).square().flatten(2).mean(dim=2)
    _, order = linear_sum_assignment(costs.nan_to_num(1.0).numpy())
    return guess[torch.as_tensor(order)]


def _update_notes(opened: OpenedRun) -> tuple[str, ...]:
    """Return sentences on the assumptions of the attack on updates."""
    privacy, compression = opened.settings.privacy, opened.settings.compression
    notes = [
        "This is a worst case: the update of one plain gradient step on very few images, with the network in "
        "evaluation mode and labels that the attacker knows. The update of a whole round, over many images and steps, "
        "reveals less."
    ]
    if opened.settings.secure_aggregation is not None:
        notes.append(
            "The attacker sees the update with its secure-aggregation mask, as the server does. The sum of all updates "
            "was not attacked."
        )
    elif privacy is not None:
        notes.append(
            f"The update was clipped and noised as in the run (unit '{privacy.unit}', epsilon {privacy.epsilon:g})."
        )
    if compression is not None:
        notes.append(f"The update was quantised to {compression.bits} bits, as in the run.")
    return tuple(notes)


# ---- the model


def attack_model(opened: OpenedRun, setup: InversionSetup) -> InversionFindings:
    """Reconstruct an image of each class from the global model.

    The images are compared with the class's training images: with their mean, and with the nearest one.
    """
    scale, model = _scale(opened), copy.deepcopy(opened.model()).eval().requires_grad_(False)
    classes = labels_of(setup.training).unique()
    noise = torch.randn(opened.task.objective.classes, *scale.shape, generator=setup.generator("model"))
    start = (GREY_VALUE + 0.05 * noise).clamp(0, 1).to(setup.truth.device)

    def logits(images: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = model(scale.to_inputs(images))
        return out

    guesses = invert_classes(
        logits, start, CLASS_SMOOTHNESS_FACTOR * setup.smoothness, setup.steps, setup.on_step
    ).cpu()[classes]
    means_and_nearest = [
        _class_mean_and_nearest(setup.training, int(label), guess, scale)
        for label, guess in zip(classes, guesses, strict=True)
    ]
    means, nearest = (torch.stack(images) for images in zip(*means_and_nearest, strict=True))
    results = [
        result
        for item, truth in (("class mean", means), ("nearest image", nearest))
        for result in (
            evaluate_reconstruction("gradient", item, guesses, truth),
            _mean_image_baseline(setup, item, truth),
        )
    ]
    notes = ("The nearest image is the training image of the class that is closest to the reconstructed image.",)
    return InversionFindings(
        target="model",
        truth=means,
        names=_class_names(opened, classes),
        shown={"nearest training image": nearest},
        reconstructions=tuple(results),
        notes=notes,
    )


def _class_mean_and_nearest(
    data: Dataset, label: int, guess: torch.Tensor, scale: ImageScale
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean image of a class, and its training image that is nearest to a reconstruction.

    The distance is the squared error.
    """
    rows = (labels_of(data) == label).nonzero(as_tuple=True)[0]
    total, least, nearest = torch.zeros_like(guess), torch.inf, guess
    for some in rows.split(NEAREST_CHUNK):
        images = raw_images(data, some, scale)
        total += images.sum(dim=0)
        distances = (images - guess).square().flatten(1).mean(dim=1)
        place = int(distances.argmin())
        if float(distances[place]) < least:
            least, nearest = float(distances[place]), images[place]
    return total / len(rows), nearest


def mask_update(update: Tensors, secure: SecureAggregation, clip: float, stream: SecretStream) -> Tensors:
    """Add to an update a secure-aggregation mask that the attacker does not know, and decode the result as numbers.

    Args:
        update: Floating-point tensors.
        secure: Setting of secure aggregation in the run.
        clip: Bound on the L2 norm of an update.
        stream: Source of the mask's key. In a run, the peers of the site hold shares of the key and the server holds
            none.

    Returns:
        Float32 tensors with the same names and shapes.
    """
    shapes = {name: tensor.shape for name, tensor in sorted(update.items())}
    flat = torch.cat([update[name].double().flatten() for name in shapes])
    point = FixedPoint(secure.bits, 2 * secure.resolved_threshold - 1, clip, len(flat))
    generator = torch.Generator().manual_seed(stream.seed())
    words = point.words(point.rounded(clip_by_norm({"update": flat}, clip)["update"], generator))
    add_mask(words, stream.take(32))
    numbers = point.values(np.asarray(words)).float().split([shape.numel() for shape in shapes.values()])
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), numbers, strict=True)}
