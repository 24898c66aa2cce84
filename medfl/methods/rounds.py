"""A round's training in two phases: all of a model (or its body) in one, its head in the other."""

from __future__ import annotations

from dataclasses import replace

from medfl.contract import Site


def two_phases(site: Site, head_share: float) -> tuple[Site, Site]:
    """A site with what a round's epochs (or steps) leave for all but the head, and with those for the head alone.

    So a method that trains in two phases has the budget of one that doesn't.

    Args:
        site: With the settings of the run.
        head_share: Share for the head, in [0, 1]; below 1 at least one epoch (or step) is left for the rest.

    Returns:
        The site for each of the two trainings. In the head's, batch norm stays as it is.
    """
    settings, total = site.settings, budget(site)
    unit = "epochs" if settings.steps is None else "steps"
    alone = total if head_share == 1 else min(int(head_share * total + 0.5), max(total - 1, 0))
    head = settings.model_copy(update={unit: alone, "norm_sync": "frozen"})
    return replace(site, settings=settings.model_copy(update={unit: total - alone})), replace(site, settings=head)


def budget(site: Site) -> int:
    """Epochs, or steps, of a training."""
    return site.settings.epochs if site.settings.steps is None else site.settings.steps
