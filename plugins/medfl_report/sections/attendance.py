"""Which sites took part in which rounds: a row of stretches for each site of a run that missed some of them."""

from __future__ import annotations

from collections.abc import Sequence

from medfl.engine.attendance import MISSED, TOOK_PART, stretches
from medfl.engine.runs.records import RunRecord
from medfl.engine.runs.summary import ended_on
from medfl.types import Meta
from medfl_report.notices import Named
from medfl_report.section import ReportData, TemplateSection


def attendance_of(run: RunRecord) -> dict[str, dict[int, str]]:
    """Site to round to what it did, of a run that is over: who spent time in a round took part, unless it missed it."""
    missed_rounds = {} if run.summary is None else run.summary.attendance.missed_rounds
    sites = run.sites
    known: dict[str, dict[int, str]] = {site: {} for site in sites}
    table = run.metrics
    worked = table[(table["metric"] == "work_seconds") & table["site"].isin(sites)]
    for site, round_ in zip(worked["site"], worked["round"], strict=True):
        known[str(site)][int(round_)] = TOOK_PART
    for site, spans in missed_rounds.items():
        for first, last in spans:
            known.setdefault(str(site), {}).update(dict.fromkeys(range(first, last + 1), MISSED))
    return known


class AttendanceSection(TemplateSection):
    """Who took part, of runs in which a site missed a round."""

    template = "attendance.html"
    stylesheet = "attendance.css"

    def content(self, data: ReportData) -> Meta | None:
        """A matrix of sites and rounds for each such run; None without any."""
        runs = [_matrix(name, run) for name, run in _with_gaps(data.runs)]
        return {"runs": runs} if runs else None


def _with_gaps(runs: Sequence[Named]) -> list[Named]:
    return [(name, run) for name, run in runs if run.summary is not None and run.summary.attendance.missed_rounds]


def _matrix(name: str, run: RunRecord) -> Meta:
    known = attendance_of(run)
    rounds = max((max(did, default=0) for did in known.values()), default=0)
    counts = {site: sum(what == TOOK_PART for what in did.values()) for site, did in known.items()}
    orders = {site: len(did) for site, did in known.items()}
    over = 0 if run.summary is None else run.summary.rounds
    ending = f"{name} {run.status}{ended_on(run.summary) or ' on all of its sites'} after {over} rounds"
    matrix = {"rows": stretches(known, rounds), "counts": counts, "orders": orders, "rounds": rounds}
    return {"name": ending, "late": _late(run)} | matrix


def _late(run: RunRecord) -> list[str]:
    """A sentence for each site that came when the run had begun between machines."""
    provenance = run.run.provenance
    brought = {site: f", with the network {network}" for site, network in provenance.late_networks.items()}
    return [
        f"{site} came later: it takes part from round {entry.round} on{brought.get(site, '')}."
        for site, entry in sorted(provenance.joined.items())
    ]
