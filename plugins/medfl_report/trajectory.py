"""Test scores of a run by round: at the server, at the sites, and right after training."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from medfl.engine.runs.records import RunRecord
from medfl.types import GLOBAL, NON_SITE_NAMES


@dataclass(frozen=True)
class Trajectory:
    """Test scores of one run in one metric, by round. Tables of models that were not scored are empty.

    Attributes:
        server: Maps each round to the global model's score on the server's test set.
        global_at_sites: Scores of the global model after each round (rows) on each site's test set (columns).
        personal_at_sites: Score of each site's personal model after each round (rows) on the site's own test set
            (columns).
        trained: Score of each site's model right after training in each round (rows) on the site's own test set
            (columns); NaN if a site did not train. Empty unless the run scores at the moment ``trained``.
        participants: Maps each round to the sorted names of the sites that trained, including refused replies.
        seconds: Maps each round to the cumulative seconds of all sites' work, one after the other, without evaluation.
    """

    server: pd.Series[float]
    global_at_sites: pd.DataFrame
    personal_at_sites: pd.DataFrame
    trained: pd.DataFrame
    participants: dict[int, list[str]]
    seconds: pd.Series[float]

    @property
    def is_scored(self) -> bool:
        """True if any model was scored on test images after aggregation."""
        return any(len(table) > 0 for table in (self.server, self.global_at_sites, self.personal_at_sites))

    def every_round(self) -> bool:
        """Return whether all models that were scored after aggregation were scored after every round from 1."""
        tables = (self.server, self.global_at_sites, self.personal_at_sites)
        scored = [list(table.index) for table in tables if len(table)]
        return bool(scored) and all(rounds == list(range(1, len(rounds) + 1)) for rounds in scored)


def read_trajectory(run: RunRecord, metric: str) -> Trajectory:
    """Read the test scores of a run by round.

    Args:
        run: A run, finished or not.
        metric: One of the metrics of its task.
    """
    table = run.metrics
    tests = table[(table["split"] == "test") & (table["metric"] == metric) & table["value"].notna()]
    after = tests[tests["moment"] == "aggregated"]
    at_server = after[(after["site"] == GLOBAL) & (after["model"] == "global")]
    at_sites = after[~after["site"].isin(NON_SITE_NAMES)]
    own = tests[(tests["moment"] == "trained") & (tests["model"] == "personal")]
    work = table[(table["split"] == "train") & (table["metric"] == "work_seconds")]
    return Trajectory(
        server=at_server.set_index("round")["value"].sort_index(),
        global_at_sites=_by_site(at_sites[at_sites["model"] == "global"]),
        personal_at_sites=_by_site(at_sites[at_sites["model"] == "personal"]),
        trained=_by_site(own[~own["site"].isin(NON_SITE_NAMES)]),
        participants=_participants(work),
        seconds=work.groupby("round")["value"].sum().cumsum(),
    )


def _participants(work: pd.DataFrame) -> dict[int, list[str]]:
    sites_by_round: dict[int, set[str]] = {}
    for number, site in zip(work["round"], work["site"], strict=True):
        sites_by_round.setdefault(int(number), set()).add(str(site))
    return {number: sorted(sites) for number, sites in sites_by_round.items()}


def _by_site(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the scores by round (rows) and site (columns), with the last one of several in a round."""
    return rows.pivot_table(index="round", columns="site", values="value", aggfunc="last")
