"""The base of methods that divide images by a generator and a classifier, which are averaged like any model.

The generator rebuilds an image; the classifier tells the class from the rest. What is made of the rest is another
base's business (`medfl_methods.fedfed.base`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import nn
from torch.nn import functional

from medfl.contract import PayloadKind, Replies, Request, Server, Site
from medfl.networks.parts import features_of
from medfl.privacy.release import Noise, Release
from medfl.task import Task
from medfl.toolkit.aggregation import add_update, mean_update, normalised, subtract
from medfl.toolkit.averaging import Averaging
from medfl.toolkit.kept import KEPT
from medfl.types import MODEL, Meta, Tensors
from medfl.utils.wire import prefixed, select
from medfl_methods.fedfed.distillation import DISTILLER, Distilling, Divided, noised, scale_of
from medfl_methods.fedfed.distiller import Distiller, Form
from medfl_methods.fedfed.generators import Reconstruction, build_generator


def kl_to_standard_normal(mean: torch.Tensor, log_variance: torch.Tensor) -> torch.Tensor:
    """KL(N(mean, variance) || N(0, 1)), the mean over images and latent numbers.

    Of one number it is (mean^2 + variance - 1 - log variance) / 2.

    Args:
        mean: Shape (B, d).
        log_variance: Natural logarithm of the variance, the same shape.

    Returns:
        A scalar, >= 0; 0 for mean 0 and variance 1.

    Source: Kingma and Welling, ICLR 2014. FedFed's code divides by three times as many elements.
    """
    return -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).mean()


PART = "distiller/"
"""What the names of generator and classifier begin with in messages."""


@dataclass(frozen=True)
class Weights:
    """Weights of the four terms of the loss; as in `Dividing`."""

    reconstruction: float
    kl: float
    ce: float
    x_ce: float


class Dividing(Averaging):
    """A generator q and a classifier f of what q leaves of an image, x - q(x), at the server and at the sites.

    Both minimise ``reconstruction`` MSE(q(x), x) + ``kl`` KL + ``ce`` CE(f(x - q(x) + noise), y) + ``x_ce`` CE(f(x),
    y). They pull: reconstruction wants the class in q(x), and classification wants it in the rest.

    Attributes:
        distil_epochs: Passes over a site's images for generator and classifier in a round, >= 1. The run's `epochs` and
            `steps` are those of the task's network.
        distil_steps: Batches of each such pass, >= 1; None for all images once.
        distil_lr: Learning rate of their AdamW, > 0. Its state goes on from round to round.
        reconstruction: Weight of the mean squared error, >= 0.
        kl: Weight of the mean KL divergence of the latent numbers from a standard normal distribution, >= 0.
        ce: Weight of the cross-entropy of the noised residual, >= 0.
        x_ce: Weight of that of the whole image, >= 0.
        width: Channels of the generator, >= 2.
        latent: Numbers that describe an image in the generator, >= 1; None takes as many as the task's network has
            features.
        norm: Of the generator, ``batch`` or ``group``; batch statistics of sites with one class are poor.
        noise: ``gaussian``, ``laplace``, or ``none``.
        clip: Largest norm of what is sent of an image before the noise, in units of images in [0, 1], > 0: L2, with
            Laplace noise L1. Without it there is no differential privacy, whatever the noise.
        share: ``x_p`` sends x - q(x) with noise, ``x_s`` without, ``raw+noise`` the whole image with noise.
    """

    sends: ClassVar[Mapping[str, PayloadKind]] = {MODEL: "update", PART: "update"}

    distil_epochs: int = Field(1, ge=1)
    distil_steps: int | None = Field(None, ge=1)
    distil_lr: float = Field(1e-3, gt=0, allow_inf_nan=False)
    reconstruction: float = Field(5.0, ge=0, allow_inf_nan=False)
    kl: float = Field(0.005, ge=0, allow_inf_nan=False)
    ce: float = Field(2.0, ge=0, allow_inf_nan=False)
    x_ce: float = Field(0.4, ge=0, allow_inf_nan=False)
    width: int = Field(32, ge=2)
    latent: int | None = Field(None, ge=1)
    norm: Literal["batch", "group"] = "batch"
    noise: Noise = "gaussian"
    clip: float | None = Field(None, gt=0, allow_inf_nan=False)
    share: Form = "x_p"

    # ---- what a method overrides

    def releases(self) -> list[Release]:
        """How each copy of what is sent is clipped and noised."""
        raise NotImplementedError

    @property
    def silent(self) -> bool:
        """Whether nothing is added to what is sent."""
        return self.noise == "none" or self.share == "x_s"

    def release(self, variance: float) -> Release:
        """How a copy is clipped and noised, with noise of that variance."""
        of = "raw" if self.share == "raw+noise" else "x_s"
        return Release("none" if self.silent else self.noise, variance, self.clip, of=of)

    @property
    def weights(self) -> Weights:
        """Weights of the loss, as the settings have them."""
        return Weights(self.reconstruction, self.kl, self.ce, self.x_ce)

    def kind(self) -> Literal["vae", "resnet"]:
        """The generator."""
        return "vae"

    def weight_decay(self) -> float:
        """Of the optimiser of generator and classifier."""
        return 0.0

    def distil_weights(self, server: Server, metas: Mapping[str, Meta]) -> dict[str, float]:
        """Weights of the sites' generators and classifiers, before normalisation."""
        return self.weights_of(server, metas)

    # ---- the server

    def setup(self, server: Server) -> None:
        """The common initial model, generator and classifier.

        Raises:
            SettingsError: If the task does not say what its images are like, or they are too small.
        """
        super().setup(server)
        initial = self.with_distiller(server.task).initial(server.settings.seed, DISTILLER)
        server.state.tensors |= prefixed(initial, KEPT + PART)

    def with_distiller(self, task: Task) -> Task:
        """The task with generator and classifier as another network."""
        return task.with_network(DISTILLER, partial(self._build, task))

    def _build(self, task: Task) -> nn.Module:
        scale = scale_of(task)
        classifier = task.build()
        features = 1 if self.kind() == "resnet" else self.latent or features_of(classifier, task.network)
        return Distiller(build_generator(self.kind(), scale.shape, features, self.width, self.norm), classifier, scale)

    def loaded(self, task: Task, distiller: Tensors) -> Distiller:
        """Generator and classifier with these tensors, on the task's device."""
        model = self.with_distiller(task).load(distiller, DISTILLER)
        assert isinstance(model, Distiller)
        return model

    def distiller(self, server: Server) -> Tensors:
        """Generator and classifier for a message."""
        return prefixed(select(server.state.tensors, KEPT + PART), PART)

    def average_distillers(self, server: Server, replies: Replies) -> None:
        """The weighted mean of the sites' generators and classifiers."""
        if not len(replies):
            return
        weights = normalised(self.distil_weights(server, replies.meta), replies.meta)
        for name, update in mean_update(replies, weights, PART).items():
            key = KEPT + PART + name
            server.state.tensors[key] = add_update(server.state.tensors[key], update)

    # ---- a site

    def own_distiller(self, site: Site, request: Request) -> Distilling:
        """Generator and classifier at a site, as received, with the site's own optimiser state."""
        task, kept = self.with_distiller(site.task), select(site.state.tensors, f"{KEPT}optimizer/")
        received, rate, weight_decay = select(request.tensors, PART), self.distil_lr, self.weight_decay()
        return Distilling(site, task, received, kept, rate, weight_decay, self.gradient_clip, self.distil_steps)

    def keep_optimizer(self, site: Site, distilling: Distilling) -> None:
        """The state of its optimiser, for the next round."""
        kept = {name: t for name, t in site.state.tensors.items() if not name.startswith(f"{KEPT}optimizer/")}
        site.state.tensors = kept | prefixed(distilling.optimizer_state(), f"{KEPT}optimizer/")

    def distiller_update(self, request: Request, model: nn.Module) -> Tensors:
        """What leaves the site of generator and classifier."""
        after = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
        before = select(request.tensors, PART)
        return prefixed({name: subtract(after[name], before[name]) for name in before}, PART)

    def distil_loss(
        self, distilling: Distilling, divided: Divided, loss: nn.Module, weights: Weights | None = None
    ) -> torch.Tensor:
        """Reconstruction, divergence of the latent numbers, and the two cross-entropies.

        Args:
            distilling: Its model is in training.
            divided: A batch.
            loss: Of the task.
            weights: Of the terms; None takes those of the settings.
        """
        rebuilt, copies, weights = divided.rebuilt, self.releases(), weights or self.weights
        noisy = torch.cat([noised(divided.part, release) for release in copies])
        logits = distilling.model.classify_both(noisy, divided.images)
        noisy_logits, whole = logits[: len(noisy)], logits[len(noisy) :]
        noisy_loss: torch.Tensor = loss(noisy_logits, divided.labels.repeat(len(copies)))
        whole_loss: torch.Tensor = loss(whole, divided.labels)
        rebuild_loss = self.rebuild_loss(rebuilt, divided.images, weights)
        return rebuild_loss + weights.ce * noisy_loss + weights.x_ce * whole_loss

    def rebuild_loss(self, rebuilt: Reconstruction, images: torch.Tensor, weights: Weights) -> torch.Tensor:
        """Mean squared error, and the divergence of the latent numbers of a generator that has some."""
        total = weights.reconstruction * functional.mse_loss(rebuilt.images, images)
        if rebuilt.mean is None or rebuilt.log_variance is None:
            return total
        return total + weights.kl * kl_to_standard_normal(rebuilt.mean, rebuilt.log_variance)
