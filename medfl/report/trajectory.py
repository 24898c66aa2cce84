"""A run's way, round by round: scores at the server, at the sites, and right after training."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from medfl.runs.records import RunRecord
from medfl.types import GLOBAL, NO_SITES


@dataclass(frozen=True)
class Trajectory:
    """One metric on test images over the rounds of a run. What was not scored is empty.

    Attributes:
        server: Round to the global model's score on the server's test set.
        sites: Round (rows) and site (columns): the model that the site has after the round, on its own test set; its
            personal one where it has both.
        trained: The same right after the site's training; NaN where it did not train. Empty unless the run scores at
            the moment ``trained``.
        participants: Round to the sites that trained in it, sorted, also those whose reply was refused.
        seconds: Round to the seconds that all sites have worked up to it, one after the other, without evaluation.
    """

    server: pd.Series[float]
    sites: pd.DataFrame
    trained: pd.DataFrame
    participants: dict[int, list[str]]
    seconds: pd.Series[float]

    def every_round(self) -> bool:
        """Whether the scores after aggregation, of the server and of the sites, are there for every round from 1."""
        scored = [list(part.index) for part in (self.server, self.sites) if len(part)]
        return bool(scored) and all(rounds == list(range(1, len(rounds) + 1)) for rounds in scored)


def read_trajectory(run: RunRecord, metric: str) -> Trajectory:
    """The way of a run in one metric.

    Args:
        run: Finished or not.
        metric: One of its task's metrics.
    """
    table = run.metrics
    tests = table[(table["split"] == "test") & (table["metric"] == metric) & table["value"].notna()]
    after = tests[(tests["moment"] == "aggregated") & ~tests["model"].str.contains("@")]
    at_server = after[(after["site"] == GLOBAL) & (after["model"] == "global")]
    at_sites = after[~after["site"].isin(NO_SITES)].sort_values("model", kind="stable")  # "personal" is the last one
    own = tests[(tests["moment"] == "trained") & (tests["model"] == "personal")]
    work = table[(table["split"] == "train") & (table["metric"] == "work_seconds")]
    return Trajectory(
        server=at_server.set_index("round")["value"].sort_index(),
        sites=_by_site(at_sites),
        trained=_by_site(own[~own["site"].isin(NO_SITES)]),
        participants=_participants(work),
        seconds=work.groupby("round")["value"].sum().cumsum(),
    )


def _participants(work: pd.DataFrame) -> dict[int, list[str]]:
    sites_by_round: dict[int, set[str]] = {}
    for number, site in zip(work["round"], work["site"], strict=True):
        sites_by_round.setdefault(int(number), set()).add(str(site))
    return {number: sorted(sites) for number, sites in sites_by_round.items()}


def _by_site(rows: pd.DataFrame) -> pd.DataFrame:
    """Rounds by sites. Of several scores of a site in a round the last one counts, as where it trained twice."""
    return rows.pivot_table(index="round", columns="site", values="value", aggfunc="last")
