"""A round's training in two phases: all of a model (or its body) in one, its head in the other."""

from __future__ import annotations

from dataclasses import replace

from medfl.contract import Site
from medfl.methods.trainings import Budget


def two_phases(site: Site, head_share: float) -> tuple[Site, Site]:
    """A site with what a round's epochs (or steps) leave for all but the head, and with those for the head alone.

    So a method that trains in two phases has the budget of one that doesn't.

    Args:
        site: With the settings of the run.
        head_share: Share for the head, in [0, 1]; below 1 at least one epoch (or step) is left for the rest.

    Returns:
        The site for each of the two trainings. In the head's, batch norm stays as it is.
    """
    head, rest = Budget.of(site.settings).split(head_share)
    alone = head.at(site)
    return rest.at(site), replace(alone, settings=alone.settings.model_copy(update={"norm_sync": "frozen"}))


def budget(site: Site) -> int:
    """Epochs, or steps, of a training."""
    return Budget.of(site.settings).total
