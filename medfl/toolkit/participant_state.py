"""Access to a participant's state: the tensors of its model, and auxiliary tensors such as an optimiser's momentum.

A participant is the server or a site.
"""

from __future__ import annotations

import torch

from medfl.contract import Server, Site
from medfl.toolkit.aggregation import add_update
from medfl.types import Tensors
from medfl.utils.wire import prefixed, select

AUXILIARY_PREFIX = "kept/"
"""Prefix of the auxiliary tensors in a participant's state. They are saved with the state and are never sent."""


def model_tensors(participant: Server | Site) -> Tensors:
    """Return the model's tensors in a participant's state, without the auxiliary tensors.

    At the server these are the shared tensors that all sites receive; at a site, its personal tensors.
    """
    return {name: tensor for name, tensor in participant.state.tensors.items() if not name.startswith(AUXILIARY_PREFIX)}


def set_auxiliary_state(participant: Server | Site, prefix: str, tensors: Tensors) -> None:
    """Store auxiliary tensors under a prefix in the participant's state; replace tensors of the same names."""
    participant.state.tensors |= prefixed(tensors, AUXILIARY_PREFIX + prefix)


def auxiliary_state(participant: Server | Site, prefix: str) -> Tensors:
    """Return the auxiliary tensors that `set_auxiliary_state` stored under a prefix, by their original names."""
    return select(participant.state.tensors, AUXILIARY_PREFIX + prefix)


def add_to_auxiliary_state(participant: Server | Site, prefix: str, changes: Tensors) -> None:
    """Add changes to the auxiliary tensors under a prefix, in place.

    The sum is computed in float64. A tensor that is not stored yet counts as zero.
    """
    old = auxiliary_state(participant, prefix)
    new = {
        name: change if name not in old else add_update(old[name], as_float64(change))
        for name, change in changes.items()
    }
    set_auxiliary_state(participant, prefix, new)


def as_float64(tensor: torch.Tensor) -> torch.Tensor:
    """Return a floating tensor in float64, and any other tensor unchanged."""
    return tensor.double() if tensor.is_floating_point() else tensor
