"""Models that travel from site to site: how one is packed, found again and trained as a guest, and their routes.

A route says which host trains (or trains beside) whose model in a round (rule G-16).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from medfl.contract import PayloadKind, PeerMessage, Site
from medfl.training.optimizer_state import PREFIX as OPTIMIZER
from medfl.types import Meta, Tensors
from medfl.utils.metadata import PEER_MESSAGE, Count, MetaField, Text, list_of, one_of
from medfl.utils.wire import prefixed, select

MODEL = "model/"


SENDS: Mapping[str, PayloadKind] = {MODEL: "weights", OPTIMIZER: "statistic"}
"""What a parcel with a model holds; for a method's `sends`."""


TELLS: Mapping[str, MetaField] = {
    "owner": MetaField("public", Text, after=(PEER_MESSAGE,)),
    "network": MetaField("public", one_of("networks"), after=(PEER_MESSAGE,)),
    "stamp": MetaField("public", list_of(Count, 2, shorter=True), after=(PEER_MESSAGE,)),
}
"""What stands on it; for a method's `sends_meta`."""


@dataclass(frozen=True)
class ModelInTransit:
    """A model away from its owner, or on its way home.

    Attributes:
        owner: Whose it is.
        network: Its network's name in the task.
        kept: Its tensors and, under ``optimizer/``, those of its optimiser if that travels with it.
    """

    owner: str
    network: str
    kept: Tensors


def pack(to: str, traveller: ModelInTransit, stamp: list[int]) -> PeerMessage:
    """A parcel with a model.

    Args:
        to: Its receiver.
        traveller: The model.
        stamp: When it was sent; begins with the round. By it the receiver tells it from one that came late.
    """
    tensors = {name if name.startswith(OPTIMIZER) else MODEL + name: t for name, t in traveller.kept.items()}
    return PeerMessage(to, tensors, {"owner": traveller.owner, "network": traveller.network, "stamp": stamp})


def unpack(peer_message: PeerMessage) -> ModelInTransit:
    """The model in a parcel."""
    kept = select(peer_message.tensors, MODEL) | prefixed(select(peer_message.tensors, OPTIMIZER), OPTIMIZER)
    return ModelInTransit(peer_message.meta["owner"], peer_message.meta["network"], kept)


def arrived(site: Site, owner: str, stamp: list[int]) -> ModelInTransit | None:
    """The model of `owner` that came with this stamp, or None: its sender was away, or it came late."""
    messages = [p for p in site.inbox if p.meta.get("owner") == owner and p.meta.get("stamp") == stamp]
    return unpack(messages[0]) if messages else None


def as_host(site: Site, network: str, scale: int = 1) -> Site:
    """The site as a model's training sees it: with the model's network, and `scale` times the epochs (or steps)."""
    settings = site.settings
    budget: Meta = {"epochs": settings.epochs * scale}
    if settings.steps is not None:
        budget = {"steps": settings.steps * scale}
    networks = settings.networks_by_site | {site.name: network}
    return replace(site, settings=settings.model_copy(update=budget | {"networks_by_site": networks}))


def is_finite(tensors: Tensors) -> bool:
    """Whether all floating tensors are finite."""
    return all(bool(torch.isfinite(t).all()) for t in tensors.values() if t.is_floating_point())


Route = Literal["random_permutation", "derangement", "ring", "identity"]


TRIES = 1000
"""Permutations drawn in search of one that moves every model; among many models one in e does."""


def route(hosts: Sequence[str], held: Mapping[str, str], kind: Route, generator: torch.Generator) -> dict[str, str]:
    """Host to the model that it works with this round.

    A model that a host outside `hosts` holds waits. Where there are more models than hosts some wait, where there are
    fewer some hosts go without. If every host holds the model of its own name, this is a permutation of the names.

    Args:
        hosts: This round's, sorted.
        held: Model to the host that holds it now.
        kind: ``random_permutation`` is uniform over all permutations, so a model may stay where it is;
            ``derangement`` is uniform over those that move every model, or over all if there is none; ``ring`` hands
            each model to the next host, the last one's to the first; ``identity`` moves none.
        generator: The round's stream.

    Returns:
        In the order of `hosts`; no model twice.
    """
    models = sorted(model for model, participant in held.items() if participant in hosts)
    if kind in ("identity", "ring"):
        shift = 1 if kind == "ring" else 0
        ahead = {host: hosts[(index + shift) % len(hosts)] for index, host in enumerate(hosts)}
        first = {ahead[held[model]]: model for model in reversed(models)}  # of two at one host the second waits
        return {host: first[host] for host in hosts if host in first}
    guests: dict[str, str] = {}
    for _ in range(TRIES if kind == "derangement" else 1):
        guests = _draw(hosts, models, generator)
        if all(held[model] != host for host, model in guests.items()):
            break
    return guests


def _draw(hosts: Sequence[str], models: Sequence[str], generator: torch.Generator) -> dict[str, str]:
    """A uniform permutation of the models, and of blanks where hosts outnumber them, over the hosts."""
    slots = [*models, *[None] * (len(hosts) - len(models))]
    order = torch.randperm(len(slots), generator=generator).tolist()
    drawn = ((host, slots[index]) for host, index in zip(hosts, order))
    return {host: model for host, model in drawn if model is not None}
