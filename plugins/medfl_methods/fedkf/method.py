"""FedKF as a method class: the teacher at the server, and generators at the sites."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field
from torch.nn import functional as F

from medfl.contract import Need, ReducesTo, Replies, Server
from medfl.networks.norms import evaluating
from medfl.networks.parts import features_and_logits
from medfl.toolkit.aggregation import mean_update, normalised_weights
from medfl.toolkit.fit import Fit
from medfl.toolkit.local_training import cpu_state
from medfl.toolkit.losses import distillation
from medfl.toolkit.model_transfer import is_finite
from medfl.toolkit.participant_state import as_float64, auxiliary_state, model_tensors, set_auxiliary_state
from medfl.training.loop import Batch
from medfl.training.optimizer_state import read_state, write_state
from medfl.types import MODEL_PREFIX, Meta, Tensors
from medfl.utils.rng import seeded_generators
from medfl.utils.wire import prefixed, select
from medfl_methods.fedavg import FedAvg
from medfl_methods.fedkf.generator import Generator, generator_loss

LAST_PREFIX, TEACHER_PREFIX = "last/", "teacher/"
"""Prefixes of tensor names. `LAST_PREFIX`: last model of each site, in the server's state; `TEACHER_PREFIX`: teacher,
in messages."""

GENERATOR_PREFIX, ADAM_PREFIX = "generator/", "generator_optimizer/"
"""Prefixes of tensor names in a site's state. `GENERATOR_PREFIX`: generator; `ADAM_PREFIX`: optimiser of the
generator."""


class FedKF(FedAvg):
    """FedAvg with a teacher, the mean of all sites' last models, that distils on generated images.

    With ``gamma = 0`` this is `fedavg` without a generator.

    Update rule:
        The server stores the last model of each site. The teacher is their mean, weighted by size. The round starts
        from the mean of the last participants, as in FedAvg. From the second round on a site trains a generator
        together with its model. For each batch of B images the generator makes B images from noise and takes a step of
        Adam on

            1 + sum_c p_c log p_c / log C + oh CE(z, argmax z) - a mean |f|

        where z and f are the teacher's logits and features of the generated images, and p is the mean of softmax(z)
        over them. With `g_use_kl` the loss also contains -gamma KL(model || teacher). The model minimises its own loss
        plus gamma KL(teacher || model) on the images generated before that step. The teacher is in evaluation mode.
        Generators and the states of their Adam stay at the sites; a generator that is not finite is not stored.

    When to use it: Use it with partial participation, if the model forgets sites that did not take part, or if it
    should be equally good at all sites. It takes two to three times as long as FedAvg, and the server stores a model of
    each site. If all sites take part in each round, the teacher equals the model at the start of the round.

    Attributes:
        gamma: Weight of the distillation from the teacher in a site's loss, >= 0; 0 needs no generator.
        oh: Weight of the cross-entropy CE(z, argmax z) in a generator's loss, by which the teacher should be certain of
            generated images, >= 0.
        a: Weight of the mean absolute feature in a generator's loss, by which the teacher should respond strongly to
            generated images, >= 0.
        noise_dim: Number of noise variables from which an image is generated, >= 1. The paper uses 1000, and 100 for
            small images.
        gen_lr: Learning rate of the generator's Adam, > 0.
        g_use_kl: Whether a generator also searches for images on which model and teacher differ.
        width: Number of channels of the generator's last stage, >= 1.

    Source: Zhou, Lei, Yang, Shi, Zhang, Shi, IEEE Internet of Things Journal 2023, and its released code; the generator
    is from Chen et al., Data-Free Learning of Student Networks, ICCV 2019.
    """

    name = "fedkf"
    family = "averaging"
    paper = "Zhou et al., IEEE Internet of Things Journal 2023"
    summary = "FedAvg with distillation from the mean of all sites' last models, on images generated from noise"
    supports = frozenset()

    needs: ClassVar[frozenset[Need]] = frozenset({"class_labels", "images_of_one_shape", "linear_head"})
    """Properties that the task, its data and its networks must have for this method."""
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
        """Properties that the task must have with these settings; none if gamma is 0, because there is no generator."""
        return self.needs if self.gamma else frozenset()

    # ---- the server

    def aggregate_updates(self, server: Server, replies: Replies) -> None:
        """Aggregate as in FedAvg, and store the last model and the weight of each site that replied."""
        old = model_tensors(server)
        super().aggregate_updates(server, replies)
        for site, tensors in replies if self.gamma else ():
            update = {name: as_float64(tensor) for name, tensor in select(tensors, MODEL_PREFIX).items()}
            set_auxiliary_state(server, f"{LAST_PREFIX}{site}/", self.server_update(server, old, update))
            server.state.meta.setdefault("weights", {})[site] = self.weight(replies.meta[site])

    def extra_request_tensors(self, server: Server) -> Tensors:
        """Return the tensors that a request contains beside the model: the teacher, once it exists."""
        weights = server.state.meta.get("weights", {})
        if not weights:
            return {}
        shares = normalised_weights(dict(weights), {site: {} for site in weights})
        lasts = [(site, auxiliary_state(server, f"{LAST_PREFIX}{site}/")) for site in sorted(weights)]
        mean = mean_update(lasts, shares, "")  # type: ignore[arg-type]
        return prefixed(
            {name: mean[name].to(tensor.dtype) for name, tensor in model_tensors(server).items()}, TEACHER_PREFIX
        )

    # ---- a site

    def before_fit(self, fit: Fit) -> None:
        """Prepare a training: load the teacher, the site's generator and the generator's optimiser."""
        tensors, site = select(fit.sent, TEACHER_PREFIX), fit.site
        if not tensors or not self.gamma:
            return
        fit.extra["teacher"] = site.task.load(self.full_state(site, tensors), site.network).eval().requires_grad_(False)
        shape = site.train.batch(torch.arange(1))[0].shape[1:]
        with seeded_generators(site.settings.seed, "initial", "generator"):
            generator = Generator(tuple(shape), self.noise_dim, self.width)
        generator.load_state_dict(auxiliary_state(site, GENERATOR_PREFIX) or generator.state_dict())
        optimizer = torch.optim.Adam(generator.to(site.task.device).parameters(), lr=self.gen_lr)
        write_state(optimizer, generator, auxiliary_state(site, ADAM_PREFIX))
        fit.extra |= {"generator": generator, "adam": optimizer, "noise": site.rng("generator")}

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """Take a step of the generator, then return the task's loss plus the distillation loss on generated images."""
        loss = fit.task_loss(batch)
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

    def can_continue(self, fit: Fit) -> bool:
        """Return True if the training does not change a generator."""
        return "generator" not in fit.extra

    def after_fit(self, fit: Fit) -> None:
        """Finish a training: store the generator and its optimiser at the site, if all values are finite."""
        if "generator" not in fit.extra:
            return
        state, adam = cpu_state(fit.extra["generator"]), read_state(fit.extra["adam"], fit.extra["generator"])
        if is_finite(state | adam):
            set_auxiliary_state(fit.site, GENERATOR_PREFIX, state)
            set_auxiliary_state(fit.site, ADAM_PREFIX, adam)
