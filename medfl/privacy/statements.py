"""Sentences about privacy that are independent of the privacy mechanism."""

from __future__ import annotations

from medfl.settings import SecureAggregation

ADJACENCY_WORDS = {"add_remove": "added or removed", "replace": "replaced by any other"}
"""Maps each adjacency to the change, in words, of a privacy unit (a site or an image) that the guarantee hides."""


def describe_secure(secure: SecureAggregation, simulated: bool = False) -> str:
    """Return a sentence for log and report about the guarantee of secure aggregation, and its trust assumptions.

    Args:
        secure: Setting ``secure_aggregation`` of the run.
        simulated: Whether all sites are on one machine.
    """
    if simulated:
        return (
            "Secure aggregation in a simulation protects no one: one machine has all data, and there are no "
            "certificates. It shows the numbers of a run between machines, in which the server learns sums of the "
            f"updates of at least {secure.resolved_threshold} sites."
        )
    return (
        "Secure aggregation: the server learns only the sum of the updates of at least "
        f"{secure.resolved_threshold} sites in a round, and no single update and no site's number of images. This "
        f"holds while at least {secure.resolved_threshold} of a round's participants follow the protocol and the "
        "project's root certifies sites only. It does not protect the resulting model, nor the scores, training "
        "losses and numbers of images in this report."
    )
