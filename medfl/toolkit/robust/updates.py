"""Access to the replies' updates for robust rules: pairwise distances, and values per coordinate.

n is the number of replies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from medfl.contract import Replies, Server
from medfl.toolkit.participant_state import model_tensors
from medfl.types import MODEL_PREFIX, Tensors
from medfl.utils.wire import select

MAX_STACK_BYTES = 2**28
"""Maximum bytes of float64 values that are in memory while the updates of all replies are read."""


def floating_tensors(server: Server) -> Tensors:
    """Return the floating tensors (parameters and buffers) that the server and its sites share, by name."""
    return {name: tensor for name, tensor in model_tensors(server).items() if tensor.is_floating_point()}


def trainable_tensors(server: Server) -> Tensors:
    """Return the trainable parameters among `floating_tensors`; only these enter distances."""
    floats = floating_tensors(server)
    return {name: floats[name] for name in server.state.meta["parameters"]}


def by_coordinate(replies: Replies, originals: Tensors, column: Callable[[torch.Tensor], torch.Tensor]) -> Tensors:
    """Apply a function to the updates of each coordinate.

    Args:
        replies: Replies with updates.
        originals: Tensors that the updates refer to.
        column: Function from updates (n, numbers), float64, in the order of the sites' names, to aggregates (numbers,).

    Returns:
        Mapping from each name to the aggregate in the tensor's shape.
    """
    stacks = stacked_updates(replies, sorted(replies.meta), originals)
    return {name: column(rows).reshape(originals[name].shape) for name, rows in stacks}


def squared_distances(replies: Replies, sites: Sequence[str], parameters: Tensors, centre: Tensors) -> torch.Tensor:
    """Return the squared distances between all replies and a centre, which is the last row and column.

    Args:
        replies: Replies with updates.
        sites: Sites of the replies, in the order of rows and columns.
        parameters: Tensors that enter the distances.
        centre: Tensors of the centre by the same names; a missing tensor counts as zeros.

    Returns:
        Squared distances (n + 1, n + 1), float64.
    """
    squares = torch.zeros(len(sites) + 1, len(sites) + 1, dtype=torch.float64)
    for name, rows in stacked_updates(replies, sites, parameters):
        last = centre[name].reshape(1, -1).to(rows) if name in centre else torch.zeros_like(rows[:1])
        points = torch.cat([rows, last])
        for index, point in enumerate(points):
            squares[index] += (points - point).square().sum(dim=1)
    return squares


def stacked_updates(replies: Replies, sites: Sequence[str], originals: Tensors) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each tensor's name and its updates as (n, numbers) float64, in the order of the sites.

    Args:
        replies: Replies with updates, read once per `MAX_STACK_BYTES` bytes of output.
        sites: Sites of the replies.
        originals: Tensors that the updates refer to; a tensor that a reply lacks counts as zeros.
    """
    groups: list[list[str]] = []
    room = 0
    for name, tensor in originals.items():
        size = tensor.numel() * len(sites) * 8
        if not groups or size > room:
            groups.append([])
            room = MAX_STACK_BYTES
        groups[-1].append(name)
        room -= size
    for group in groups:
        stacks = {name: torch.zeros(len(sites), originals[name].numel(), dtype=torch.float64) for name in group}
        for site, tensors in replies:
            for name, tensor in select(tensors, MODEL_PREFIX).items():
                if name in stacks:
                    stacks[name][sites.index(site)] = tensor.reshape(-1).double()
        yield from stacks.items()
