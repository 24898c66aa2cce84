"""Inversion attacks on each of the three targets: shared images, an update, a model."""

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
from medfl.task import Scale
from medfl.types import MODEL, Dataset, Tensors
from medfl.utils.rng import SecretStream, make_generator
from medfl.utils.wire import prefixed, select
from medfl_attacks.inversion.decoder import decode, fixed_point, train_decoder
from medfl_attacks.inversion.gradient import (
    Tick,
    gradients,
    invert_classes,
    invert_items,
    invert_update,
    smoothness_for,
    still,
)
from medfl_attacks.results import Attacked, Reconstruction, reconstruction

if TYPE_CHECKING:
    from medfl_attacks.open_run import OpenedRun

CHUNK = 256
"""Training images that are compared with an inverted class at a time."""

UPDATES = 4
"""Updates that are attacked at most: each needs a descent of its own, through second derivatives of the network."""

CLASS_SMOOTHNESS = 100.0
"""How much heavier the total variation weighs where a class is looked for: a log probability is no squared error."""

GREY = 0.5
"""What an attacker without images of his own takes for the mean image."""


@dataclass(frozen=True)
class Knowledge:
    """The images under attack, and what the attacker has beside what the run gave away.

    Attributes:
        truth: (n, C, *spatial), in [0, 1].
        labels: (n,), known to the attacker.
        own: Images of the same kind from elsewhere, (N, C, *spatial), in [0, 1]; N may be 0.
        training: All training images of the run, to compare with.
        batch: Images in an update.
        steps: Of each descent.
        smoothness: Weight of the total variation.
        seed: Of all that is drawn.
        tick: Called after each step.
    """

    truth: torch.Tensor
    labels: torch.Tensor
    own: torch.Tensor
    training: Dataset
    batch: int
    steps: int
    smoothness: float
    seed: int
    tick: Tick = still

    @property
    def usual(self) -> torch.Tensor:
        """What an image looks like to someone who knows nothing of it: the mean of the attacker's own, or grey."""
        return self.own.mean(dim=0) if len(self.own) else torch.full_like(self.truth[0], GREY)

    def generator(self, label: str) -> torch.Generator:
        """A stream of its own for each label."""
        return make_generator(self.seed, "inversion", label)

    def noise(self, *key: str | int) -> SecretStream:
        """Noise of the law that the run used, but not the sites' own: their secrets are not the attacker's."""
        return SecretStream(b"medfl attacks: no secret", self.seed, *key)


def raw_images(data: Dataset, rows: torch.Tensor, scale: Scale) -> torch.Tensor:
    """Images in [0, 1], (n, C, *spatial), of some rows."""
    return scale.raw(data.batch(rows)[0]).clamp(0, 1)


def _baseline(knowledge: Knowledge, item: str, truth: torch.Tensor) -> Reconstruction:
    return reconstruction("mean_image", item, knowledge.usual.cpu(), truth)


def _names(opened: OpenedRun, labels: torch.Tensor) -> tuple[str, ...]:
    return tuple(opened.classes[label] if opened.classes else str(label) for label in labels.tolist())


# ---- shared images


def against_shared(opened: OpenedRun, knowledge: Knowledge) -> Attacked:
    """Invert the shared part of images, without noise (``x_s``) and as it was sent (``x_p``)."""
    released = opened.released()
    assert released is not None
    part, truth = released.part.eval().to(opened.task.device), knowledge.truth.cpu()
    release = released.releases[0]  # copies are clipped alike, and all or none are noised
    with torch.no_grad():
        x_s = torch.cat([part(image) for image in knowledge.truth.split(1)])
    results = [reconstruction("none", "raw", truth, truth), _baseline(knowledge, "none", truth)]
    shown = {"private part x_r": truth - x_s.cpu(), "shared part x_s": x_s.cpu()}
    notes: list[str] = []
    makers: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"x_s": part}
    sent = {"x_s": x_s}
    if release.noise != "none" or release.clip is not None:
        stream = knowledge.noise("decoder")
        makers["x_p"] = lambda images: released.sent(part(images), stream)
        sent["x_p"] = released.sent(x_s, knowledge.noise("items"))
        shown["sent x_p"] = sent["x_p"].cpu()
    else:
        notes.append("Nothing was clipped or noised in this run: what was sent is x_s itself.")
    if len(released.releases) > 1:
        notes.append(
            f"Each image was sent in {len(released.releases)} copies. The attacker takes their mean, each weighted by "
            f"its precision: its noise has the variance {released.variance:.3g}, that of the copies is "
            f"{' and '.join(f'{release.variance:.3g}' for release in released.releases)}."
        )
    if not len(knowledge.own):
        notes.append("No site has validation images, so there was no decoder to train, and the mean image is grey.")
    for item, items in sent.items():
        known = release if item == "x_p" else None
        smoothness = max(knowledge.smoothness, smoothness_for(released.variance)) if known else knowledge.smoothness
        images = invert_items(items, part, known, knowledge.usual, smoothness, knowledge.steps, knowledge.tick)
        results.append(reconstruction("gradient", item, images, truth))
        if len(knowledge.own):
            generator = knowledge.generator(f"decoder {item}")
            decoder = train_decoder(knowledge.own, makers[item], knowledge.steps, generator, knowledge.tick)
            results.append(reconstruction("decoder", item, decode(decoder, items), truth))
        images, converged = fixed_point(items, part, tick=knowledge.tick)
        results.append(reconstruction("fixed_point", item, images, truth, converged.cpu()))
    return Attacked(
        "shared", truth, _names(opened, knowledge.labels), shown, tuple(results), list(sent)[-1], tuple(notes)
    )


# ---- updates


def updates(images: int, batch: int) -> tuple[int, int]:
    """How many updates are attacked, at most `UPDATES`, and the images in them, of so many in batches of a size."""
    count = min(UPDATES, -(-images // batch))
    return count, min(images, count * batch)


def against_update(opened: OpenedRun, knowledge: Knowledge) -> Attacked:
    """Invert what a site would send for a batch of images and one plain step from the run's last global model."""
    rows = torch.linspace(0, len(knowledge.truth) - 1, updates(len(knowledge.truth), knowledge.batch)[1]).round().long()
    images_, labels_ = knowledge.truth[rows], knowledge.labels[rows]
    scale, truth = _scale(opened), images_.cpu()
    model = copy.deepcopy(opened.model()).eval()
    learned = model.state_dict().keys()  # without frozen parameters, of which no gradient leaves a site
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in learned)
    generator = knowledge.generator("update")
    made = []
    for number, (images, labels) in enumerate(
        zip(images_.split(knowledge.batch), labels_.split(knowledge.batch), strict=True)
    ):

        def gradient(guess: torch.Tensor, labels: torch.Tensor = labels) -> Tensors:
            return gradients(model, opened.task.loss, scale.seen(guess), labels)

        update = _sent_update(opened, model, images, labels, knowledge, number)
        noise = torch.randn(images.shape, generator=generator).to(images.device)
        start = (knowledge.usual + 0.1 * noise).clamp(0, 1)
        guess = invert_update(update, gradient, start, knowledge.smoothness, knowledge.steps, knowledge.tick)
        made.append(_matched(guess.cpu(), images.cpu()))
    results = (_baseline(knowledge, "none", truth), reconstruction("gradient", "update", torch.cat(made), truth))
    return Attacked("update", truth, _names(opened, labels_), {}, results, "update", _update_notes(opened))


def _scale(opened: OpenedRun) -> Scale:
    assert opened.task.scale is not None
    return opened.task.scale


def _sent_update(
    opened: OpenedRun, model: nn.Module, images: torch.Tensor, labels: torch.Tensor, knowledge: Knowledge, number: int
) -> Tensors:
    """The update of one plain step with the run's learning rate, as the run's filters let it out of a site."""
    settings, task, policy = opened.settings, opened.task, policy_of(opened.settings)
    seen = _scale(opened).seen(images)
    if policy.noises_training:
        size = max(len(site.train) for site in opened.sites.values())
        release, privacy = policy.release(size), policy.privacy
        assert release is not None
        assert privacy is not None
        std = release.sigma * privacy.clip
        each = [
            clip_by_norm(_detached(gradients(model, task.loss, seen[i : i + 1], labels[i : i + 1])), privacy.clip)
            for i in range(len(images))
        ]
        stream = knowledge.noise("samples", number)
        mean = {
            name: (sum(grads[name] for grads in each) + std * stream.normal(tuple(first.shape)).to(first)) / len(images)
            for name, first in each[0].items()
        }
    else:
        mean = _detached(gradients(model, task.loss, seen, labels))
    rate = task.optimizer([nn.Parameter(torch.zeros(1))]).param_groups[0]["lr"]
    update = {name: -rate * tensor.cpu() for name, tensor in mean.items()}
    secure = settings.secure_aggregation
    if secure is not None:
        return masked(update, secure, clip_of(settings), knowledge.noise("mask", number))
    filters = Filters({MODEL: "update"}, {}, settings, settings.rounds)
    leaves = filters.outgoing(
        prefixed(update, MODEL),
        {},
        site="under attack",
        stream_factory=lambda payload: knowledge.noise("update", number, payload),
    )
    return select(decode_update(*leaves)[0], MODEL)


def _detached(tensors: Tensors) -> Tensors:
    return {name: tensor.detach() for name, tensor in tensors.items()}


def _matched(guess: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """The images of a batch in the order in which they are closest to the true ones: a batch has no order."""
    costs = (guess.unsqueeze(0) - truth.unsqueeze(1)).square().flatten(2).mean(dim=2)
    _, order = linear_sum_assignment(costs.nan_to_num(1.0).numpy())
    return guess[torch.as_tensor(order)]


def _update_notes(opened: OpenedRun) -> tuple[str, ...]:
    privacy, compression = opened.settings.privacy, opened.settings.compression
    notes = [
        "This is a worst case: the update of one plain gradient step on so few images, with the network in evaluation "
        "mode and labels that the attacker knows. The update of a whole round, over many images and steps, tells less."
    ]
    if opened.settings.secure_aggregation is not None:
        notes.append("The update was masked, as the server has it. The sum of all updates was not attacked.")
    elif privacy is not None:
        notes.append(
            f"The update was clipped and noised as in the run (unit '{privacy.unit}', epsilon {privacy.epsilon:g})."
        )
    if compression is not None:
        notes.append(f"The update was quantised to {compression.bits} bits, as in the run.")
    return tuple(notes)


# ---- the model


def against_model(opened: OpenedRun, knowledge: Knowledge) -> Attacked:
    """Invert each class of the global model, and compare with the class's training images: their mean, the nearest."""
    scale, model = _scale(opened), copy.deepcopy(opened.model()).eval().requires_grad_(False)
    classes = labels_of(knowledge.training).unique()
    noise = torch.randn(opened.task.objective.classes, *scale.shape, generator=knowledge.generator("model"))
    start = (GREY + 0.05 * noise).clamp(0, 1).to(knowledge.truth.device)

    def logits(images: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = model(scale.seen(images))
        return out

    guesses = invert_classes(
        logits, start, CLASS_SMOOTHNESS * knowledge.smoothness, knowledge.steps, knowledge.tick
    ).cpu()[classes]
    near = [
        _nearest(knowledge.training, int(label), guess, scale) for label, guess in zip(classes, guesses, strict=True)
    ]
    means, nearest = (torch.stack(images) for images in zip(*near, strict=True))
    results = [
        made
        for item, truth in (("class mean", means), ("nearest image", nearest))
        for made in (reconstruction("gradient", item, guesses, truth), _baseline(knowledge, item, truth))
    ]
    notes = ("The nearest image is the training image of the class that is most like the inverted one.",)
    return Attacked(
        "model", means, _names(opened, classes), {"nearest training image": nearest}, tuple(results), "", notes
    )


def _nearest(data: Dataset, label: int, guess: torch.Tensor, scale: Scale) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean of a class, and its image of the least squared distance to a guess."""
    rows = (labels_of(data) == label).nonzero(as_tuple=True)[0]
    total, least, nearest = torch.zeros_like(guess), torch.inf, guess
    for some in rows.split(CHUNK):
        images = raw_images(data, some, scale)
        total += images.sum(dim=0)
        distances = (images - guess).square().flatten(1).mean(dim=1)
        place = int(distances.argmin())
        if float(distances[place]) < least:
            least, nearest = float(distances[place]), images[place]
    return total / len(rows), nearest


def masked(update: Tensors, secure: SecureAggregation, clip: float, stream: SecretStream) -> Tensors:
    """An update under a mask that the attacker does not know, read as numbers as if there were none.

    Args:
        update: Any floating tensors.
        secure: The run's setting.
        clip: L2 bound of an update.
        stream: Gives the mask's key, of which the site's peers hold shares and the server none.

    Returns:
        Tensors of the same names and shapes, float32.
    """
    shapes = {name: tensor.shape for name, tensor in sorted(update.items())}
    flat = torch.cat([update[name].double().flatten() for name in shapes])
    point = FixedPoint(secure.bits, 2 * secure.resolved_threshold - 1, clip, len(flat))
    generator = torch.Generator().manual_seed(stream.seed())
    words = point.words(point.rounded(clip_by_norm({"update": flat}, clip)["update"], generator))
    add_mask(words, stream.take(32))
    numbers = point.values(np.asarray(words)).float().split([shape.numel() for shape in shapes.values()])
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), numbers, strict=True)}
