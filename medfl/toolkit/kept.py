"""What a holder's state has beside its model, such as an optimiser's memory or a control variate."""

from __future__ import annotations

import torch

from medfl.contract import Server, Site
from medfl.toolkit.aggregation import add_update
from medfl.types import Tensors
from medfl.utils.wire import prefixed, select

KEPT = "kept/"
"""What the names of tensors begin with that a holder's state has beside its model: they go nowhere."""


def shared_of(participant: Server | Site) -> Tensors:
    """The tensors of a holder's model: at the server those that the sites get, at a site its personal ones."""
    return {name: tensor for name, tensor in participant.state.tensors.items() if not name.startswith(KEPT)}


def keep(participant: Server | Site, prefix: str, tensors: Tensors) -> None:
    """Keep tensors under a prefix, in place of those of the same names."""
    participant.state.tensors |= prefixed(tensors, KEPT + prefix)


def kept(participant: Server | Site, prefix: str) -> Tensors:
    """What is kept under a prefix, by the names that it was kept with."""
    return select(participant.state.tensors, KEPT + prefix)


def add_to_kept(participant: Server | Site, prefix: str, changes: Tensors) -> None:
    """Add changes to what is kept, summed in float64; a tensor that is not there yet counts as zero."""
    old = kept(participant, prefix)
    new = {name: change if name not in old else add_update(old[name], wide(change)) for name, change in changes.items()}
    keep(participant, prefix, new)


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """A floating tensor in float64; another one as it is."""
    return tensor.double() if tensor.is_floating_point() else tensor
