"""Findings of methods that share parts of images: metadata and tensors for the report (`medfl.contract.Findings`).

In stage 1 of these methods the sites train a generator, which reconstructs images, and a classifier. Then each site
sends the parts of its images once, with noise: the shared images. Some methods let a site stop stage 1 early (freeze).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

import torch

from medfl.contract import Findings, Server
from medfl.data.sampling import class_rows
from medfl.privacy.release import ImageRelease, guarantee_sentences
from medfl_methods.fedfed.shared_images import SharedImages

SHOWN_PER_CLASS = 2
"""Number of shared images of each class that the report shows."""


def sharing_findings(server: Server, shared: SharedImages | None, releases: Sequence[ImageRelease]) -> Findings:
    """Collect the findings of a run.

    The findings contain the end of stage 1, the shared images of each site, the privacy statement and a few shared
    images.

    Args:
        server: Server whose state metadata contains ``ended``, ``items``, ``errors`` and, if sites freeze, ``history``,
            ``frozen`` and ``threshold``.
        shared: Shared set; None if nothing was sent.
        releases: Release mechanism of each copy.

    Returns:
        Findings with the metadata key ``sharing``, a dict with the keys ``stage1``, ``history``, ``frozen``,
        ``releases``, ``statement``, ``items`` (number of shared images by site), ``errors``, ``classes`` (number of
        shared images by class); and the tensors ``sharing/images`` and ``sharing/labels``.
    """
    state = server.state.meta
    counts = [] if shared is None else torch.bincount(shared.labels, minlength=server.task.objective.classes).tolist()
    stage = state.get("ended", {"rounds": server.rounds_done, "ended": ""})
    sharing = {
        "stage1": stage | {"threshold": state.get("threshold")},
        "history": state.get("history", []),
        "frozen": state.get("frozen", {}),
        "releases": [release.meta() for release in releases],
        "statement": ["No site shared any part of its images."] if shared is None else guarantee_sentences(releases),
        "items": state.get("items", {}),
        "errors": state.get("errors", {}),
        "classes": counts,
    }
    return Findings({"sharing": sharing}, {} if shared is None else _first_of_each_class(shared))


def poor_generator_warning(errors: Mapping[str, Sequence[float]]) -> str:
    """Return a warning if the generator reconstructs images no better than the mean image, else an empty string.

    Args:
        errors: Mapping from each site to the mean squared errors of the generator and of the mean image.
    """
    if not errors:
        return ""
    generator_error, mean_image_error = (fmean(values) for values in zip(*errors.values(), strict=True))
    if generator_error < mean_image_error:
        return ""
    return (
        "The generator reconstructs images no better than the mean of a site's images: its mean squared error is "
        f"{generator_error:#.4g}, the error of the mean image is {mean_image_error:#.4g}. The private part therefore "
        "contains little of an image. Train longer: raise 'distil_rounds', 'distil_epochs' or 'distil_steps'."
    )


def _first_of_each_class(shared: SharedImages) -> dict[str, torch.Tensor]:
    """Return the first `SHOWN_PER_CLASS` shared images of each class and their labels as named tensors."""
    rows = torch.cat([some[:SHOWN_PER_CLASS] for some in class_rows(shared.labels)])
    return {"sharing/images": shared.copies[0][rows].float(), "sharing/labels": shared.labels[rows].clone()}
