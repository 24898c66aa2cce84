"""Base class of methods that train a distiller: a generator and a classifier, averaged over sites like any model.

The generator reconstructs an image, and the classifier predicts the class from the residual (image minus
reconstruction). A release is what leaves a site: a clipped and noised copy of the residual of each image.
`medfl_methods.fedfed.feature_sharing` shares the residuals.
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
from medfl.networks.parts import feature_count
from medfl.privacy.release import ImageRelease, Noise
from medfl.task import Task
from medfl.toolkit.aggregation import add_update, mean_update, normalised_weights, subtract
from medfl.toolkit.averaging import Averaging
from medfl.toolkit.participant_state import AUXILIARY_PREFIX
from medfl.types import MODEL_PREFIX, Meta, Tensors
from medfl.utils.wire import prefixed, select
from medfl_methods.fedfed.distiller import Distiller, SharedForm
from medfl_methods.fedfed.distiller_training import (
    DISTILLER,
    DistillerTraining,
    DividedBatch,
    clip_and_noise,
    require_scale,
)
from medfl_methods.fedfed.generators import GeneratorOutput, build_generator


def kl_to_standard_normal(mean: torch.Tensor, log_variance: torch.Tensor) -> torch.Tensor:
    """Return KL(N(mean, variance) || N(0, 1)), the mean over images and latent variables.

    For one latent variable it is (mean^2 + variance - 1 - log variance) / 2.

    Args:
        mean: Means of d latent variables for each of B images, shape (B, d).
        log_variance: Natural logarithm of the variance, shape (B, d).

    Returns:
        Scalar, >= 0; 0 for mean 0 and variance 1.

    Source: Kingma and Welling, ICLR 2014. FedFed's code divides by three times as many elements.
    """
    return -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).mean()


DISTILLER_PREFIX = "distiller/"
"""Prefix of the names of the distiller's tensors in messages."""


@dataclass(frozen=True)
class LossWeights:
    """Weights of the four terms of the distiller's loss.

    Attributes:
        reconstruction: Weight of the mean squared error of the reconstruction.
        kl: Weight of the KL divergence of the latent variables from a standard normal distribution.
        ce: Weight of the cross-entropy of the noised residual.
        x_ce: Weight of the cross-entropy of the whole image.
    """

    reconstruction: float
    kl: float
    ce: float
    x_ce: float


class FeatureDistillation(Averaging):
    """Training of a generator q and of a classifier f that sees the residual x - q(x), at the server and at the sites.

    Both networks minimise ``reconstruction`` MSE(q(x), x) + ``kl`` KL + ``ce`` CE(f(x - q(x) + noise), y) + ``x_ce``
    CE(f(x), y). The terms oppose each other: reconstruction moves information on the class into q(x), and
    classification moves it into the residual.

    Attributes:
        distil_epochs: Epochs of the distiller in a round, >= 1. The run's `epochs` and `steps` are for the task's
            network.
        distil_steps: Number of batches of each of these epochs, >= 1; None means all images once.
        distil_lr: Learning rate of the distiller's AdamW, > 0. Its state continues from round to round.
        reconstruction: Weight of the mean squared error of the reconstruction, >= 0.
        kl: Weight of the mean KL divergence of the latent variables from a standard normal distribution, >= 0.
        ce: Weight of the cross-entropy of the noised residual, >= 0.
        x_ce: Weight of the cross-entropy of the whole image, >= 0.
        width: Number of channels of the generator, >= 2.
        latent: Number of latent variables of the generator, >= 1; None means the number of features of the task's
            network.
        norm: Normalisation of the generator, ``batch`` or ``group``. Batch statistics are unreliable at sites with one
            class.
        noise: Distribution of the noise: ``gaussian``, ``laplace``, or ``none``.
        clip: Maximum norm of the shared part of an image before the noise, in units of images in [0, 1], > 0. It is the
            L1 norm for Laplace noise, otherwise the L2 norm. Without a clip there is no differential privacy, even with
            noise.
        share: Shared part of an image: ``x_p`` is x - q(x) with noise, ``x_s`` is x - q(x) without noise, ``raw+noise``
            is the whole image with noise.
    """

    sends: ClassVar[Mapping[str, PayloadKind]] = {MODEL_PREFIX: "update", DISTILLER_PREFIX: "update"}
    """Tensors in a site's reply: mapping from each name prefix to the kind of payload, such as an update."""

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
    share: SharedForm = "x_p"

    # ---- what a method overrides

    def releases(self) -> list[ImageRelease]:
        """Return the release mechanism (clip and noise) of each noised copy of the shared part that leaves a site.

        The number of elements is the number of copies.
        """
        raise NotImplementedError

    @property
    def is_noiseless(self) -> bool:
        """True if no noise is added to the shared part."""
        return self.noise == "none" or self.share == "x_s"

    def release(self, variance: float) -> ImageRelease:
        """Return the release mechanism of one copy: the configured clip, and noise of the given variance."""
        of = "raw" if self.share == "raw+noise" else "x_s"
        return ImageRelease("none" if self.is_noiseless else self.noise, variance, self.clip, of=of)

    @property
    def weights(self) -> LossWeights:
        """Weights of the four terms of the distiller's loss, from the settings."""
        return LossWeights(self.reconstruction, self.kl, self.ce, self.x_ce)

    def generator_kind(self) -> Literal["vae", "resnet"]:
        """Return the architecture of the generator: ``vae``, with latent variables, or ``resnet``, without them."""
        return "vae"

    def weight_decay(self) -> float:
        """Return the weight decay of the distiller's optimiser."""
        return 0.0

    def distil_weights(self, server: Server, metas: Mapping[str, Meta]) -> dict[str, float]:
        """Return the weight of each site in the average of the distillers, before normalisation.

        Args:
            server: Server that averages.
            metas: Metadata of each site's reply.
        """
        return self.weights_of(server, metas)

    # ---- the server

    def setup(self, server: Server) -> None:
        """Initialise the model and the distiller in the server's state.

        Raises:
            SettingsError: If the task has no `scale`, or its images are too small.
        """
        super().setup(server)
        initial = self.with_distiller_network(server.task).initial(server.settings.seed, DISTILLER)
        server.state.tensors |= prefixed(initial, AUXILIARY_PREFIX + DISTILLER_PREFIX)

    def with_distiller_network(self, task: Task) -> Task:
        """Return the task with the distiller as an additional network."""
        return task.with_network(DISTILLER, partial(self._build, task))

    def _build(self, task: Task) -> nn.Module:
        """Return a new distiller for the images and the network of the task."""
        scale, classifier = require_scale(task), task.build()
        features = 1 if self.generator_kind() == "resnet" else self.latent or feature_count(classifier, task.network)
        return Distiller(
            build_generator(self.generator_kind(), scale.shape, features, self.width, self.norm), classifier, scale
        )

    def load_distiller(self, task: Task, distiller: Tensors) -> Distiller:
        """Return the distiller with the given tensors, on the task's device."""
        model = self.with_distiller_network(task).load(distiller, DISTILLER)
        assert isinstance(model, Distiller)
        return model

    def distiller(self, server: Server) -> Tensors:
        """Return the tensors of the server's distiller, named for a message."""
        return prefixed(select(server.state.tensors, AUXILIARY_PREFIX + DISTILLER_PREFIX), DISTILLER_PREFIX)

    def average_distillers(self, server: Server, replies: Replies) -> None:
        """Add the weighted mean of the sites' distiller updates to the server's distiller."""
        if not len(replies):
            return
        weights = normalised_weights(self.distil_weights(server, replies.meta), replies.meta)
        for name, update in mean_update(replies, weights, DISTILLER_PREFIX).items():
            key = AUXILIARY_PREFIX + DISTILLER_PREFIX + name
            server.state.tensors[key] = add_update(server.state.tensors[key], update)

    # ---- a site

    def start_distiller_training(self, site: Site, request: Request) -> DistillerTraining:
        """Prepare the training of the received distiller at a site, with the site's stored optimiser state."""
        task, kept = self.with_distiller_network(site.task), select(site.state.tensors, f"{AUXILIARY_PREFIX}optimizer/")
        received, rate, weight_decay = select(request.tensors, DISTILLER_PREFIX), self.distil_lr, self.weight_decay()
        return DistillerTraining(site, task, received, kept, rate, weight_decay, self.gradient_clip, self.distil_steps)

    def keep_optimizer(self, site: Site, distilling: DistillerTraining) -> None:
        """Store the state of the distiller's optimiser at the site for its next round."""
        kept = {
            name: t for name, t in site.state.tensors.items() if not name.startswith(f"{AUXILIARY_PREFIX}optimizer/")
        }
        site.state.tensors = kept | prefixed(distilling.optimizer_state(), f"{AUXILIARY_PREFIX}optimizer/")

    def distiller_update(self, request: Request, model: nn.Module) -> Tensors:
        """Return the difference between the trained and the received distiller, named for a message."""
        after = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
        before = select(request.tensors, DISTILLER_PREFIX)
        return prefixed({name: subtract(after[name], before[name]) for name in before}, DISTILLER_PREFIX)

    def distil_loss(
        self, distilling: DistillerTraining, divided: DividedBatch, loss: nn.Module, weights: LossWeights | None = None
    ) -> torch.Tensor:
        """Return the distiller's loss of a batch: reconstruction, KL divergence and both cross-entropies.

        Args:
            distilling: Training that contains the distiller.
            divided: Batch with its reconstruction and residual.
            loss: Loss of the task.
            weights: Weights of the terms; None means the weights of the settings.
        """
        reconstructed, copies, weights = divided.reconstructed, self.releases(), weights or self.weights
        noisy = torch.cat([clip_and_noise(divided.residual, release) for release in copies])
        logits = distilling.model.classify_both(noisy, divided.images)
        noisy_logits, whole = logits[: len(noisy)], logits[len(noisy) :]
        noisy_loss: torch.Tensor = loss(noisy_logits, divided.labels.repeat(len(copies)))
        whole_loss: torch.Tensor = loss(whole, divided.labels)
        reconstruction_loss = self.reconstruction_loss(reconstructed, divided.images, weights)
        return reconstruction_loss + weights.ce * noisy_loss + weights.x_ce * whole_loss

    def reconstruction_loss(
        self, reconstructed: GeneratorOutput, images: torch.Tensor, weights: LossWeights
    ) -> torch.Tensor:
        """Return the weighted mean squared error plus the weighted KL divergence.

        A generator without latent variables has no KL term.
        """
        total = weights.reconstruction * functional.mse_loss(reconstructed.images, images)
        if reconstructed.mean is None or reconstructed.log_variance is None:
            return total
        return total + weights.kl * kl_to_standard_normal(reconstructed.mean, reconstructed.log_variance)
