"""Routes of circulating models: which host trains (or trains beside) whose model in a round (rule G-16)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch

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
    models = sorted(model for model, holder in held.items() if holder in hosts)
    if kind in ("identity", "ring"):
        shift = 1 if kind == "ring" else 0
        ahead = {host: hosts[(index + shift) % len(hosts)] for index, host in enumerate(hosts)}
        first = {ahead[held[model]]: model for model in reversed(models)}  # of two at one host the second waits
        return {host: first[host] for host in hosts if host in first}
    found: dict[str, str] = {}
    for _ in range(TRIES if kind == "derangement" else 1):
        found = _draw(hosts, models, generator)
        if all(held[model] != host for host, model in found.items()):
            break
    return found


def _draw(hosts: Sequence[str], models: Sequence[str], generator: torch.Generator) -> dict[str, str]:
    """A uniform permutation of the models, and of blanks where hosts outnumber them, over the hosts."""
    slots = [*models, *[None] * (len(hosts) - len(models))]
    order = torch.randperm(len(slots), generator=generator).tolist()
    drawn = ((host, slots[index]) for host, index in zip(hosts, order))
    return {host: model for host, model in drawn if model is not None}
