"""Pool of heads at the server, and networks with one of the heads or with an ensemble of heads.

A head is a classifier on the features of a body, the rest of the network. The pool has several heads for one body.

A head configuration is JSON: ``_target_`` is the import path of its class or function, as in MONAI's configurations,
and the other keys are its arguments. The exported bundle of a site contains the same configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from medfl.contract import Server
from medfl.networks.heads import HeadKind, make_head
from medfl.networks.parts import replace_head
from medfl.task import Task
from medfl.toolkit.participant_state import AUXILIARY_PREFIX, model_tensors
from medfl.types import MODEL_PREFIX, Meta, Tensors
from medfl.utils.wire import prefixed, select
from medfl_methods.fedsdc.voting import Together, VotingHead

HEADS_PREFIX = "heads/"
"""Prefix of the pool's tensor names in messages and, after `AUXILIARY_PREFIX`, in the server's state."""

ENSEMBLE_TARGET = "medfl_methods.fedsdc.voting.VotingHead"
"""Import path of the class of an ensemble of heads, for head configurations."""
SINGLE_TARGET = "medfl.networks.heads.make_head"
"""Import path of the function that builds a single head, for head configurations."""


def single_head_config(kind: HeadKind, features: int, num_classes: int) -> Meta:
    """Return the configuration of a single head.

    Args:
        kind: Hidden width, dropout rate and activation of the head.
        features: Number of features of the body.
        num_classes: Number of classes.
    """
    return {"_target_": SINGLE_TARGET, "features": features, "num_classes": num_classes, **kind._asdict()}


def ensemble_head_config(kinds: Sequence[HeadKind], features: int, num_classes: int, together: Together) -> Meta:
    """Return the configuration of an ensemble of heads that differ only in width.

    Args:
        kinds: Hidden width, dropout rate and activation of each head.
        features: Number of features of the body.
        num_classes: Number of classes.
        together: Combination of the heads: ``vote``, or ``prob_mean`` for the mean of their probabilities.
    """
    return {
        "_target_": ENSEMBLE_TARGET,
        "features": features,
        "num_classes": num_classes,
        "widths": [kind.width for kind in kinds],
        "together": together,
        "dropout": kinds[0].dropout,
        "activation": kinds[0].activation,
    }


def with_new_head(task: Task, network: str, head: Mapping[str, Any]) -> Task:
    """Return the task with another head on a network.

    Args:
        task: Task that has the network.
        network: Name of the network, which stays the same.
        head: Configuration from `single_head_config` or `ensemble_head_config`.
    """
    arguments = {name: value for name, value in head.items() if name != "_target_"}
    make = VotingHead if head["_target_"] == ENSEMBLE_TARGET else make_head
    return task.with_network(network, lambda: replace_head(task.build(network), make(**arguments)))


def hidden_width(head: Tensors) -> int:
    """Return the hidden width of a head from its tensors; 0 for a single layer."""
    return len(head["hidden.weight"]) if "hidden.weight" in head else 0


def group_by_head(heads: Tensors) -> list[Tensors]:
    """Return the tensors of each head, from tensors named ``HEAD/NAME``, sorted by the head's name."""
    by_head: dict[str, Tensors] = {}
    for name in sorted(heads):
        head, _, part = name.partition("/")
        by_head.setdefault(head, {})[part] = heads[name]
    return list(by_head.values())


# ---- the server's pool


def slot_prefix(slot: int) -> str:
    """Return the prefix of a head's tensor names in the server's state.

    Prefixes sort like the numbers of the heads.

    Args:
        slot: Number of the head in the pool, from 0.
    """
    return f"{AUXILIARY_PREFIX}{HEADS_PREFIX}{slot:06d}/"


def pool_heads(server: Server) -> list[Tensors]:
    """Return the tensors of each head in the server's pool, in the order of the heads' numbers."""
    return group_by_head(select(server.state.tensors, AUXILIARY_PREFIX + HEADS_PREFIX))


def published_tensors(server: Server, slots: Iterable[int]) -> Tensors:
    """Return the tensors of the body and of the heads with the given numbers, named for a message."""
    tensors, heads = prefixed(model_tensors(server), MODEL_PREFIX), pool_heads(server)
    for slot in slots:
        tensors |= prefixed(heads[slot], slot_prefix(slot).removeprefix(AUXILIARY_PREFIX))
    return tensors
