"""What a method that shares parts of images tells about it in the end, for the report (`medfl.contract.Findings`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

import torch

from medfl.contract import Findings, Server
from medfl.data.sampling import class_rows
from medfl.privacy.release import Release, sentences
from medfl_methods.fedfed.shared_images import SharedImages

SHOWN = 2
"""Shared images of each class that the report shows."""


def sharing_findings(server: Server, shared: SharedImages | None, releases: Sequence[Release]) -> Findings:
    """When the first stage ended, what was sent, what that promises, and a few of the shared images.

    Args:
        server: Its meta holds ``ended``, ``items``, ``errors`` and, where sites freeze, ``history``, ``frozen`` and
            ``threshold``.
        shared: What everyone holds; None if nothing was sent.
        releases: How it was clipped and noised.
    """
    known = server.state.meta
    counts = [] if shared is None else torch.bincount(shared.labels, minlength=server.task.objective.classes).tolist()
    stage = known.get("ended", {"rounds": server.rounds_done, "ended": ""})
    facts = {
        "stage1": stage | {"threshold": known.get("threshold")},
        "history": known.get("history", []),
        "frozen": known.get("frozen", {}),
        "releases": [release.meta() for release in releases],
        "statement": ["Nothing made of images was sent."] if shared is None else sentences(releases),
        "items": known.get("items", {}),
        "errors": known.get("errors", {}),
        "classes": counts,
    }
    return Findings({"sharing": facts}, {} if shared is None else _first_of_each_class(shared))


def poor_generator(errors: Mapping[str, Sequence[float]]) -> str:
    """A warning where the generator rebuilds images no better than the mean image, which takes no network; else empty.

    Args:
        errors: Site to the mean squared errors of generator and mean image.
    """
    if not errors:
        return ""
    rebuilt, usual = (fmean(values) for values in zip(*errors.values(), strict=True))
    if rebuilt < usual:
        return ""
    return (
        f"The generator rebuilds images worse than the mean of a site's images does, which takes no network: its mean "
        f"squared error is {rebuilt:#.4g}, that of the mean image {usual:#.4g}. So the part that is kept back holds "
        "little of an image. Train it longer: raise 'distil_rounds', 'distil_epochs' or 'distil_steps'."
    )


def _first_of_each_class(shared: SharedImages) -> dict[str, torch.Tensor]:
    rows = torch.cat([some[:SHOWN] for some in class_rows(shared.labels)])
    return {"sharing/images": shared.copies[0][rows].float(), "sharing/labels": shared.labels[rows].clone()}
