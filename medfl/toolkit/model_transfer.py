"""Models that are sent from site to site: their messages, their training at a host, and the routes.

A host is a site that trains another site's model; the owner is the site that the model belongs to. A route assigns to
each host the model that it trains (or trains jointly with its own) in a round. A stamp is a list of numbers
that identifies the time of sending.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from medfl.contract import PayloadKind, PeerMessage, Site
from medfl.training.optimizer_state import OPTIMIZER_PREFIX
from medfl.types import Meta, Tensors
from medfl.utils.metadata import PEER_MESSAGE, Count, MetaField, Text, list_of, one_of
from medfl.utils.wire import prefixed, select

TRANSFER_PREFIX = "model/"
"""Prefix of the model's tensors in a peer message."""


MODEL_MESSAGE_TENSORS: Mapping[str, PayloadKind] = {TRANSFER_PREFIX: "weights", OPTIMIZER_PREFIX: "statistic"}
"""Prefixes and kinds of the tensors in a peer message with a model, for a method's `sends`."""


MODEL_MESSAGE_SCHEMA: Mapping[str, MetaField] = {
    "owner": MetaField("public", Text, after=(PEER_MESSAGE,)),
    "network": MetaField("public", one_of("networks"), after=(PEER_MESSAGE,)),
    "stamp": MetaField("public", list_of(Count, 2, shorter=True), after=(PEER_MESSAGE,)),
}
"""Metadata schema of a peer message with a model, for a method's `sends_meta`."""


@dataclass(frozen=True)
class ModelInTransit:
    """A model that is sent to another site, or back to its owner.

    Attributes:
        owner: Name of the site that owns the model.
        network: Name of the model's network in the task.
        kept: Tensors of the model and, under ``optimizer/``, of its optimiser if that is sent too.
    """

    owner: str
    network: str
    kept: Tensors


def pack_model(to: str, model: ModelInTransit, stamp: list[int]) -> PeerMessage:
    """Return a peer message with a model.

    Args:
        to: Name of the receiving site.
        model: The model.
        stamp: Numbers that identify the time of sending, starting with the round. The receiver uses them to detect late
            messages.
    """
    tensors = {
        name if name.startswith(OPTIMIZER_PREFIX) else TRANSFER_PREFIX + name: tensor
        for name, tensor in model.kept.items()
    }
    return PeerMessage(to, tensors, {"owner": model.owner, "network": model.network, "stamp": stamp})


def unpack_model(peer_message: PeerMessage) -> ModelInTransit:
    """Return the model in a peer message."""
    optimizer = select(peer_message.tensors, OPTIMIZER_PREFIX)
    kept = select(peer_message.tensors, TRANSFER_PREFIX) | prefixed(optimizer, OPTIMIZER_PREFIX)
    return ModelInTransit(peer_message.meta["owner"], peer_message.meta["network"], kept)


def receive_model(site: Site, owner: str, stamp: list[int]) -> ModelInTransit | None:
    """Return the received model of `owner` with this stamp.

    Return None if its sender was unavailable or it arrived late.
    """
    messages = [p for p in site.inbox if p.meta.get("owner") == owner and p.meta.get("stamp") == stamp]
    return unpack_model(messages[0]) if messages else None


def with_host_settings(site: Site, network: str, scale: int = 1) -> Site:
    """Return a copy of the site to train another site's model.

    Args:
        site: The host.
        network: Name of the other model's network.
        scale: Factor of the epochs or steps of local training.
    """
    settings = site.settings
    budget: Meta = {"epochs": settings.epochs * scale}
    if settings.steps is not None:
        budget = {"steps": settings.steps * scale}
    networks = settings.networks_by_site | {site.name: network}
    return replace(site, settings=settings.model_copy(update=budget | {"networks_by_site": networks}))


def is_finite(tensors: Tensors) -> bool:
    """Return True if all floating tensors are finite."""
    return all(bool(torch.isfinite(t).all()) for t in tensors.values() if t.is_floating_point())


Route = Literal["random_permutation", "derangement", "ring", "identity"]
"""Rule that assigns models to hosts in a round; `draw_route` explains the values."""


MAX_DERANGEMENT_DRAWS = 1000
"""Maximum number of permutations drawn to find one that moves every model. About 37 % of all permutations do."""


def draw_route(
    hosts: Sequence[str], held: Mapping[str, str], kind: Route, generator: torch.Generator
) -> dict[str, str]:
    """Assign a model to each host for this round.

    A model that is at a site outside `hosts` is not assigned. If there are more models than hosts, some models are not
    assigned; if there are fewer, some hosts get none. If every host has the model of its own name, the result is a
    permutation of the names.

    Args:
        hosts: Names of this round's hosts, sorted.
        held: Mapping from each model to the site where it is now.
        kind: ``random_permutation`` is uniform over all permutations, so a model may stay in place. ``derangement`` is
            uniform over the permutations that move every model, or over all if there is none. ``ring`` passes each
            model to the next host, and from the last host to the first. ``identity`` moves no model.
        generator: Random generator of the round.

    Returns:
        Mapping from each host to its model, in the order of `hosts`; no model occurs twice.
    """
    models = sorted(model for model, participant in held.items() if participant in hosts)
    if kind in ("identity", "ring"):
        shift = 1 if kind == "ring" else 0
        ahead = {host: hosts[(index + shift) % len(hosts)] for index, host in enumerate(hosts)}
        first = {ahead[held[model]]: model for model in reversed(models)}  # at each host, the first model moves
        return {host: first[host] for host in hosts if host in first}
    model_by_host: dict[str, str] = {}
    for _ in range(MAX_DERANGEMENT_DRAWS if kind == "derangement" else 1):
        model_by_host = _draw_permutation(hosts, models, generator)
        if all(held[model] != host for host, model in model_by_host.items()):
            break
    return model_by_host


def _draw_permutation(hosts: Sequence[str], models: Sequence[str], generator: torch.Generator) -> dict[str, str]:
    """Draw a uniform permutation of the models over the hosts; if hosts outnumber models, random hosts get none."""
    slots = [*models, *[None] * (len(hosts) - len(models))]
    order = torch.randperm(len(slots), generator=generator).tolist()
    drawn = ((host, slots[index]) for host, index in zip(hosts, order))
    return {host: model for host, model in drawn if model is not None}
