"""What quantisation saves of the bytes that sites send up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from medfl.report.notices import Named

PLAIN = "bytes_up_plain"
"""Metric of what a site would have sent in a round without quantisation; runs that quantise have it."""


@dataclass(frozen=True)
class Saving:
    """The bytes that all sites together send up in a round, on average over the rounds.

    Attributes:
        name: Of the run.
        bits: Of a quantised number.
        sent: As they travel.
        plain: Without quantisation; None in a run that did not note it down.
    """

    name: str
    bits: int
    sent: float
    plain: float | None

    @property
    def share(self) -> float | None:
        """The share that is saved, in [0, 1)."""
        return None if not self.plain else 1 - self.sent / self.plain


def savings(runs: Sequence[Named]) -> list[Saving]:
    """One for each run that quantises and has sent something."""
    found = []
    for name, run in runs:
        compression = run.run["identity"]["settings"].get("compression")
        table = run.metrics[run.metrics["split"] == "train"]
        sent, plain = (table[table["metric"] == metric] for metric in ("bytes_up", PLAIN))
        if not compression or sent.empty:
            continue
        rounds = sent["round"].nunique()
        whole = len(plain) == len(sent)  # a run that an earlier version began has them for some rounds only
        means = [float(rows["value"].sum()) / rounds for rows in (sent, plain)]
        found.append(Saving(name, int(compression["bits"]), means[0], means[1] if whole else None))
    return found
