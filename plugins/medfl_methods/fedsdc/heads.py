"""Heads that are dealt to sites: the server's pool, and networks with one of them or with several that answer together.

A head is written down as JSON: ``_target_`` names what makes it, as in MONAI's configurations, the rest are arguments.
The bundle that a site takes home holds the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from medfl.contract import Server
from medfl.networks.heads import HeadKind, make_head
from medfl.networks.parts import with_head
from medfl.task import Task
from medfl.toolkit.kept import KEPT, shared_of
from medfl.types import MODEL, Meta, Tensors
from medfl.utils.wire import prefixed, select
from medfl_methods.fedsdc.voting import Together, VotingHead

HEADS = "heads/"
"""The heads of the pool, in what is published and, after `KEPT`, in the server's state."""

VOTING = "medfl_methods.fedsdc.voting.VotingHead"
SINGLE = "medfl.networks.heads.make_head"


def single(kind: HeadKind, features: int, num_classes: int) -> Meta:
    """A head of a kind for a body with this number of features, as JSON."""
    return {"_target_": SINGLE, "features": features, "num_classes": num_classes, **kind._asdict()}


def several(kinds: Sequence[HeadKind], features: int, num_classes: int, together: Together) -> Meta:
    """Heads of kinds that differ in width only, which answer together, as JSON."""
    return {
        "_target_": VOTING,
        "features": features,
        "num_classes": num_classes,
        "widths": [kind.width for kind in kinds],
        "together": together,
        "dropout": kinds[0].dropout,
        "activation": kinds[0].activation,
    }


def headed(task: Task, network: str, head: Mapping[str, Any]) -> Task:
    """The task with another head on a network.

    Args:
        task: Has the network.
        network: Its name, which the new one has, too.
        head: From `single` or `several`.
    """
    arguments = {name: value for name, value in head.items() if name != "_target_"}
    make = VotingHead if head["_target_"] == VOTING else make_head
    return task.with_network(network, lambda: with_head(task.build(network), make(**arguments)))


def width_of(head: Tensors) -> int:
    """Width between the two layers of a head, told from its tensors; 0 for a single layer."""
    return len(head["hidden.weight"]) if "hidden.weight" in head else 0


def grouped(heads: Tensors) -> list[Tensors]:
    """Tensors named ``HEAD/NAME``, head by head, sorted by its name."""
    by_head: dict[str, Tensors] = {}
    for name in sorted(heads):
        head, _, part = name.partition("/")
        by_head.setdefault(head, {})[part] = heads[name]
    return list(by_head.values())


# ---- the server's pool


def slot_name(slot: int) -> str:
    """What the names of a head's tensors begin with in the server's state; they sort as the numbers do."""
    return f"{KEPT}{HEADS}{slot:06d}/"


def pool(server: Server) -> list[Tensors]:
    """All heads, in their order."""
    return grouped(select(server.state.tensors, KEPT + HEADS))


def published(server: Server, slots: Iterable[int]) -> Tensors:
    """The body and some heads."""
    tensors, heads = prefixed(shared_of(server), MODEL), pool(server)
    for slot in slots:
        tensors |= prefixed(heads[slot], slot_name(slot).removeprefix(KEPT))
    return tensors
