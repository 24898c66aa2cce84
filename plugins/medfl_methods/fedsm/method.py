"""FedSM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import nn
from torch.nn import functional as F

from medfl.contract import Model, PayloadKind, Replies, Reply, Request, Server, Site
from medfl.errors import RefusedError, SettingsError
from medfl.task import Task
from medfl.toolkit.aggregation import check_updates, mean_update, subtract
from medfl.toolkit.averaging import Averaging
from medfl.toolkit.fit import Fit
from medfl.toolkit.kept import keep, kept, shared_of
from medfl.toolkit.trainings import Training
from medfl.toolkit.transfer import as_host
from medfl.training.loop import Batch
from medfl.types import MODEL, Tensors
from medfl.utils.wire import prefixed, select
from medfl_methods.fedsm.networks import new_selector, new_super_model

OWN, SELECTOR, MOMENTS = "own/", "selector/", "moments/"
"""What the names of own models, of the selector and of its optimiser's moments begin with."""

NAME = "fedsm selector"
"""The selector's name among a task's networks."""


class FedSM(Averaging):
    """A super model: a common model, one of each site's own, and a network that selects among them, image by image.

    Each round a participant trains three networks: the common one, as in FedAvg; its own, by the same loss; and the
    selector, to tell by an image which of the K sites it is from, by cross entropy with the site's number and by Adam.
    The common one and the selector are averaged by size, and so are the moments of Adam, which otherwise never get
    going. Own models pull each other softly: v_k <- lam v_k + (1 - lam) / (n - 1) sum of the other participants' v_j,
    where n is their number; one alone stays as it is. Who is away keeps his. Each image is answered by the own model of
    the site that the selector calls more probable than `threshold`, and by the common one where there is none. All
    sites answer so, and at evaluation and in the end each gets all own models. The selector is a small convolutional
    network, or has a hidden layer alone where the run's network begins with a linear one; in training by patches it
    selects by patches.

    The common model is that of `fedavg`, bit by bit. With ``lam = 1`` the own models are those of `local`, if all sites
    take part in every round; with ``lam = 1/K`` all are their mean.

    **Every site gets a model that was trained on each other site alone, and a network that tells whose patients an
    image may be of**: both make it easier to tell who was among the training images. A run with a privacy setting
    refuses this method.

    When to use it: When sites' images look unlike and the model also serves patients from elsewhere, above all for
    masks. It trains three networks in place of one, and each site's last download is of K + 1 models.

    Attributes:
        lam: Share of a site's own model in the soft pull, in [0, 1].
        threshold: How probable a site has to be for its own model to answer, in [0, 1]; with 1 none ever does.
        selector_width: Channels of the selector's first convolution, >= 1; its hidden layer has four times as many.
        selector_lr: Learning rate of the selector, > 0.

    Source: Xu, Li, Guo, Yang, Roth, Hatamizadeh, Zhao, Xu, Huang, Xu, CVPR 2022, and its code for NVIDIA FLARE.
    """

    name = "fedsm"
    family = "personal"
    paper = "Xu et al., CVPR 2022"
    summary = "a common model, one of each site's own, and a network that selects among them, image by image"
    supports = frozenset()

    sends: ClassVar[Mapping[str, PayloadKind]] = {
        MODEL: "update",
        OWN: "weights",
        SELECTOR: "update",
        MOMENTS: "statistic",
    }

    lam: float = Field(0.7, ge=0, le=1)
    threshold: float = Field(0.9, ge=0, le=1)
    selector_width: int = Field(16, ge=1)
    selector_lr: float = Field(1e-3, gt=0, allow_inf_nan=False)

    # ---- networks

    def selecting(self, task: Task, sites: int) -> Task:
        """The task with a selector for so many sites among its networks."""
        return task.with_network(NAME, partial(new_selector, task.build, sites, self.selector_width))

    def network_config(self, model: Model, network_def: Any) -> Any:
        """Of a personal model: the run's network in many copies, and a selector."""
        if not model.meta:
            return network_def
        config = {"_target_": "medfl_methods.fedsm.networks.super_model", "network": network_def}
        return config | model.meta | {"width": self.selector_width, "threshold": self.threshold}

    def predictor(self, task: Task, models: list[Model]) -> nn.Module:
        """The model as it is; a personal one selects."""
        network, meta = models[0].network, models[0].meta
        if meta:
            built = partial(new_super_model, width=self.selector_width, threshold=self.threshold, **meta)
            task = task.with_network(network, partial(built, partial(task.build, network)))
        return super().predictor(task, models)

    # ---- the server

    def setup(self, server: Server) -> None:
        """The common initial model, which is also each site's own, and the initial selector.

        Raises:
            SettingsError: If parts of models stay at their sites.
        """
        super().setup(server)
        if not server.state.meta["complete"]:
            raise SettingsError(
                "incomplete_model",
                f"fedsm gives each site the models of all, so these have to be whole: expected norm_sync 'all' or "
                f"'frozen', got '{server.settings.norm_sync}'. Change it, or use networks without batch norm.",
                norm_sync=server.settings.norm_sync,
            )
        server.state.meta["members"] = members = server.trainable()
        first = shared_of(server)
        for number in range(len(members)):
            keep(server, f"{OWN}{number}/", first)
        keep(server, SELECTOR, self.selecting(server.task, len(members)).initial(server.settings.seed, NAME))

    def requests(self, server: Server) -> list[Request]:
        """To this round's participants: the common model, the own one, and the selector with its moments."""
        members = server.state.meta["members"]
        tensors = prefixed(shared_of(server), MODEL)
        for prefix in (SELECTOR, MOMENTS):
            tensors |= prefixed(kept(server, prefix), prefix)

        def request_to(site: str) -> Request:
            number = members.index(site)
            own = prefixed(kept(server, f"{OWN}{number}/"), OWN)
            return Request(site, "fit", tensors | own, {"number": number, "sites": len(members)})

        return [request_to(request.to) for request in super().requests(server) if request.to in members]

    def publish(self, server: Server) -> Tensors:
        """The common model, all own ones, and the selector."""
        beside = {prefix: prefixed(kept(server, prefix), prefix) for prefix in (OWN, SELECTOR)}
        return super().publish(server) | beside[OWN] | beside[SELECTOR]

    def check_tensors(self, task: Task, request: Request, tensors: Tensors) -> None:
        """Updates of the common model and the selector, an own model, and moments that fit the selector.

        Raises:
            RefusedError: If anything else comes.
        """
        super().check_tensors(task, request, tensors)
        check_updates(tensors, request.tensors, {OWN: "update"})
        if not select(tensors, OWN):
            raise RefusedError("missing_tensor", "Expected the site's own model in its reply, got none.", tensor=OWN)
        check_moments(select(tensors, MOMENTS), select(request.tensors, SELECTOR))

    def aggregate_updates(self, server: Server, replies: Replies) -> None:
        """The means of common model, selector and moments; then own models pull each other."""
        self.average(server, replies, (SELECTOR, MOMENTS))
        total = mean_update(replies, dict.fromkeys(replies.meta, 1.0), OWN)
        for site, tensors in replies:
            place = f"{OWN}{server.state.meta['members'].index(site)}/"
            keep(server, place, pulled(select(tensors, OWN), total, len(replies), self.lam))

    def aggregate_extra(self, server: Server, prefix: str, mean: Tensors, replied: int) -> None:
        """The selector's mean update is added; the moments are their mean."""
        if prefix == MOMENTS:
            keep(server, MOMENTS, {name: tensor.float() for name, tensor in mean.items()})
        else:
            super().aggregate_extra(server, prefix, mean, replied)

    # ---- a site

    def trainings(self, site: Site) -> Sequence[Training]:
        """The own model's, and the common one's; the selector's comes after them."""
        return Training("own", apart=True), Training()

    def train(self, site: Site, request: Request) -> Reply:
        """All three networks."""
        keep(site, OWN, select(request.tensors, OWN))
        reply, received = super().train(site, request), select(request.tensors, SELECTOR)
        there = as_host(replace(site, task=self.selecting(site.task, request.meta["sites"])), NAME)
        training, number = Training(NAME), {"number": request.meta["number"]}
        done = self.fit(there, received, select(request.tensors, MOMENTS), number, training=training)
        update = {name: subtract(done.after[name], old) for name, old in received.items()}
        reply.tensors |= prefixed(kept(site, OWN), OWN) | prefixed(update, SELECTOR)
        reply.tensors |= prefixed(done.optimizer, MOMENTS)
        reply.log["selector_loss"] = done.log["loss"]
        return reply

    def make_optimizer(self, fit: Fit) -> torch.optim.Optimizer:
        """Adam for the selector."""
        if fit.training.label != NAME:
            return super().make_optimizer(fit)
        return torch.optim.Adam((parameter for _, parameter in fit.parameters()), lr=self.selector_lr)

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """The task's loss; for the selector the cross entropy with the site's number."""
        if fit.training.label != NAME:
            return super().loss(fit, batch)
        logits = fit.logits(batch)
        return F.cross_entropy(logits, torch.full((len(logits),), fit.extra["number"], device=logits.device))

    def models(self, participant: Server | Site) -> dict[str, Model]:
        """The common model, and at each site all of them with the selector."""
        if isinstance(participant, Server):
            return super().models(participant)
        common, own = (select(participant.published, prefix) for prefix in (MODEL, OWN))
        models = {"global": Model(participant.network, common)}
        if own:
            tensors = prefixed(common, "common.") | prefixed(select(participant.published, SELECTOR), "selector.")
            tensors |= {f"own.{name.replace('/', '.', 1)}": tensor for name, tensor in own.items()}
            sites = len({name.partition("/")[0] for name in own})
            models["personal"] = Model(participant.network, tensors, {"sites": sites})
        return models


def pulled(own: Tensors, total: Tensors, sites: int, lam: float) -> Tensors:
    """lam v_k + (1 - lam) / (n - 1) sum of the others' v_j; v_k itself of one site alone.

    Args:
        own: v_k, of which integer buffers stay.
        total: The sum of all v_j, float64.
        sites: n, how many are in it.
        lam: In [0, 1].
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
    """Refuse what Adam could not go on from: other names or shapes than the selector's, or values below 0.

    Raises:
        RefusedError: If the moments are so; none at all are let through.
    """
    known = {f"{name}/{key}": tensor.shape for name, tensor in selector.items() for key in ("exp_avg", "exp_avg_sq")}
    known |= {f"{name}/step": torch.Size() for name in selector}
    if moments and {name: tensor.shape for name, tensor in moments.items()} != known:
        raise RefusedError(
            "unexpected_tensors",
            f"Expected {len(known)} moments of the selector's parameters, got other names or shapes.",
            count=len(known),
        )
    for name, tensor in moments.items():
        if tensor.dtype is not torch.float32 or (not name.endswith("/exp_avg") and bool((tensor < 0).any())):
            raise RefusedError(
                "invalid_tensor_values",
                f"A moment {ascii(name)[:60]} was refused: expected float32 >= 0, got {tensor.dtype}.",
                tensor=ascii(name)[:60],
                minimum=0,
                dtype=str(tensor.dtype),
            )
