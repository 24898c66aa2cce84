"""Robust rules in place of the mean of updates: the setting `medfl.settings.Robust`.

A reply is one vector: its floating parameters, concatenated, in float64. Norms and distances see nothing else. Buffers
follow: the choice of replies, or a reply's factor, acts on floating ones, too, and coordinate rules treat them as
parameters; an integer buffer takes the lower median. Sites count alike, as sizes are claims of the sender, and a tensor
that a reply lacks counts as zeros. Ties go to the first name.

Krum, the geometric median and both clippings are weighted sums of replies whose weights hang on the distances between
replies alone: so these are reckoned once, n x n, and the sum is that of `mean_updates`. With trimmed_mean and f = 0,
no iteration, or a radius that nobody exceeds, that is the uniform mean bit by bit.

A rule bounds the harm of up to f replies. It has a price without any attack: a site whose patients differ from those of
all others looks like an attacker. Noise and bits that sites put on updates pass through.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from medfl.contract import Replies, Server
from medfl.settings import Robust
from medfl.toolkit.aggregation import mean_updates
from medfl.toolkit.kept import keep, kept, shared_of
from medfl.toolkit.robust.rules import bulyan_choice, mean_near_median, median, reply_weights, trimmed_mean
from medfl.types import MODEL, Tensors
from medfl.utils.wire import select

CENTRE = "robust/"
"""Under what the server keeps the last aggregate, which centred_clip begins from."""

AT_A_TIME = 2**28
"""Bytes of float64 that are held at a time by what looks at all replies of a tensor."""


def robust_mean(server: Server, replies: Replies, robust: Robust) -> Tensors:
    """The rule's value, in place of `mean_update`.

    Args:
        server: Its meta lists the ``parameters``; for centred_clip its state keeps the last value.
        replies: At least `least_replies`.
        robust: The rule.

    Returns:
        Name to float64 tensor; integer and boolean buffers take the lower median of those that came.
    """
    sites = sorted(replies.meta)
    floats = {name: tensor for name, tensor in shared_of(server).items() if tensor.is_floating_point()}
    parameters = {name: floats[name] for name in server.state.meta["parameters"]}
    centre = kept(server, CENTRE) if robust.rule == "centred_clip" else {}
    if robust.rule in ("median", "trimmed_mean", "bulyan"):
        value = _by_coordinate(replies, sites, floats, parameters, robust)
    else:
        squares = squared_distances(replies, sites, parameters, centre)
        weights = reply_weights(squares, robust)
        value = mean_updates(replies, {MODEL: dict(zip(sites, weights[:-1].tolist(), strict=True))})[MODEL]
        if remaining := float(weights[-1]):
            for name, tensor in value.items():
                if name in centre:
                    tensor.add_(centre[name], alpha=remaining)
    if robust.rule == "centred_clip":
        keep(server, CENTRE, {name: tensor.clone() for name, tensor in value.items() if tensor.is_floating_point()})
    return value | _lower_medians(replies)


def _by_coordinate(replies: Replies, sites: list[str], floats: Tensors, parameters: Tensors, robust: Robust) -> Tensors:
    if robust.rule == "trimmed_mean" and not robust.f:
        return mean_updates(replies, {MODEL: dict.fromkeys(sites, 1 / len(sites))})[MODEL]
    chosen = list(range(len(sites)))
    if robust.rule == "bulyan":
        chosen = sorted(bulyan_choice(squared_distances(replies, sites, parameters, {})[:-1, :-1], robust.f))
    value = {}
    for name, rows in _stacks(replies, sites, floats):
        if robust.rule == "median":
            column = median(rows)
        elif robust.rule == "trimmed_mean":
            column = trimmed_mean(rows, robust.f)
        else:
            column = mean_near_median(rows[chosen], len(sites) - 4 * robust.f)
        value[name] = column.reshape(floats[name].shape)
    return value


# ---- reading


def squared_distances(replies: Replies, sites: Sequence[str], parameters: Tensors, centre: Tensors) -> torch.Tensor:
    """Squared distances between replies and, last, a centre.

    Args:
        replies: Of updates.
        sites: Those of the replies, in the order of rows and columns.
        parameters: What counts.
        centre: By the same names; a tensor that it lacks counts as zeros.

    Returns:
        (n + 1, n + 1) float64.
    """
    squares = torch.zeros(len(sites) + 1, len(sites) + 1, dtype=torch.float64)
    for name, rows in _stacks(replies, sites, parameters):
        last = centre[name].reshape(1, -1).to(rows) if name in centre else torch.zeros_like(rows[:1])
        points = torch.cat([rows, last])
        for index, point in enumerate(points):
            squares[index] += (points - point).square().sum(dim=1)
    return squares


def _stacks(replies: Replies, sites: Sequence[str], originals: Tensors) -> Iterator[tuple[str, torch.Tensor]]:
    """The updates of each tensor as (n, numbers) float64, in the order of the sites.

    Args:
        replies: Read once for every `AT_A_TIME` bytes of what comes out.
        sites: Those of the replies.
        originals: What the updates are of; one that a reply lacks counts as zeros.
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


def _lower_medians(replies: Replies) -> Tensors:
    """The lower median of each integer or boolean buffer over the replies that have it."""
    values: dict[str, list[torch.Tensor]] = {}
    for _, tensors in replies:
        for name, tensor in select(tensors, MODEL).items():
            if not tensor.is_floating_point():
                values.setdefault(name, []).append(tensor)
    return {
        name: torch.stack(rows).long().sort(dim=0).values[(len(rows) - 1) // 2].to(rows[0].dtype)
        for name, rows in values.items()
    }
