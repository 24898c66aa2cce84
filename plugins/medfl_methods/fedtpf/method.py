"""FedTPF as a method class: distiller training with critic and prototypes, assessment, and freezing of sites.

The distiller is a generator that reconstructs an image, and a classifier of the residual (image minus reconstruction).
In stage 1 the sites train it beside the network. Then each site sends the residuals of its images once, with noise: the
shared images. In stage 2 the sites train the task's network on their own images and on the shared images of all sites.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from medfl.contract import Need, ReducesTo, Replies, Reply, Request, Server, Site
from medfl.data.pooled import count_patients
from medfl.errors import SettingsError
from medfl.networks.parts import feature_count
from medfl.privacy.release import ImageRelease
from medfl.toolkit.participant_state import AUXILIARY_PREFIX, model_tensors
from medfl.toolkit.prototypes import latent_distance, prototypes, scale_prototypes
from medfl.toolkit.rounds import RoundStep, ScheduledStep
from medfl.types import Meta
from medfl.utils.metadata import Count, MetaField, bounded_number
from medfl.utils.wire import prefixed, select
from medfl_methods.fedfed.distiller import Distiller
from medfl_methods.fedfed.distiller_training import DistillerTraining, DividedBatch, evaluate_distiller, require_scale
from medfl_methods.fedfed.feature_distillation import DISTILLER_PREFIX
from medfl_methods.fedfed.feature_sharing import MAX_NOISE_STD, FeatureSharing
from medfl_methods.fedtpf.adversary import CRITIC, Adversary
from medfl_methods.fedtpf.early_stop import (
    Decay,
    RepliesWithFrozen,
    decay,
    freeze,
    last_change,
    should_freeze,
    validating_sites,
)


class FedTPF(FeatureSharing):
    """FedFed whose distiller also learns from class prototypes and from a critic, and whose sites freeze early.

    A site freezes if three conditions hold in each of the last `window` epochs on its validation images. The
    classifier's accuracy is at least `accuracy` - `tolerance`. The mean |cos| between reconstruction and residual is
    below `cosine`. Neither value varies by more than `fluctuation`. A frozen site trains only the task's network. The
    server keeps the site's last distiller and continues to average it in each round in which the site takes part. Its
    weight decays as the other sites improve (`decay`). Stage 1 ends when the server's classifier reaches `accuracy` at
    every site that has validation images, or after `distil_rounds`. Sites without validation images never freeze and do
    not affect the end of the stage.

    Sharing and stage 2 are as in FedFed, but each residual is sent once, not as several copies under different noise.
    With ``share_fraction = 0`` this is `fedavg`.

    Update rule:
        In a round of stage 1 a site first trains the task's network. The mean features of its images of each class are
        its prototypes. Then it trains the distiller (generator q and classifier) as in `FeatureSharing`, with two
        further terms in the loss:

            adversarial E[-D(q(x))] + prototype_weight ||z(x) - p(y)||^2

        D is the site's own critic (a Wasserstein GAN with gradient penalty), z(x) are the latent variables of an image
        and p(y) is the prototype of its class. Critic and prototypes never leave the site.

    When to use it: Use it if classes are unevenly distributed over sites and the sites may share noised residuals of
    their images. The noise of the paper protects no one: its epsilon assumes a bound on the residual that does not
    exist, and the preset ``paper`` reports "no differential privacy". The default clips the residual, so there is an
    epsilon, but the noise covers almost all of the image. `medfl attack` measures the remaining leakage.

    Attributes:
        clip: Maximum norm of the residual of an image before the noise, in units of images in [0, 1], > 0; None means
            no clip, and then no differential privacy.
        generator: Kind of generator: ``vae_wgan_gp``; ``vae``, without a critic; or ``resnet``, without a critic and
            without latent variables, so the prototypes have no effect.
        adversarial: Weight of the critic's term, >= 0; 0 trains no critic.
        penalty: Factor of the critic's gradient penalty, >= 0.
        critic_steps: Critic steps for each generator step, >= 1.
        critic_lr: Learning rate of the critic's Adam, > 0.
        prototype: Kind of prototypes. ``mean``: mean features of a class. ``scaled``: the same, scaled to the norm
            sqrt(d) of a standard normal vector with d elements, which fits the KL term. ``none``: no prototypes.
        prototype_weight: Weight of the distance to the prototypes, >= 0.
        freeze: Whether sites that meet the conditions stop training the distiller.
        accuracy: Classifier's accuracy on validation images that freezing and the end of stage 1 require, in [0, 1].
        tolerance: Amount below `accuracy` that is enough to freeze, >= 0.
        cosine: Upper limit of the mean |cos| between reconstruction and residual for freezing, > 0.
        window: Number of last epochs of distiller training that must meet the conditions for freezing, >= 1.
        fluctuation: Maximum difference between the values of these epochs, of accuracy and of |cos|, >= 0.
        decay: Rule by which the weight of a frozen site's distiller decays. ``cumulative``: exp(-`decay_rate` times the
            sum of the active sites' improvements of accuracy since the freeze). ``literal``: the same with only the
            last improvement, as equation 8 is printed. ``text``: the decay is faster the smaller the changes are, as
            the paper's text says. ``none``: no decay.
        decay_rate: Rate of the decay, lambda of equation 8, >= 0; 0 means no decay.
        variance: Variance of the noise that a site adds to each residual before sending it, > 0, in squared units of
            images in [0, 1], for Gaussian and Laplace noise.

    Source: "Privacy-Preserving Efficient Federated Learning for Internet of Medical Things under Data Heterogeneity",
    equations 1 to 9 and algorithm 1. The modes of `decay` cover the contradictions between its text and its equations.
    In round t the decay uses the accuracies after the rounds t - 1 and t - 2, the latest that are known.
    """

    name = "fedtpf"
    family = "shared images"
    paper = "FedTPF (authors and venue not known to us)"
    summary = "FedFed with a VAE-WGAN-GP whose latents approach class prototypes; sites stop its training early"
    supports = frozenset()

    needs: ClassVar[frozenset[Need]] = frozenset({"class_labels", "images_of_one_shape", "linear_head"})
    """Properties that the task, its data and its networks must have for this method."""
    sends_meta: ClassVar[Mapping[str, MetaField]] = {
        **FeatureSharing.sends_meta,
        "frozen": MetaField("private", bool),
        "accuracy": MetaField("private", bounded_number(0, 1), after=("assess",)),
        "patients": MetaField("private", Count, after=("assess",)),
    }
    """Metadata in a site's reply: mapping from each key to its type and to whether the value is private."""
    presets: ClassVar[Mapping[str, Meta]] = {"paper": {"clip": None, "decay": "literal"}, "medfl": {}}
    reduces_to: ClassVar[tuple[ReducesTo, ...]] = (ReducesTo("fedavg", {"share_fraction": 0.0}),)

    clip: float | None = Field(1.0, gt=0, allow_inf_nan=False)
    generator: Literal["vae_wgan_gp", "vae", "resnet"] = "vae_wgan_gp"
    adversarial: float = Field(0.01, ge=0, allow_inf_nan=False)
    penalty: float = Field(10.0, ge=0, allow_inf_nan=False)
    critic_steps: int = Field(1, ge=1)
    critic_lr: float = Field(1e-4, gt=0, allow_inf_nan=False)
    prototype: Literal["mean", "scaled", "none"] = "mean"
    prototype_weight: float = Field(0.01, ge=0, allow_inf_nan=False)
    freeze: bool = True
    accuracy: float = Field(0.9, ge=0, le=1)
    tolerance: float = Field(0.02, ge=0, le=1)
    cosine: float = Field(0.15, gt=0, allow_inf_nan=False)
    window: int = Field(3, ge=1)
    fluctuation: float = Field(0.05, ge=0, allow_inf_nan=False)
    decay: Decay = "cumulative"
    decay_rate: float = Field(5.0, ge=0, allow_inf_nan=False)
    variance: float = Field(0.15, gt=0, le=MAX_NOISE_STD**2, allow_inf_nan=False)

    def releases(self) -> list[ImageRelease]:
        """Return the mechanisms (clip and noise) by which a site sends its residuals: a list with one element.

        One element means one noised copy of each residual. The noise has the variance `variance`.
        """
        return [self.release(self.variance)]

    def generator_kind(self) -> Literal["vae", "resnet"]:
        """Return the architecture of the generator network: ``vae`` also if the setting is ``vae_wgan_gp``."""
        return "resnet" if self.generator == "resnet" else "vae"

    @property
    def uses_prototypes(self) -> bool:
        """True if the distiller's loss contains the distance of latent variables to class prototypes."""
        return self.prototype != "none" and self.prototype_weight > 0 and self.generator != "resnet"

    @property
    def has_critic(self) -> bool:
        """True if the sites train a critic."""
        return self.generator == "vae_wgan_gp" and self.adversarial > 0

    # ---- the server

    def setup(self, server: Server) -> None:
        """Initialise the server's state: model, distiller, and an empty record of accuracies and frozen sites.

        Raises:
            SettingsError: If the number of latent variables differs from the number of features that prototypes have.
        """
        task, compares = server.task, self.uses_prototypes and self.latent is not None
        if compares and self.latent != (features := feature_count(task.build(), task.network)):
            raise SettingsError(
                "setting_out_of_range",
                f"'latent' is {self.latent}, but network '{task.network}' has {features} features. The two must be "
                "equal, because latent variables are compared with mean features. Omit 'latent', or set 'prototype' "
                "to 'none'.",
                setting="latent",
                network=task.network,
                expected=features,
                found=self.latent,
            )
        super().setup(server)
        server.state.meta |= {"frozen": {}, "changes": {}, "history": [], "threshold": self.accuracy}

    def round_steps(self) -> tuple[RoundStep, ...]:
        """Return the steps of the method in their order.

        ``distil``: sites train network and distiller (stage 1). ``assess``: sites with validation images measure the
        accuracy of the averaged distiller; this step needs no minimum number of replies. ``share``: each site sends its
        residuals, once. ``train``: sites train the task's network (stage 2).
        """
        distil, *others = super().round_steps()
        assess = RoundStep(
            "assess", self.assess_requests, self.assess, self.aggregate_assessments, quorum=0, updates=()
        )
        return distil, assess, *others

    def remaining_steps(self, server: Server, done: Sequence[ScheduledStep]) -> Sequence[ScheduledStep]:
        """Return the steps of this round that follow the finished steps `done`.

        In stage 1 they are ``distil`` and, if any site has validation images, ``assess``. After stage 1 they are
        ``share``, only once, and ``train``.
        """
        left = super().remaining_steps(server, done)
        return (
            [*left, ScheduledStep("assess")][len(done) :]
            if left[0].name == "distil" and validating_sites(server)
            else left
        )

    def distil_requests(self, server: Server) -> list[Request]:
        """Return the requests to train in a round of stage 1, for the participants of the round.

        Each contains the model. Only sites that are not frozen also receive the distiller.
        """
        model, frozen = self.publish(server), server.state.meta["frozen"]
        both = model | self.distiller(server)
        return [Request(name, "distil", model if name in frozen else both) for name in self.sample_participants(server)]

    def assess_requests(self, server: Server) -> list[Request]:
        """Return the requests to assess the distiller, for all sites with validation images."""
        tensors = self.distiller(server)
        return [Request(name, "assess", tensors) for name in validating_sites(server)]

    def aggregate_assessments(self, server: Server, replies: Replies) -> None:
        """Record the sites' accuracies from the step ``assess``.

        End stage 1 if all of them reach the threshold `accuracy`, or at the round limit `distil_rounds`.
        """
        accuracy = {name: float(meta["accuracy"]) for name, meta in replies.meta.items()}
        patients = {name: int(meta["patients"]) for name, meta in replies.meta.items()}
        server.state.meta["history"][-1] |= {"accuracy": accuracy, "patients": patients}
        threshold = server.state.meta["threshold"]
        if set(accuracy) == set(validating_sites(server)) and min(accuracy.values()) >= threshold - 1e-9:
            self.end_stage(server, "accuracy")
        else:
            self.check_limit(server)

    def aggregate_distilled(self, server: Server, replies: Replies) -> None:
        """Average the models and the distillers of a round of stage 1.

        Store the distiller of each site that froze in this round. The stored distiller of a frozen site replaces the
        update that the site no longer sends.
        """
        self.average(server, replies)
        state, before = server.state.meta, select(server.state.tensors, AUXILIARY_PREFIX + DISTILLER_PREFIX)
        frozen_before = [name for name in replies.meta if name in state["frozen"]]
        active = [name for name in replies.meta if name not in state["frozen"]]
        change = last_change(state["history"], active)
        for name, tensors in replies:
            if replies.meta[name].get("frozen"):
                freeze(server, name, before, select(tensors, DISTILLER_PREFIX))
        for name in state["frozen"]:
            state["changes"].setdefault(name, []).append(change)
        weights = {name: self.frozen_weight(server, name) for name in replies.meta}
        state["history"].append({"round": server.round, "accuracy": {}, "weights": weights, "active": active})
        self.average_distillers(server, RepliesWithFrozen(replies, server, frozen_before, before, DISTILLER_PREFIX))
        if not validating_sites(server):
            self.check_limit(server)

    def frozen_weight(self, server: Server, name: str) -> float:
        """Return the factor (alpha of equation 8) that weights a frozen site's distiller; 1 for any other site."""
        return decay(server.state.meta["changes"].get(name, []), self.decay_rate, self.decay)

    def distil_weights(self, server: Server, metas: Mapping[str, Meta]) -> dict[str, float]:
        """Return each site's weight in the average of distillers: the weight of its model times `frozen_weight`."""
        weights = self.weights_of(server, metas)
        return {name: weight * self.frozen_weight(server, name) for name, weight in weights.items()}

    # ---- a site

    def assess(self, site: Site, request: Request) -> Reply:
        """Execute the step ``assess`` at a site.

        Return the accuracy of the received distiller on the site's validation images, and the number of their patients.
        """
        model = self.load_distiller(site.task, select(request.tensors, DISTILLER_PREFIX))
        patients = 0 if site.val is None else count_patients(site.val)
        return Reply(meta={"accuracy": self.evaluate_distiller(site, model)[0], "patients": patients})

    def distil(self, site: Site, request: Request) -> Reply:
        """Execute the step ``distil`` at a site: train the task's network, then the distiller.

        A frozen site trains only the task's network. A site is frozen if the request contains no distiller.
        """
        reply = self.train_task(site, request)
        reply.meta["frozen"] = False
        if not select(request.tensors, DISTILLER_PREFIX):
            return reply
        distilling, adversary = self.start_distiller_training(site, request), self.adversary(site)
        trained = reply.trained["personal"].tensors
        prototype_means = self.prototypes(site, site.task.load(trained, site.network)) if self.uses_prototypes else None
        past = site.state.meta.setdefault("evaluations", [])
        for epoch in range(self.distil_epochs):

            def loss(batch: Any) -> torch.Tensor:
                divided = distilling.divide(batch)
                distil_loss = self.distil_loss(distilling, divided, site.task.loss)
                return distil_loss + self.extra_losses(divided, adversary, prototype_means)

            reply.log["distil_loss"] = distilling.train_pass(loss, f"distil {epoch}")
            if site.val is not None and len(site.val):
                past.append(list(self.evaluate_distiller(site, distilling.model)))
        if adversary is not None and (critic_loss := adversary.mean_loss()) is not None:
            reply.log["critic_loss"] = critic_loss
        self.freeze_or_store(site, reply, distilling, adversary)
        reply.tensors |= self.distiller_update(request, distilling.model)
        return reply

    def extra_losses(
        self, divided: DividedBatch, adversary: Adversary | None, prototype_means: torch.Tensor | None
    ) -> torch.Tensor:
        """Train the critic on a batch, then return the sum of the loss terms of the critic and of the prototypes.

        Args:
            divided: Batch with reconstruction and residual.
            adversary: Critic of the site; None omits the critic's term.
            prototype_means: Prototype of each class, shape (num_classes, d); None omits the prototypes' term.
        """
        total = divided.images.new_zeros(())
        if adversary is not None:
            adversary.train_critic(divided.images, divided.reconstructed.images)
            total = total + self.adversarial * adversary.generator_loss(divided.reconstructed.images)
        if prototype_means is not None and divided.reconstructed.latent is not None:
            latent = divided.reconstructed.latent
            total = total + self.prototype_weight * latent_distance(latent, prototype_means, divided.labels)
        return total

    def adversary(self, site: Site) -> Adversary | None:
        """Return the site's critic with its stored state, or None if the sites train no critic."""
        if not self.has_critic:
            return None
        kept = select(site.state.tensors, AUXILIARY_PREFIX)
        return Adversary(site, kept, self.critic_lr, self.penalty, self.critic_steps, self.width)

    def prototypes(self, site: Site, model: nn.Module) -> torch.Tensor:
        """Return the prototype of each class at the site, shape (num_classes, d).

        A prototype is the mean of the d features that the task's network computes for the site's images of the class,
        scaled if the setting `prototype` is ``scaled``.
        """
        task, size = site.task, site.settings.batch_size
        means = prototypes(model, site.train, task.objective.classes, size, task.device)
        return scale_prototypes(means) if self.prototype == "scaled" else means

    def evaluate_distiller(self, site: Site, model: Distiller) -> tuple[float, float]:
        """Return accuracy and mean |cos| between reconstruction and residual on the site's validation images."""
        assert site.val is not None
        return evaluate_distiller(model, site.val, require_scale(site.task), site.settings.batch_size, site.task.device)

    def freeze_or_store(
        self, site: Site, reply: Reply, distilling: DistillerTraining, adversary: Adversary | None
    ) -> None:
        """Freeze the site if it meets the conditions, otherwise store its critic and optimisers for the next round."""
        past = site.state.meta["evaluations"] = site.state.meta["evaluations"][-self.window :]
        if past:
            reply.log |= {"distil_accuracy": past[-1][0], "distil_cosine": past[-1][1]}
        if self.freeze and self.is_ready_to_freeze(past):
            reply.meta["frozen"] = True
            site.state.tensors = model_tensors(site)
            return
        self.keep_optimizer(site, distilling)
        if adversary is not None:
            others = {
                name: t for name, t in site.state.tensors.items() if not name.startswith(f"{AUXILIARY_PREFIX}{CRITIC}/")
            }
            site.state.tensors = others | prefixed(adversary.tensors(), AUXILIARY_PREFIX)

    def is_ready_to_freeze(self, past: list[list[float]]) -> bool:
        """Return whether the last epochs meet the conditions for freezing.

        Args:
            past: Accuracy and mean |cos| between reconstruction and residual after each epoch.
        """
        accuracies, cosines = [numbers[0] for numbers in past], [numbers[1] for numbers in past]
        return should_freeze(
            accuracies, cosines, self.accuracy, self.tolerance, self.cosine, self.window, self.fluctuation
        )
