"""FedSM as a method class: training of the three networks, the soft pull of personal models, and the super model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import nn
from torch.nn import functional as F

from medfl.contract import Model, Need, PayloadKind, Replies, Reply, Request, Server, Site
from medfl.errors import RefusedError, SettingsError
from medfl.task import Task
from medfl.toolkit.aggregation import check_updates, mean_update, subtract
from medfl.toolkit.averaging import Averaging
from medfl.toolkit.fit import Fit
from medfl.toolkit.model_transfer import with_host_settings
from medfl.toolkit.participant_state import auxiliary_state, model_tensors, set_auxiliary_state
from medfl.toolkit.training_specs import Training
from medfl.training.loop import Batch
from medfl.types import MODEL_PREFIX, Tensors
from medfl.utils.wire import prefixed, select
from medfl_methods.fedsm.networks import new_selector, new_super_model

PERSONAL_PREFIX, SELECTOR_PREFIX, MOMENTS_PREFIX = "own/", "selector/", "moments/"
"""Prefixes of tensor names. `PERSONAL_PREFIX`: personal models; `SELECTOR_PREFIX`: selector, the network that chooses a
model; `MOMENTS_PREFIX`: moments of the selector's optimiser Adam."""

SELECTOR_NAME = "fedsm selector"
"""Name of the selector among the networks of a task."""


class FedSM(Averaging):
    """Sites train a global model, a personal model each, and a selector that chooses between them for each image.

    The global model equals the model of `fedavg` bit by bit. With ``lam = 1`` the personal models equal the models of
    `local`, if all sites take part in every round; with ``lam = 1/K`` all personal models are their mean.

    **Every site receives a model that was trained on each single other site, and a network that predicts which site's
    patient an image may show.** Both make it easier to find out which patients were among the training images. A run
    with a privacy setting refuses this method.

    Update rule:
        In each round a participant trains three networks: the global model as in FedAvg; its personal model on the same
        loss; and the selector, which predicts from an image which of the K sites it comes from, by cross-entropy with
        the site's number and Adam. The server averages the global model, the selector and the moments of Adam, weighted
        by size; without the moments, Adam would start again in each round. Personal models attract each other (the soft
        pull):

            v_k <- lam v_k + (1 - lam) / (n - 1) sum of the other participants' v_j

        where n is the number of participants; a single participant's model stays as it is. The personal model of an
        unavailable site does not change. The super model predicts an image by the personal model of the site to which
        the selector gives a probability above `threshold`, and by the global model if there is no such site. All sites
        use the super model, and receive all personal models for evaluation and at the end. The selector is a small
        convolutional network, or has only a hidden layer if the run's network starts with a linear layer. In training
        with patches it selects by patch.

    When to use it: Use it if the sites' images look different and the model also serves patients from elsewhere, above
    all for segmentation. A site trains three networks instead of one, and its last download has K + 1 models.

    Attributes:
        lam: Fraction of a site's own personal model in the soft pull, in [0, 1].
        threshold: Probability above which the personal model of a site is chosen, in [0, 1]; with 1 none is ever
            chosen.
        selector_width: Number of channels of the selector's first convolution, >= 1; its hidden layer has four times as
            many.
        selector_lr: Learning rate of the selector, > 0.

    Source: Xu, Li, Guo, Yang, Roth, Hatamizadeh, Zhao, Xu, Huang, Xu, CVPR 2022, and its code for NVIDIA FLARE.
    """

    name = "fedsm"
    family = "personal"
    paper = "Xu et al., CVPR 2022"
    summary = "a global model, a personal model of each site, and a network that selects between them by image"
    supports = frozenset()

    needs: ClassVar[frozenset[Need]] = frozenset({"raw_images"})
    """Requirements that the task or the run must meet: the selector sees images, not features of the body."""
    sends: ClassVar[Mapping[str, PayloadKind]] = {
        MODEL_PREFIX: "update",
        PERSONAL_PREFIX: "weights",
        SELECTOR_PREFIX: "update",
        MOMENTS_PREFIX: "statistic",
    }
    """Tensors in a site's reply: mapping from each name prefix to the kind of payload, such as an update."""

    lam: float = Field(0.7, ge=0, le=1)
    threshold: float = Field(0.9, ge=0, le=1)
    selector_width: int = Field(16, ge=1)
    selector_lr: float = Field(1e-3, gt=0, allow_inf_nan=False)

    # ---- networks

    def with_selector(self, task: Task, sites: int) -> Task:
        """Return the task with an additional network: a selector for the given number of sites."""
        return task.with_network(SELECTOR_NAME, partial(new_selector, task.build, sites, self.selector_width))

    def network_config(self, model: Model, network_def: Any) -> Any:
        """Return the configuration with which a bundle builds the network of a model.

        For a personal model it is the configuration of a super model.

        Args:
            model: Global or personal model.
            network_def: Configuration of the task's network.
        """
        if not model.meta:
            return network_def
        config = {"_target_": "medfl_methods.fedsm.networks.super_model", "network": network_def}
        return config | model.meta | {"width": self.selector_width, "threshold": self.threshold}

    def predictor(self, task: Task, models: list[Model]) -> nn.Module:
        """Return a network that predicts with a model: the task's network; for a personal model, the super model."""
        network, meta = models[0].network, models[0].meta
        if meta:
            built = partial(new_super_model, width=self.selector_width, threshold=self.threshold, **meta)
            task = task.with_network(network, partial(built, partial(task.build, network)))
        return super().predictor(task, models)

    # ---- the server

    def setup(self, server: Server) -> None:
        """Initialise the global model, the personal model of each site and the selector in the server's state.

        The personal models start from the global one.

        Raises:
            SettingsError: If parts of the models stay at the sites.
        """
        super().setup(server)
        if not server.state.meta["complete"]:
            raise SettingsError(
                "incomplete_model",
                "fedsm sends the models of all sites to each site, so they must be complete: expected norm_sync 'all' "
                f"or 'frozen', got '{server.settings.norm_sync}'. Change it, or use networks without batch norm.",
                norm_sync=server.settings.norm_sync,
            )
        server.state.meta["members"] = members = server.trainable()
        initial_model = model_tensors(server)
        for number in range(len(members)):
            set_auxiliary_state(server, f"{PERSONAL_PREFIX}{number}/", initial_model)
        set_auxiliary_state(
            server,
            SELECTOR_PREFIX,
            self.with_selector(server.task, len(members)).initial(server.settings.seed, SELECTOR_NAME),
        )

    def requests(self, server: Server) -> list[Request]:
        """Return the requests to train for this round's participants.

        Each contains the global model, the site's personal model, and the selector with its moments.
        """
        members = server.state.meta["members"]
        tensors = prefixed(model_tensors(server), MODEL_PREFIX)
        for prefix in (SELECTOR_PREFIX, MOMENTS_PREFIX):
            tensors |= prefixed(auxiliary_state(server, prefix), prefix)

        def request_to(site: str) -> Request:
            number = members.index(site)
            own = prefixed(auxiliary_state(server, f"{PERSONAL_PREFIX}{number}/"), PERSONAL_PREFIX)
            return Request(site, "fit", tensors | own, {"number": number, "sites": len(members)})

        return [request_to(request.to) for request in super().requests(server) if request.to in members]

    def publish(self, server: Server) -> Tensors:
        """Return the tensors that the server sends to all sites for evaluation and at the end.

        They are the global model, all personal models and the selector.
        """
        beside = {
            prefix: prefixed(auxiliary_state(server, prefix), prefix) for prefix in (PERSONAL_PREFIX, SELECTOR_PREFIX)
        }
        return super().publish(server) | beside[PERSONAL_PREFIX] | beside[SELECTOR_PREFIX]

    def check_tensors(self, task: Task, request: Request, tensors: Tensors) -> None:
        """Raise if a reply has unexpected tensors.

        Expected are updates of the global model and of the selector, a personal model, and moments that fit the
        selector.

        Raises:
            RefusedError: If any other tensor is in the reply, or the personal model is missing.
        """
        super().check_tensors(task, request, tensors)
        check_updates(tensors, request.tensors, {PERSONAL_PREFIX: "update"})
        if not select(tensors, PERSONAL_PREFIX):
            raise RefusedError(
                "missing_tensor", "Expected the site's personal model in its reply, found none.", tensor=PERSONAL_PREFIX
            )
        check_moments(select(tensors, MOMENTS_PREFIX), select(request.tensors, SELECTOR_PREFIX))

    def aggregate_updates(self, server: Server, replies: Replies) -> None:
        """Average the global model, the selector and the moments, then apply the soft pull to the personal models."""
        self.average(server, replies, (SELECTOR_PREFIX, MOMENTS_PREFIX))
        total = mean_update(replies, dict.fromkeys(replies.meta, 1.0), PERSONAL_PREFIX)
        for site, tensors in replies:
            place = f"{PERSONAL_PREFIX}{server.state.meta['members'].index(site)}/"
            set_auxiliary_state(
                server, place, apply_soft_pull(select(tensors, PERSONAL_PREFIX), total, len(replies), self.lam)
            )

    def aggregate_extra(self, server: Server, prefix: str, mean: Tensors, replied: int) -> None:
        """Aggregate tensors other than the model: add the selector's mean update, or set the moments to the mean.

        Args:
            server: Server whose state is changed.
            prefix: Prefix of the tensors, of the selector or of the moments.
            mean: Mean of the sites' tensors.
            replied: Number of sites that replied.
        """
        if prefix == MOMENTS_PREFIX:
            set_auxiliary_state(server, MOMENTS_PREFIX, {name: tensor.float() for name, tensor in mean.items()})
        else:
            super().aggregate_extra(server, prefix, mean, replied)

    # ---- a site

    def trainings(self, site: Site) -> Sequence[Training]:
        """Return the training phases of a site, for the personal and the global model; `train` adds the selector's."""
        return Training("own", apart=True), Training()

    def train(self, site: Site, request: Request) -> Reply:
        """Train all three networks, and return the personal model, both updates and the selector's moments."""
        set_auxiliary_state(site, PERSONAL_PREFIX, select(request.tensors, PERSONAL_PREFIX))
        reply, received = super().train(site, request), select(request.tensors, SELECTOR_PREFIX)
        there = with_host_settings(
            replace(site, task=self.with_selector(site.task, request.meta["sites"])), SELECTOR_NAME
        )
        training, number = Training(SELECTOR_NAME), {"number": request.meta["number"]}
        done = self.fit(there, received, select(request.tensors, MOMENTS_PREFIX), number, training=training)
        update = {name: subtract(done.after[name], old) for name, old in received.items()}
        reply.tensors |= prefixed(auxiliary_state(site, PERSONAL_PREFIX), PERSONAL_PREFIX) | prefixed(
            update, SELECTOR_PREFIX
        )
        reply.tensors |= prefixed(done.optimizer, MOMENTS_PREFIX)
        reply.log["selector_loss"] = done.log["loss"]
        return reply

    def make_optimizer(self, fit: Fit) -> torch.optim.Optimizer:
        """Return the optimiser of a training: Adam for the selector, the task's optimiser for the models."""
        if fit.training.label != SELECTOR_NAME:
            return super().make_optimizer(fit)
        return torch.optim.Adam((parameter for _, parameter in fit.parameters()), lr=self.selector_lr)

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """Return the loss of a batch: the task's; for the selector, the cross-entropy with the site's number."""
        if fit.training.label != SELECTOR_NAME:
            return fit.task_loss(batch)
        logits = fit.logits(batch)
        return F.cross_entropy(logits, torch.full((len(logits),), fit.extra["number"], device=logits.device))

    def models(self, participant: Server | Site) -> dict[str, Model]:
        """Return the models of a participant that are evaluated and exported, by kind.

        ``global``: the global model. ``personal``, only at sites: the super model.
        """
        if isinstance(participant, Server):
            return super().models(participant)
        common, own = (select(participant.published, prefix) for prefix in (MODEL_PREFIX, PERSONAL_PREFIX))
        models = {"global": Model(participant.network, common)}
        if own:
            tensors = prefixed(common, "common.") | prefixed(
                select(participant.published, SELECTOR_PREFIX), "selector."
            )
            tensors |= {f"own.{name.replace('/', '.', 1)}": tensor for name, tensor in own.items()}
            sites = len({name.partition("/")[0] for name in own})
            models["personal"] = Model(participant.network, tensors, {"sites": sites})
        return models


def apply_soft_pull(own: Tensors, total: Tensors, sites: int, lam: float) -> Tensors:
    """Move a personal model toward the other sites' models: lam v_k + (1 - lam) / (n - 1) sum of the others' v_j.

    The model of a single site is returned unchanged.

    Args:
        own: Tensors v_k of the site's model; integer buffers stay unchanged.
        total: Sum of all sites' models v_j, including v_k, float64.
        sites: Number n of models in the sum.
        lam: Fraction of v_k, in [0, 1].
    """
    if sites < 2 or lam == 1:
        return own
    share = (1 - lam) / (sites - 1)
    return {
        name: (lam * tensor.double() + share * (total[name] - tensor.double())).to(tensor.dtype)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in own.items()
    }


def check_moments(moments: Tensors, selector: Tensors) -> None:
    """Raise if Adam could not continue from these moments; no moments at all are accepted.

    Args:
        moments: Moments of Adam, by tensor name.
        selector: Tensors of the selector.

    Raises:
        RefusedError: If names or shapes differ from the selector's, or values are below 0 or not float32.
    """
    expected_shapes = {
        f"{name}/{key}": tensor.shape for name, tensor in selector.items() for key in ("exp_avg", "exp_avg_sq")
    }
    expected_shapes |= {f"{name}/step": torch.Size() for name in selector}
    if moments and {name: tensor.shape for name, tensor in moments.items()} != expected_shapes:
        raise RefusedError(
            "unexpected_tensors",
            f"Expected {len(expected_shapes)} moments of the selector's parameters, got other names or shapes.",
            count=len(expected_shapes),
        )
    for name, tensor in moments.items():
        if tensor.dtype is not torch.float32 or (not name.endswith("/exp_avg") and bool((tensor < 0).any())):
            raise RefusedError(
                "invalid_tensor_values",
                f"The moment {ascii(name)[:60]} was refused: expected float32 values >= 0, got {tensor.dtype}.",
                tensor=ascii(name)[:60],
                minimum=0,
                dtype=str(tensor.dtype),
            )
