"""FedTPF's early stopping: the rule by which a site freezes, the site's stored distiller, and the decay of its weight.

The distiller is a generator that reconstructs an image, and a classifier of the residual (image minus reconstruction).
A site that freezes stops training the distiller. The server stores the site's last distiller and continues to average
it, with a weight that decays.

Source: "Privacy-Preserving Efficient Federated Learning for Internet of Medical Things under Data Heterogeneity"
(FedTPF), equations 8 and 9. Its text and its equations contradict each other; therefore `decay` has several modes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

from medfl.contract import Replies, Server
from medfl.errors import SettingsError, check_choice
from medfl.toolkit.aggregation import add_update, subtract
from medfl.types import Meta, Tensors
from medfl.utils.wire import prefixed

Decay = Literal["cumulative", "literal", "text", "none"]
"""Modes of the function `decay`, which explains them."""


MIN_LARGE_CHANGE = 0.05
"""Smallest change of accuracy for which the mode ``text`` does not decay."""


MAX_SMALL_CHANGE = 0.02
"""Largest change of accuracy for which the mode ``text`` decays at the full rate."""


ROUNDING_TOLERANCE = 1e-9
"""Tolerance of comparisons, for rounding errors: in floating point 0.93 - 0.88 is not 0.05."""


def decay(changes: Sequence[float], rate: float, mode: str = "cumulative") -> float:
    """Return the factor of a frozen site's weight, which multiplies its number of images.

    Args:
        changes: Mean change of accuracy of the active sites in each round from the freeze until now, both included, as
            fractions in [-1, 1]. The weight is 1 if it is empty.
        rate: lambda, >= 0. With 0 the weight is 1.
        mode: Formula of the factor. ``cumulative``: exp(-rate sum max(0, change)), which never increases. ``literal``:
            exp(-rate max(0, last change)), as equation 8 is printed. ``text``: exp(-rate sum g), as the paper's text
            says; g falls from 1 for a change of up to 2 % in either direction to 0 for a change of 5 %. ``none``: 1.

    Returns:
        Number in (0, 1], but 0 if the exponent is below about -745.

    Raises:
        SettingsError: If the mode is unknown or a number is out of range.

    Example:
        >>> round(decay([0.1, -0.2, 0.1], rate=5.0), 4)  # exp(-5 * 0.2)
        0.3679
    """
    check_choice("decay", mode, get_args(Decay))
    if not (0 <= rate < math.inf and all(map(math.isfinite, changes))):
        raise SettingsError(
            "setting_out_of_range",
            f"expected a finite decay rate >= 0 and finite changes, got {rate} and {list(changes)}.",
            setting="rate",
            minimum=0,
            found=rate,
            changes=list(changes),
        )
    if mode == "none" or not changes:
        return 1.0
    if mode == "text":
        return math.exp(-rate * math.fsum(_decay_fraction(change) for change in changes))
    counted = changes if mode == "cumulative" else changes[-1:]
    return math.exp(-rate * math.fsum(max(0.0, change) for change in counted))


def should_freeze(
    accuracies: Sequence[float],
    cosines: Sequence[float],
    accuracy: float = 0.90,
    tolerance: float = 0.02,
    cosine: float = 0.15,
    window: int = 3,
    fluctuation: float = 0.05,
) -> bool:
    """Return whether a site's distiller is accurate and stable enough to stop its training.

    In each of the last epochs the accuracy must be at least `accuracy` - `tolerance` and the cosine below `cosine`.
    Neither may vary by more than `fluctuation`.

    Args:
        accuracies: Accuracies of the classifier on the residuals of the site's validation images after each epoch, in
            [0, 1].
        cosines: Mean |cos| between reconstruction and residual of these images (`mean_abs_cosine`) after the same
            epochs.
        accuracy: Target accuracy, in [0, 1].
        tolerance: Amount below the target that is enough, >= 0.
        cosine: Upper limit of the cosines, > 0; above 1 it has no effect.
        window: Number of last epochs, >= 1. With fewer epochs the result is False.
        fluctuation: Maximum absolute difference of two values within the window, >= 0.

    Returns:
        True if all conditions hold. False also if a value in the window is not finite.

    Raises:
        SettingsError: If the window is empty.
        ValueError: If the numbers of accuracies and cosines differ.
    """
    if window < 1:
        raise SettingsError(
            "setting_out_of_range",
            f"expected a window of at least 1 epoch, got {window}.",
            setting="window",
            minimum=1,
            found=window,
        )
    recent = list(zip(accuracies, cosines, strict=True))[-window:]
    if len(recent) < window or not all(math.isfinite(value) for pair in recent for value in pair):
        return False
    recent_accuracies, recent_cosines = zip(*recent, strict=True)
    is_stable = all(
        max(values) - min(values) <= fluctuation + ROUNDING_TOLERANCE for values in (recent_accuracies, recent_cosines)
    )
    is_accurate = min(recent_accuracies) >= accuracy - tolerance - ROUNDING_TOLERANCE
    return is_stable and is_accurate and max(recent_cosines) < cosine


def _decay_fraction(change: float) -> float:
    """Return 1 for small changes, 0 for large ones, and a linear interpolation between them."""
    return min(1.0, max(0.0, (MIN_LARGE_CHANGE - abs(change)) / (MIN_LARGE_CHANGE - MAX_SMALL_CHANGE)))


FROZEN_BLOB_PREFIX = "frozen/"
"""Prefix of the names of the server's blobs with the distillers of frozen sites; the site's name follows."""


def freeze(server: Server, name: str, before: Tensors, update: Tensors) -> None:
    """Record that a site is frozen: store its final distiller as a blob (stored tensors) and the round at the server.

    Args:
        server: Server that stores the distiller.
        name: Name of the site.
        before: Tensors of the distiller that the site received in this round.
        update: Change of these tensors by the site's training, with the same names.
    """
    server.state.meta.setdefault("frozen", {})[name] = server.round
    server.keep_blob(FROZEN_BLOB_PREFIX + name, {key: add_update(before[key], update[key]) for key in before})


class RepliesWithFrozen:
    """Replies in which the stored distiller of a frozen site replaces the update that the site no longer sends.

    Args:
        replies: Replies of a step.
        server: Server that stores the distillers of frozen sites.
        names: Frozen sites whose distillers are added if they replied.
        before: Tensors of the distiller that the active sites, which still train it, received.
        prefix: Prefix of the distiller's tensor names in replies.

    Attributes:
        meta: Metadata of each site's reply, by site.
        missing: Names of the sites that did not reply.
    """

    def __init__(self, replies: Replies, server: Server, names: Sequence[str], before: Tensors, prefix: str) -> None:
        self.meta: dict[str, Meta] = replies.meta
        self.missing: list[str] = replies.missing
        self._replies, self._server, self._names = replies, server, frozenset(names)
        self._before, self._prefix = before, prefix

    def __iter__(self) -> Iterator[tuple[str, Tensors]]:
        for name, tensors in self._replies:
            if name in self._names:
                last = self._server.blob(FROZEN_BLOB_PREFIX + name)
                update = {key: subtract(last[key], before) for key, before in self._before.items()}
                tensors = tensors | prefixed(update, self._prefix)
            yield name, tensors

    def __len__(self) -> int:
        return len(self._replies)


def last_change(history: Sequence[Mapping[str, Any]], active: Sequence[str]) -> float:
    """Return the mean change of the active (not frozen) sites' accuracies between the last two known rounds, else 0.

    Args:
        history: Rounds in order, each with the key ``accuracy``, which maps sites to accuracies in [0, 1].
        active: Names of the active sites.

    Returns:
        Mean change over the active sites that were assessed after both rounds.

    Source: FedTPF, equation 9.
    """
    if len(history) < 2:
        return 0.0
    before, after = history[-2]["accuracy"], history[-1]["accuracy"]
    changes = [after[name] - before[name] for name in active if name in before and name in after]
    return math.fsum(changes) / len(changes) if changes else 0.0


def validating_sites(server: Server) -> list[str]:
    """Return the names of the sites that have validation images, sorted."""
    return [name for name in server.sites if server.site_info.get(name, {}).get("validates")]
