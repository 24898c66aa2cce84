"""When a site stops to train its part of a generator (FedTPF), what the server keeps of it, and what it weighs then.

Source: "Privacy-Preserving Efficient Federated Learning for Internet of Medical Things under Data Heterogeneity"
(FedTPF), equations 8 and 9. Its text and its equations contradict each other; hence `decay` has several modes.
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


SLOW = 0.05
"""A change of accuracy from which on the mode ``text`` decays no more."""


FAST = 0.02
"""A change of accuracy up to which the mode ``text`` decays at the full rate."""


ROUNDING = 1e-9
"""0.93 - 0.88 is 0.05, whatever floating point says."""


def decay(changes: Sequence[float], rate: float, mode: str = "cumulative") -> float:
    """What the last generator of a frozen site weighs, beside its number of images.

    Args:
        changes: Mean change of accuracy of the active sites in each round from the stop to now, both included, as
            fractions in [-1, 1]. Without any the weight is 1.
        rate: lambda, >= 0. 0 leaves the weight at 1.
        mode: ``cumulative``: exp(-rate sum max(0, change)), which never rises again; ``literal``: exp(-rate max(0, last
            change)), as equation 8 is printed; ``text``: exp(-rate sum g), where g falls from 1 for a change of up to
            2 % in either direction to 0 for one of 5 %, as the paper's text has it; ``none``: 1.

    Returns:
        In (0, 1], but 0 where the exponent is below about -745.

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
        return math.exp(-rate * math.fsum(_pace(change) for change in changes))
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
    """Whether a site's generator and classifier are good and steady enough to stop.

    In each of the last epochs the accuracy is at least `accuracy` - `tolerance` and the cosine below `cosine`, and
    neither varies by more than `fluctuation`.

    Args:
        accuracies: Of the classifier on the shared part of the site's validation images, epoch by epoch, in [0, 1].
        cosines: Of the two parts of these images (`mean_abs_cosine`), of the same epochs.
        accuracy: In [0, 1].
        tolerance: >= 0.
        cosine: > 0; above 1 it is no condition.
        window: How many epochs count, >= 1. Before there are so many the answer is no.
        fluctuation: Largest difference of two values within the window, absolute, >= 0.

    Returns:
        False also where a value in the window is not finite.

    Raises:
        SettingsError: If the window is empty.
        ValueError: If there are not as many accuracies as cosines.
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
    right, alike = zip(*recent, strict=True)
    steady = all(max(values) - min(values) <= fluctuation + ROUNDING for values in (right, alike))
    return steady and min(right) >= accuracy - tolerance - ROUNDING and max(alike) < cosine


def _pace(change: float) -> float:
    """1 for small changes, 0 for large ones, linear between."""
    return min(1.0, max(0.0, (SLOW - abs(change)) / (SLOW - FAST)))


BLOB = "frozen/"
"""What the server's blobs are called that hold the last part of a frozen site; the site's name follows."""


def freeze(server: Server, name: str, before: Tensors, update: Tensors) -> None:
    """Keep the part of a site as it is after its last update, written once.

    Args:
        server: Keeps it, and the round.
        name: The site.
        before: The common part, which the update is to.
        update: Of the same names.
    """
    server.state.meta.setdefault("frozen", {})[name] = server.round
    server.keep_blob(BLOB + name, {key: add_update(before[key], update[key]) for key in before})


class WithFrozen:
    """Replies in which a frozen site's last part stands for the update that it doesn't send any more.

    Args:
        replies: Of a step.
        server: Keeps the last parts.
        names: Frozen sites whose parts are added, if they replied.
        before: The common part, as the active sites got it.
        prefix: Of the part's names in replies.
    """

    def __init__(self, replies: Replies, server: Server, names: Sequence[str], before: Tensors, prefix: str) -> None:
        self.meta: dict[str, Meta] = replies.meta
        self.missing: list[str] = replies.missing
        self._replies, self._server, self._names = replies, server, frozenset(names)
        self._before, self._prefix = before, prefix

    def __iter__(self) -> Iterator[tuple[str, Tensors]]:
        for name, tensors in self._replies:
            if name in self._names:
                last = self._server.blob(BLOB + name)
                update = {key: subtract(last[key], before) for key, before in self._before.items()}
                tensors = tensors | prefixed(update, self._prefix)
            yield name, tensors

    def __len__(self) -> int:
        return len(self._replies)


def last_change(history: Sequence[Mapping[str, Any]], active: Sequence[str]) -> float:
    """How much the active sites' accuracy changed between the last two rounds that are known; 0 where nobody knows.

    Args:
        history: Rounds in order, each with ``accuracy``: site to accuracy, in [0, 1].
        active: Sites that count.

    Returns:
        The mean over those that were assessed after both rounds.

    Source: FedTPF, equation 9.
    """
    if len(history) < 2:
        return 0.0
    before, after = history[-2]["accuracy"], history[-1]["accuracy"]
    changes = [after[name] - before[name] for name in active if name in before and name in after]
    return math.fsum(changes) / len(changes) if changes else 0.0


def judges(server: Server) -> list[str]:
    """Sites that have validation images, sorted."""
    return [name for name in server.sites if server.site_info.get(name, {}).get("validates")]
