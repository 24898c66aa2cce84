"""Reading of updates for robust rules: distances between replies, and columns of numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from medfl.contract import Replies, Server
from medfl.toolkit.kept import shared_of
from medfl.types import MODEL, Tensors
from medfl.utils.wire import select

AT_A_TIME = 2**28
"""Maximum bytes of float64 that are in memory at once while all replies of a tensor are read."""


def floats_of(server: Server) -> Tensors:
    """Return the floating tensors that the server and its sites share."""
    return {name: tensor for name, tensor in shared_of(server).items() if tensor.is_floating_point()}


def parameters_of(server: Server) -> Tensors:
    """Return the parameters among `floats_of`: only they count in distances."""
    floats = floats_of(server)
    return {name: floats[name] for name in server.state.meta["parameters"]}


def by_coordinate(replies: Replies, originals: Tensors, column: Callable[[torch.Tensor], torch.Tensor]) -> Tensors:
    """Return the value of a function of the updates for each number.

    Args:
        replies: Replies with updates.
        originals: Tensors that the updates are of.
        column: Maps updates (n, numbers), float64, in the order of the sites' names, to their value (numbers,).
    """
    stacks = stacked(replies, sorted(replies.meta), originals)
    return {name: column(rows).reshape(originals[name].shape) for name, rows in stacks}


def squared_distances(replies: Replies, sites: Sequence[str], parameters: Tensors, centre: Tensors) -> torch.Tensor:
    """Return the squared distances between replies and, last, a centre.

    Args:
        replies: Replies with updates.
        sites: Sites of the replies, in the order of rows and columns.
        parameters: Tensors that count.
        centre: Tensors by the same names; a tensor that it lacks counts as zeros.

    Returns:
        (n + 1, n + 1) float64.
    """
    squares = torch.zeros(len(sites) + 1, len(sites) + 1, dtype=torch.float64)
    for name, rows in stacked(replies, sites, parameters):
        last = centre[name].reshape(1, -1).to(rows) if name in centre else torch.zeros_like(rows[:1])
        points = torch.cat([rows, last])
        for index, point in enumerate(points):
            squares[index] += (points - point).square().sum(dim=1)
    return squares


def stacked(replies: Replies, sites: Sequence[str], originals: Tensors) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the updates of each tensor as (n, numbers) float64, in the order of the sites.

    Args:
        replies: Replies with updates, read once for every `AT_A_TIME` bytes that come out.
        sites: Sites of the replies.
        originals: Tensors that the updates are of; one that a reply lacks counts as zeros.
    """
    groups: list[list[str]] = []
    room = 0
    for name, tensor in originals.items():
        size = tensor.numel() * len(sites) * 8
        if not groups or size > room:
            groups.append([])
            room = AT_A_TIME
        groups[-1].append(name)
        room -= size
    for group in groups:
        stacks = {name: torch.zeros(len(sites), originals[name].numel(), dtype=torch.float64) for name in group}
        for site, tensors in replies:
            for name, tensor in select(tensors, MODEL).items():
                if name in stacks:
                    stacks[name][sites.index(site)] = tensor.reshape(-1).double()
        yield from stacks.items()
