"""Section on the participation of the sites by round, for runs in which a site missed a round."""

from __future__ import annotations

from collections.abc import Sequence

from medfl.engine.attendance import MISSED, TOOK_PART, stretches
from medfl.engine.runs.records import RunRecord
from medfl.engine.runs.summary import describe_unavailable
from medfl.types import Meta
from medfl_report.notices import NamedRun
from medfl_report.section import ReportData, TemplateSection


def attendance_of(run: RunRecord) -> dict[str, dict[int, str]]:
    """Return the participation of each site in each round of a run.

    A site participated in a round if it recorded working time, unless the summary lists the round as missed.

    Returns:
        Maps each site and round to `medfl.engine.attendance.TOOK_PART` or `medfl.engine.attendance.MISSED`. Rounds for
        which the site was not selected are left out.
    """
    missed_rounds = {} if run.summary is None else run.summary.attendance.missed_rounds
    sites = run.sites
    attendance: dict[str, dict[int, str]] = {site: {} for site in sites}
    table = run.metrics
    worked = table[(table["metric"] == "work_seconds") & table["site"].isin(sites)]
    for site, round_ in zip(worked["site"], worked["round"], strict=True):
        attendance[str(site)][int(round_)] = TOOK_PART
    for site, spans in missed_rounds.items():
        for first, last in spans:
            attendance.setdefault(str(site), {}).update(dict.fromkeys(range(first, last + 1), MISSED))
    return attendance


class AttendanceSection(TemplateSection):
    """Section of a report: participation of the sites in each round."""

    template = "attendance.html"
    """File name of the section's Jinja template."""
    stylesheet = "attendance.css"
    """File name of the section's CSS, which is added to the page."""

    def content(self, data: ReportData) -> Meta | None:
        """Return the variables of the template; None if no site missed a round in any run.

        They contain a matrix of sites and rounds for each run in which a site missed a round.
        """
        runs = [_matrix(name, run) for name, run in _with_gaps(data.runs)]
        return {"runs": runs} if runs else None


def _with_gaps(runs: Sequence[NamedRun]) -> list[NamedRun]:
    return [(name, run) for name, run in runs if run.summary is not None and run.summary.attendance.missed_rounds]


def _matrix(name: str, run: RunRecord) -> Meta:
    """Return the rows, counts and sentences of a run's matrix."""
    attendance = attendance_of(run)
    rounds = max((max(did, default=0) for did in attendance.values()), default=0)
    counts = {site: sum(what == TOOK_PART for what in did.values()) for site, did in attendance.items()}
    requests = {site: len(did) for site, did in attendance.items()}
    over = 0 if run.summary is None else run.summary.rounds
    ending = f"{name} {run.status}{describe_unavailable(run.summary) or ' on all of its sites'} after {over} rounds"
    matrix = {"rows": stretches(attendance, rounds), "counts": counts, "requests": requests, "rounds": rounds}
    return {"name": ending, "late": _late(run)} | matrix


def _late(run: RunRecord) -> list[str]:
    """Return a sentence for each site that joined a distributed run after it began."""
    provenance = run.run.provenance
    brought = {site: f", with the network {network}" for site, network in provenance.late_networks.items()}
    return [
        f"{site} joined later and participates from round {entry.round} on{brought.get(site, '')}."
        for site, entry in sorted(provenance.joined.items())
    ]
