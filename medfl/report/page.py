"""The report: one HTML file about one or more runs that needs nothing else, no network and no script."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from medfl.errors import SettingsError, did_you_mean
from medfl.findings import read_findings
from medfl.report import (
    against,
    atlas_section,
    attacks_section,
    centres_section,
    classes,
    clusters_section,
    facts,
    fairness_section,
    forgetting_section,
    formats,
    heads_section,
    looks_section,
    matrix,
    notices,
    privacy_section,
    savings,
    sections,
    sharing_section,
    sweep,
    teachers_section,
    words,
)
from medfl.report.gains import GAINS, LOSES, UNCLEAR
from medfl.report.groups import group_runs
from medfl.report.runs import RunRecord, read_run
from medfl.report.selection import Baseline, named_runs, short_folders
from medfl.report.tested import read_tested
from medfl.store import write_atomic

FILE = "report.html"
"""Name of the report in a run folder."""

SECTIONS = (
    ("gains", "Who gains"),
    ("scores", "All scores"),
    ("curves", "Round by round"),
    ("forgetting", "What is forgotten"),
    ("holdings", "Who holds what"),
    ("costs", "Costs"),
    ("settings", "Settings"),
)
"""Id, which is also the name of the template, and heading of each section."""

EXTRAS = (
    ("sweep", "One setting, several values"),
    ("centres", "Which centres gain"),
    ("classes", "Which classes gain"),
    ("matrix", "Every model at every site"),
    ("fairness", "By sex"),
    ("clusters", "Clusters"),
    ("teachers", "Teachers of the student"),
    ("heads", "Who held which head"),
    ("looks", "What the teachers look at"),
    ("sharing", "What was shared"),
    ("privacy", "Privacy"),
    ("attacks", "What attacks found"),
    ("atlas", "Regions of the atlas"),
)
"""Sections that stand after the first one, where the runs have what they show."""


def write_report(
    runs: Sequence[Path],
    out: Path | None = None,
    labels: Sequence[str] | None = None,
    baseline: Baseline = None,
) -> Path:
    """Write the report of one or more runs. The same run folders, with the same atlas in the data, give the same bytes.

    Only links to the pages of attacks depend on where it is written.

    Args:
        runs: Run folders, finished or not; with a run of the method ``local`` the report says who gains.
        out: The file to write; by default ``report.html`` in the first run's folder. What is there is replaced.
        labels: One for each run, as in `medfl.report.groups.group_runs`.
        baseline: Label of the runs that the others are compared with centre by centre and class by class, see
            `medfl.report.selection.compared`; by default the sites alone.

    Returns:
        The file.

    Raises:
        SettingsError: If there is no run, two have the same settings and seed, or the baseline is none of them.
        StoreError: If a folder holds no run, or a file can't be read or written.
    """
    if not runs:
        raise SettingsError("expected at least one run folder, got none. Give the --output_dir of a run.")
    target = out if out is not None else runs[0] / FILE
    page = render([read_run(folder) for folder in runs], labels, baseline, target.absolute().parent)
    write_atomic(target, page.encode())
    return target


def render(
    records: Sequence[RunRecord],
    labels: Sequence[str] | None = None,
    baseline: Baseline = None,
    folder: Path | None = None,
) -> str:
    """The report as HTML.

    Args:
        records: At least one run.
        labels: One for each run, as in `medfl.report.groups.group_runs`.
        baseline: As in `write_report`.
        folder: Where the page will lie, for links to files beside the runs; None for no links.

    Raises:
        SettingsError: If two have the same settings and seed, or the baseline is none of them.
        StoreError: If a file of predictions or findings can't be read.
    """
    groups = group_runs(records, labels)
    known = [group.label for group in groups]
    if isinstance(baseline, str) and baseline not in known:
        raise SettingsError(f"Unknown baseline '{baseline}'. {did_you_mean(baseline, known)}")
    runs = named_runs(groups)
    tested = {str(run.folder): read_tested(run) for _, run in runs}
    findings = {str(run.folder): read_findings(run.folder) for _, run in runs}
    extras = {
        "atlas": atlas_section.atlas_section(groups),
        "centres": centres_section.centres_section(groups, tested, baseline),
        "classes": classes.classes_section(groups, tested, baseline),
        "matrix": matrix.matrix_section(groups),
        "fairness": fairness_section.fairness_section(groups, tested),
        "clusters": clusters_section.clusters_section(groups),
        "teachers": teachers_section.teachers_section(groups, {run: one.meta for run, one in findings.items()}),
        "heads": heads_section.heads_section(groups, findings),
        "looks": looks_section.looks_section(groups, findings),
        "sweep": sweep.sweep_section(groups),
        "sharing": sharing_section.sharing_section(groups, findings),
        "privacy": privacy_section.privacy_section(groups),
        "attacks": attacks_section.attacks_section(groups, folder),
    }
    return (
        environment()
        .get_template("report.html")
        .render(
            title=notices.headline(groups),
            sentence=notices.summary_sentence(runs),
            notices=notices.make_notices(groups, findings),
            sections=(SECTIONS[0], *(one for one in EXTRAS if extras[one[0]]), *SECTIONS[1:]),
            runs=runs,
            folders=short_folders([run for _, run in runs]),
            gains=against.gains_section(groups, tested),
            scores=sections.scores(groups, tested),
            curves=sections.curves(groups),
            forgetting=forgetting_section.forgetting(groups),
            holdings=sections.holdings(runs),
            costs=facts.costs(runs),
            savings=savings.savings(runs),
            settings=sections.settings(runs),
            **extras,
        )
    )


def environment() -> Environment:
    """The templates' environment: everything that is put into a page is escaped, a missing value is an error."""
    found = Environment(
        loader=PackageLoader("medfl.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {
        "score": formats.score,
        "signed": formats.signed,
        "number": formats.number,
        "sentence": formats.sentence,
        "size": formats.size,
        "duration": formats.duration,
        "commands": formats.commands,
        "words": words.metric_words,
        "meaning": words.metric_meaning,
    }
    found.globals |= {"axes": against.Axis, "verdicts": {"gains": GAINS, "loses": LOSES, "unclear": UNCLEAR}}
    return found
