"""FedKF."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field
from torch.nn import functional as F

from medfl.contract import Need, ReducesTo, Replies, Server
from medfl.networks.norms import evaluating
from medfl.networks.parts import features_and_logits
from medfl.toolkit.aggregation import mean_update, normalised
from medfl.toolkit.fit import Fit
from medfl.toolkit.kept import keep, kept, shared_of, wide
from medfl.toolkit.local_training import cpu_state
from medfl.toolkit.losses import distillation
from medfl.toolkit.transfer import is_finite
from medfl.training.loop import Batch
from medfl.training.optimizer_state import read_state, write_state
from medfl.types import MODEL, Meta, Tensors
from medfl.utils.rng import pinned
from medfl.utils.wire import prefixed, select
from medfl_methods.fedavg import FedAvg
from medfl_methods.fedkf.generator import Generator, generator_loss

LAST, TEACHER = "last/", "teacher/"
"""Where the server keeps the last model of each site; what the names of the teacher's tensors begin with."""

GENERATOR, ADAM = "generator/", "generator_optimizer/"
"""Where a site keeps its generator, and that one's optimiser."""


class FedKF(FedAvg):
    """FedAvg, and a teacher of all sites that ever took part, who teaches on images that no one has.

    The server keeps the last model of each site. The teacher is their mean, weighted by size; the start of a round is
    the mean of the last participants, as in FedAvg. From the second round on a site trains a generator beside its
    model: for each batch of B images it makes B from noise, by a step of Adam on

        1 + sum_c p_c log p_c / log C + oh CE(z, argmax z) - a mean |f|,

    where z and f are the teacher's logits and features of the made images and p the mean of softmax(z) over them; with
    `g_use_kl` less gamma KL(model || teacher), too. The model minimises its loss plus gamma KL(teacher || model) on the
    made images, as they were before the generator's step. The teacher is in evaluation mode. Generators and the state
    of their Adam stay at their sites; one that is not finite begins anew.

    ``gamma = 0`` makes this `fedavg`: there is no generator then.

    When to use it: With partial participation, where the model forgets sites that were away, or where it should be
    equally good at all. It takes two to three times FedAvg's time, and the server keeps a model of each site. Where all
    sites take part in each round the teacher is the start of the round.

    Attributes:
        gamma: Weight of the teacher, >= 0.
        oh: Weight of the teacher's certainty in a generator's loss, >= 0.
        a: Weight of its features, >= 0.
        noise_dim: Numbers that an image is made from, >= 1. The paper takes 1000, and 100 for small images.
        gen_lr: Learning rate of the generator's Adam, > 0.
        g_use_kl: Whether a generator looks for images on which model and teacher differ.
        width: Channels of the generator's last stage, >= 1.

    Source: Zhou, Lei, Yang, Shi, Zhang, Shi, IEEE Internet of Things Journal 2023, and its released code; the
    generator is that of Chen et al., Data-Free Learning of Student Networks, ICCV 2019.
    """

    name = "fedkf"
    family = "averaging"
    paper = "Zhou et al., IEEE Internet of Things Journal 2023"
    summary = "the mean of all sites' last models teaches on images that generators make of noise"
    supports = frozenset()

    needs: ClassVar[frozenset[Need]] = frozenset({"class_labels", "images_of_one_shape", "linear_head"})
    presets: ClassVar[Mapping[str, Meta]] = {"paper": {"noise_dim": 1000}, "medfl": {}}
    reduces_to: ClassVar[tuple[ReducesTo, ...]] = (ReducesTo("fedavg", {"gamma": 0.0}),)

    gamma: float = Field(1.0, ge=0, allow_inf_nan=False)
    oh: float = Field(0.1, ge=0, allow_inf_nan=False)
    a: float = Field(0.1, ge=0, allow_inf_nan=False)
    noise_dim: int = Field(100, ge=1)
    gen_lr: float = Field(1e-3, gt=0, allow_inf_nan=False)
    g_use_kl: bool = False
    width: int = Field(64, ge=1)

    @property
    def active_needs(self) -> frozenset[Need]:
        """None without a generator."""
        return self.needs if self.gamma else frozenset()

    # ---- the server

    def aggregate_updates(self, server: Server, replies: Replies) -> None:
        """FedAvg's; and the last model of each site that replied."""
        old = shared_of(server)
        super().aggregate_updates(server, replies)
        for site, tensors in replies if self.gamma else ():
            update = {name: wide(tensor) for name, tensor in select(tensors, MODEL).items()}
            keep(server, f"{LAST}{site}/", self.server_update(server, old, update))
            server.state.meta.setdefault("weights", {})[site] = self.weight(replies.meta[site])

    def extra_down(self, server: Server) -> Tensors:
        """The teacher, once there is one."""
        weights = server.state.meta.get("weights", {})
        if not weights:
            return {}
        shares = normalised(dict(weights), {site: {} for site in weights})
        lasts = [(site, kept(server, f"{LAST}{site}/")) for site in sorted(weights)]
        mean = mean_update(lasts, shares, "")  # type: ignore[arg-type]
        return prefixed({name: mean[name].to(tensor.dtype) for name, tensor in shared_of(server).items()}, TEACHER)

    # ---- a site

    def before_fit(self, fit: Fit) -> None:
        """The teacher, and the generator as the site kept it."""
        tensors, site = select(fit.sent, TEACHER), fit.site
        if not tensors or not self.gamma:
            return
        fit.extra["teacher"] = site.task.load(self.full_state(site, tensors), site.network).eval().requires_grad_(False)
        shape = site.train.batch(torch.arange(1))[0].shape[1:]
        with pinned(site.settings.seed, "initial", "generator"):
            generator = Generator(tuple(shape), self.noise_dim, self.width)
        generator.load_state_dict(kept(site, GENERATOR) or generator.state_dict())
        optimizer = torch.optim.Adam(generator.to(site.task.device).parameters(), lr=self.gen_lr)
        write_state(optimizer, generator, kept(site, ADAM))
        fit.extra |= {"generator": generator, "adam": optimizer, "noise": site.rng("generator")}

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """The task's loss, plus what the teacher says of made images; the generator takes a step."""
        loss = super().loss(fit, batch)
        if "generator" not in fit.extra:
            return loss
        noise = torch.randn(len(batch.images), self.noise_dim, generator=fit.extra["noise"]).to(batch.images.device)
        images, alternatives = fit.extra["generator"](noise), fit.site.task.objective.alternatives
        features, answers = features_and_logits(fit.extra["teacher"], images)
        teacher = alternatives(answers.float())
        goal = generator_loss(teacher, features, self.oh, self.a)
        if self.g_use_kl:
            with evaluating(fit.model):
                model = alternatives(fit.model(images).float())
            goal = goal - self.gamma * F.kl_div(
                teacher.log_softmax(1), model.log_softmax(1), reduction="batchmean", log_target=True
            )
        parameters = list(fit.extra["generator"].parameters())
        for parameter, gradient in zip(parameters, torch.autograd.grad(goal, parameters)):
            parameter.grad = gradient
        fit.extra["adam"].step()
        student = alternatives(fit.model(images.detach()).float())
        return loss + self.gamma * distillation(student, teacher).mean()

    def after_fit(self, fit: Fit) -> None:
        """The generator stays at the site."""
        if "generator" not in fit.extra:
            return
        state, adam = cpu_state(fit.extra["generator"]), read_state(fit.extra["adam"], fit.extra["generator"])
        if is_finite(state | adam):
            keep(fit.site, GENERATOR, state)
            keep(fit.site, ADAM, adam)
