"""FedTPF."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from medfl.contract import Need, ReducesTo, Replies, Reply, Request, Server, Site
from medfl.data.pooled import count_patients
from medfl.errors import SettingsError
from medfl.networks.parts import features_of
from medfl.privacy.release import Release
from medfl.toolkit.kept import KEPT, shared_of
from medfl.toolkit.prototypes import distance, prototypes, scaled
from medfl.toolkit.rounds import Due, Step
from medfl.types import Meta
from medfl.utils.metadata import Count, MetaField, number
from medfl.utils.wire import prefixed, select
from medfl_methods.fedfed.base import LOUDEST, FeatureSharing
from medfl_methods.fedfed.distillation import Distilling, Divided, judge, scale_of
from medfl_methods.fedfed.distiller import Distiller
from medfl_methods.fedfed.division import PART
from medfl_methods.fedtpf.adversary import CRITIC, Adversary
from medfl_methods.fedtpf.early_stop import Decay, WithFrozen, decay, freeze, judges, last_change, should_freeze


class FedTPF(FeatureSharing):
    """FedFed with a generator that is pulled to class prototypes and judged by a critic, and sites that freeze.

    In a round of the first stage a site trains the task's network first; the mean features of its images of each class
    are its prototypes. Then it trains generator and classifier, as in `FeatureSharing`, plus ``adversarial`` times
    -E[D(q(x))] with its own critic D (a WGAN with gradient penalty), plus ``prototype_weight`` times the squared
    distance of an image's latent numbers to the prototype of its class. Critic and prototypes never leave the site.

    A site whose classifier is right on at least `accuracy` - `tolerance` of its validation images in each of the last
    `window` epochs, while |cos| between the two parts of an image stays below `cosine`, and neither varies by more than
    `fluctuation`, freezes: it trains the task's network only, and its last generator and classifier, kept at the
    server, go on counting whenever it takes part, with a weight that decays as the others get better (`decay`). The
    stage ends when the common classifier reaches `accuracy` at every site that has validation images, or after
    `distil_rounds`. Sites without validation images never freeze and have no say in that.

    Then all is as in FedFed, with one copy of each image. With ``share_fraction = 0`` this is `fedavg`.

    When to use it: Where classes are spread unevenly over sites and these may share noised residuals of their images.
    The noise of the paper hides nobody: its epsilon has no bound on the residual, and the preset ``paper`` says "no
    differential privacy". The default clips, and then there is an epsilon, but next to nothing of the image is left
    under the noise. `medfl attack` measures what leaks.

    Attributes:
        generator: ``vae_wgan_gp``; ``vae`` has no critic; ``resnet`` has neither critic nor latent numbers, so no pull
            to prototypes.
        adversarial: Weight of the critic's term, >= 0; 0 trains no critic.
        penalty: Factor of the critic's gradient penalty, >= 0.
        critic_steps: Its steps for one of the generator, >= 1.
        critic_lr: Learning rate of its Adam, > 0.
        prototype: ``mean`` features of a class; ``scaled``, brought to the norm sqrt(d) of a standard normal vector,
            which the KL term asks for; or ``none``.
        prototype_weight: Weight of the distance to prototypes, >= 0.
        freeze: Whether sites freeze.
        accuracy: What freezing and the end of the stage ask for, in [0, 1].
        tolerance: How far below that is enough to freeze, >= 0.
        cosine: What |cos| stays below, > 0.
        window: Epochs that count, >= 1.
        fluctuation: Largest difference within the window, >= 0.
        decay: ``cumulative``: exp(-rate times the sum of the active sites' improvements since the freeze); ``literal``:
            of the last improvement only, as equation 8 is printed; ``text``: faster the less there is to see, as the
            paper's text has it; ``none``: 1.
        decay_rate: lambda of equation 8, >= 0; 0 is no decay.
        variance: Of the noise, > 0, in squared units of images in [0, 1], whichever noise it is.

    Source: "Privacy-Preserving Efficient Federated Learning for Internet of Medical Things under Data Heterogeneity",
    equations 1 to 9 and algorithm 1. Where they contradict each other, see `medfl_methods.fedtpf.early_stop`. In round
    t the decay looks at the accuracies after the rounds t - 1 and t - 2, the last that are known.
    """

    name = "fedtpf"
    family = "shared images"
    paper = "FedTPF (authors and venue not known to us)"
    summary = "FedFed with a VAE-WGAN-GP, pulled to class prototypes, that sites stop to train when it is good"
    supports = frozenset()

    needs: ClassVar[frozenset[Need]] = frozenset({"class_labels", "images_of_one_shape", "linear_head"})
    sends_meta: ClassVar[Mapping[str, MetaField]] = {
        **FeatureSharing.sends_meta,
        "frozen": MetaField("private", bool),
        "accuracy": MetaField("private", number(0, 1), after=("assess",)),
        "judged": MetaField("private", Count, after=("assess",)),
    }
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
    variance: float = Field(0.15, gt=0, le=LOUDEST**2, allow_inf_nan=False)

    def releases(self) -> list[Release]:
        """One copy."""
        return [self.release(self.variance)]

    def kind(self) -> Literal["vae", "resnet"]:
        """The generator without its critic."""
        return "resnet" if self.generator == "resnet" else "vae"

    @property
    def pulls(self) -> bool:
        """Whether latent numbers are pulled to prototypes."""
        return self.prototype != "none" and self.prototype_weight > 0 and self.generator != "resnet"

    @property
    def judged(self) -> bool:
        """Whether there is a critic."""
        return self.generator == "vae_wgan_gp" and self.adversarial > 0

    # ---- the server

    def setup(self, server: Server) -> None:
        """Nobody is frozen.

        Raises:
            SettingsError: If latent numbers can't be compared with prototypes.
        """
        task, pulled = server.task, self.pulls and self.latent is not None
        if pulled and self.latent != (features := features_of(task.build(), task.network)):
            raise SettingsError(
                "setting_out_of_range",
                f"'latent' is {self.latent} and network '{task.network}' has {features} features: expected as many, as "
                "latent numbers are pulled to mean features. Leave 'latent' out, or set 'prototype' to 'none'.",
                setting="latent",
                network=task.network,
                expected=features,
                found=self.latent,
            )
        super().setup(server)
        server.state.meta |= {"frozen": {}, "changes": {}, "history": [], "threshold": self.accuracy}

    def round_steps(self) -> tuple[Step, ...]:
        """As in `FeatureSharing`; in the first stage sites judge the new generator and classifier.

        Nobody's judgement is needed to go on.
        """
        distil, *others = super().round_steps()
        assess = Step("assess", self.assess_requests, self.assess, self.aggregate_assessed, quorum=0, updates=())
        return distil, assess, *others

    def schedule(self, server: Server, done: Sequence[Due]) -> Sequence[Due]:
        """In the first stage all who can judge what came out."""
        left = super().schedule(server, done)
        return [*left, Due("assess")][len(done) :] if left[0].name == "distil" and judges(server) else left

    def distil_requests(self, server: Server) -> list[Request]:
        """All train the task's network; only sites that are not frozen get generator and classifier."""
        model, frozen = self.publish(server), server.state.meta["frozen"]
        both = model | self.distiller(server)
        return [Request(name, "distil", model if name in frozen else both) for name in self.chosen(server)]

    def assess_requests(self, server: Server) -> list[Request]:
        """To all who can judge generator and classifier."""
        tensors = self.distiller(server)
        return [Request(name, "assess", tensors) for name in judges(server)]

    def aggregate_assessed(self, server: Server, replies: Replies) -> None:
        """The first stage ends if all are right often enough, or at its limit."""
        accuracy = {name: float(meta["accuracy"]) for name, meta in replies.meta.items()}
        judged = {name: int(meta["judged"]) for name, meta in replies.meta.items()}
        server.state.meta["history"][-1] |= {"accuracy": accuracy, "judged": judged}
        threshold = server.state.meta["threshold"]
        if set(accuracy) == set(judges(server)) and min(accuracy.values()) >= threshold - 1e-9:
            self.end_stage(server, "accuracy")
        else:
            self.check_limit(server)

    def aggregate_distilled(self, server: Server, replies: Replies) -> None:
        """Average; what a site sent last stands for it once it is frozen."""
        self.average(server, replies)
        known, before = server.state.meta, select(server.state.tensors, KEPT + PART)
        gone = [name for name in replies.meta if name in known["frozen"]]
        active = [name for name in replies.meta if name not in known["frozen"]]
        change = last_change(known["history"], active)
        for name, tensors in replies:
            if replies.meta[name].get("frozen"):
                freeze(server, name, before, select(tensors, PART))
        for name in known["frozen"]:
            known["changes"].setdefault(name, []).append(change)
        weights = {name: self.trust(server, name) for name in replies.meta}
        known["history"].append({"round": server.round, "accuracy": {}, "weights": weights, "active": active})
        self.average_distillers(server, WithFrozen(replies, server, gone, before, PART))
        if not judges(server):
            self.check_limit(server)

    def trust(self, server: Server, name: str) -> float:
        """alpha of equation 8: 1 for an active site."""
        return decay(server.state.meta["changes"].get(name, []), self.decay_rate, self.decay)

    def distil_weights(self, server: Server, metas: Mapping[str, Meta]) -> dict[str, float]:
        """Numbers of images, times the trust in frozen sites."""
        weights = self.weights_of(server, metas)
        return {name: weight * self.trust(server, name) for name, weight in weights.items()}

    # ---- a site

    def assess(self, site: Site, request: Request) -> Reply:
        """How often the classifier is right on the site's validation images."""
        model = self.loaded(site.task, select(request.tensors, PART))
        judged = 0 if site.val is None else count_patients(site.val)
        return Reply(meta={"accuracy": self.judge(site, model)[0], "judged": judged})

    def distil(self, site: Site, request: Request) -> Reply:
        """Train the task's network, then, unless this site is frozen, generator and classifier."""
        reply = self.train_task(site, request)
        reply.meta["frozen"] = False
        if not select(request.tensors, PART):
            return reply
        distilling, adversary = self.own_distiller(site, request), self.adversary(site)
        trained = reply.trained["personal"].tensors
        pulled = self.prototypes(site, site.task.load(trained, site.network)) if self.pulls else None
        past = site.state.meta.setdefault("judged", [])
        for epoch in range(self.distil_epochs):

            def loss(batch: Any) -> torch.Tensor:
                divided = distilling.divide(batch)
                return self.distil_loss(distilling, divided, site.task.loss) + self.pull(divided, adversary, pulled)

            reply.log["distil_loss"] = distilling.pass_over(loss, f"distil {epoch}")
            if site.val is not None and len(site.val):
                past.append(list(self.judge(site, distilling.model)))
        self.remember(site, reply, distilling, adversary)
        reply.tensors |= self.distiller_update(request, distilling.model)
        return reply

    def pull(self, divided: Divided, adversary: Adversary | None, pulled: torch.Tensor | None) -> torch.Tensor:
        """What the critic and the prototypes add to the loss; the critic takes its own step first."""
        total = divided.images.new_zeros(())
        if adversary is not None:
            adversary.learn(divided.images, divided.rebuilt.images)
            total = total + self.adversarial * adversary.deceived(divided.rebuilt.images)
        if pulled is not None and divided.rebuilt.latent is not None:
            total = total + self.prototype_weight * distance(divided.rebuilt.latent, pulled, divided.labels)
        return total

    def adversary(self, site: Site) -> Adversary | None:
        """The site's own critic, as it was."""
        if not self.judged:
            return None
        kept = select(site.state.tensors, KEPT)
        return Adversary(site, kept, self.critic_lr, self.penalty, self.critic_steps, self.width)

    def prototypes(self, site: Site, model: nn.Module) -> torch.Tensor:
        """Of the task's network, just trained."""
        task, size = site.task, site.settings.batch_size
        means = prototypes(model, site.train, task.objective.classes, size, task.device)
        return scaled(means) if self.prototype == "scaled" else means

    def judge(self, site: Site, model: Distiller) -> tuple[float, float]:
        """Accuracy on the site's validation images, and |cos| between their parts."""
        assert site.val is not None
        return judge(model, site.val, scale_of(site.task), site.settings.batch_size, site.task.device)

    def remember(self, site: Site, reply: Reply, distilling: Distilling, adversary: Adversary | None) -> None:
        """Whether the site freezes; if it doesn't, its critic and optimisers stay for the next round."""
        past = site.state.meta["judged"] = site.state.meta["judged"][-self.window :]
        if past:
            reply.log |= {"distil_accuracy": past[-1][0], "distil_cosine": past[-1][1]}
        if self.freeze and self.done(past):
            reply.meta["frozen"] = True
            site.state.tensors = shared_of(site)
            return
        self.keep_optimizer(site, distilling)
        if adversary is not None:
            others = {name: t for name, t in site.state.tensors.items() if not name.startswith(f"{KEPT}{CRITIC}/")}
            site.state.tensors = others | prefixed(adversary.tensors(), KEPT)

    def done(self, past: list[list[float]]) -> bool:
        """Whether a site freezes."""
        accuracies, cosines = [numbers[0] for numbers in past], [numbers[1] for numbers in past]
        return should_freeze(
            accuracies, cosines, self.accuracy, self.tolerance, self.cosine, self.window, self.fluctuation
        )
