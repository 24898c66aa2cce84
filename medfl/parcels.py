"""Models that travel from site to site: how one is packed, found again and trained where it is a guest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from medfl.contract import Kind, Meta, Parcel, Site, Tensors
from medfl.optimizer_state import PREFIX as OPTIMIZER
from medfl.tells import PARCEL, Tell, count, one_of, text
from medfl.wire import prefixed, select

MODEL = "model/"

SENDS: Mapping[str, Kind] = {MODEL: "weights", OPTIMIZER: "statistic"}
"""What a parcel with a model holds; for a method's `sends`."""

TELLS: Mapping[str, Tell] = {
    "owner": Tell("public", text(), after=(PARCEL,)),
    "network": Tell("public", one_of("networks"), after=(PARCEL,)),
    "stamp": Tell("public", count(2, shorter=True), after=(PARCEL,)),
}
"""What stands on it; for a method's `tells`."""


@dataclass(frozen=True)
class Traveller:
    """A model away from its owner, or on its way home.

    Attributes:
        owner: Whose it is.
        network: Its network's name in the task.
        kept: Its tensors and, under ``optimizer/``, those of its optimiser if that travels with it.
    """

    owner: str
    network: str
    kept: Tensors


def pack(to: str, traveller: Traveller, stamp: list[int]) -> Parcel:
    """A parcel with a model.

    Args:
        to: Its receiver.
        traveller: The model.
        stamp: When it was sent; begins with the round. By it the receiver tells it from one that came late.
    """
    tensors = {name if name.startswith(OPTIMIZER) else MODEL + name: t for name, t in traveller.kept.items()}
    return Parcel(to, tensors, {"owner": traveller.owner, "network": traveller.network, "stamp": stamp})


def unpack(parcel: Parcel) -> Traveller:
    """The model in a parcel."""
    kept = select(parcel.tensors, MODEL) | prefixed(select(parcel.tensors, OPTIMIZER), OPTIMIZER)
    return Traveller(parcel.meta["owner"], parcel.meta["network"], kept)


def arrived(site: Site, owner: str, stamp: list[int]) -> Traveller | None:
    """The model of `owner` that came with this stamp, or None: its sender was away, or it came late."""
    found = [p for p in site.inbox if p.meta.get("owner") == owner and p.meta.get("stamp") == stamp]
    return unpack(found[0]) if found else None


def as_host(site: Site, network: str, scale: int = 1) -> Site:
    """The site as a model's training sees it: with the model's network, and `scale` times the epochs (or steps)."""
    settings = site.settings
    budget: Meta = {"epochs": settings.epochs * scale}
    if settings.steps is not None:
        budget = {"steps": settings.steps * scale}
    networks = settings.networks | {site.name: network}
    return replace(site, settings=settings.model_copy(update=budget | {"networks": networks}))


def is_finite(tensors: Tensors) -> bool:
    """Whether all floating tensors are finite."""
    return all(bool(torch.isfinite(t).all()) for t in tensors.values() if t.is_floating_point())
