"""A study's tables and reports, from its run folders. A run that is not finished is named with its status."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from medfl.engine.runs.findings import read_findings
from medfl.engine.runs.records import RunRecord, names_of, read_run
from medfl.errors import MedflError
from medfl.plugins import Registry
from medfl.privacy.gaussian import SENSITIVITY
from medfl.utils.files import write_atomic
from medfl.utils.formats import count, csv_table, listed, table_lines
from medfl.utils.text import Say
from medfl_report.claims import check_claim, claims_markdown, claims_table
from medfl_report.compare import compare, to_markdown
from medfl_report.forgetting import forgetting_metric, forgetting_table
from medfl_report.groups import Group, group_runs
from medfl_report.page import write_report
from medfl_report.patient_tests import Sets, sets_reader
from medfl_report.rounds_markdown import rounds_markdown
from medfl_report.scores import key_metrics
from medfl_studies.attacks import AttackJob, attack_jobs, attack_table, attacks_markdown
from medfl_studies.jobs import Job, dataset_dir
from medfl_studies.people import people_markdown, people_table
from medfl_studies.runner import Outcome
from medfl_studies.schema import Study, slug
from medfl_studies.site_models import models_markdown, models_table

OVER = ("finished", "diverged", "incomplete")
"""Statuses of runs that have scores to compare."""


def write_tables(
    study: Study,
    outcome: Outcome[Job],
    data: str,
    out: Path,
    registry: Registry,
    attacked: Outcome[AttackJob] | None = None,
    rows: str = "",
) -> None:
    """Write ``results/<data>.md`` and ``.csv`` from the runs that are over.

    The final scores of each run go to ``-scores.csv``. Where there is something to tell, there are ``-models.csv``
    (each site's model at every site), ``-rounds.csv``, ``-claims.csv`` and ``-attacks.csv``, too.

    Args:
        study: The study.
        outcome: How its runs stand.
        data: Name of a data set.
        out: Folder of the study.
        registry: Registry with the attacks.
        attacked: How the attacks on them stand, once they have begun.
        rows: The table of the study's rows (`rows_markdown`).
    """
    jobs = {job: status for job, status in outcome.status.items() if job.data == data}
    over = _over(study, outcome, data)
    parts = [f"# {study.name}: {data}\n", f"{study.about}\n" if study.about else "", _standing(jobs)]
    try:
        if over:
            parts += _tables(study, data, over, out)
            parts += [_releases(over), _attacks(study, data, over, out, registry)]
    except MedflError as error:
        parts.append(f"No table: {error}\n")
    parts += [_failed(attacked, data), rows]
    write_atomic(_path(out, data, ".md"), "\n".join(part for part in parts if part).encode())


def write_page(study: Study, outcome: Outcome[Job], data: str, out: Path, say: Say, registry: Registry) -> None:
    """Write ``results/<data>.html``, a page about the runs that are over, or say why there is none.

    Args:
        study: The study.
        outcome: How its runs stand.
        data: Name of a data set.
        out: Folder of the study.
        say: Shows a line.
        registry: Its plugins bring the sections of the page.
    """
    over = _over(study, outcome, data)
    try:
        rows = [job.row for job in over]
        page, baselines = _path(out, data, ".html"), _baselines(study, rows)
        say(f"writing {page.relative_to(out)} about {count(len(over), 'run')}")
        write_report([job.folder for job in over], page, rows, baselines, registry)
    except MedflError as error:
        say(f"no page about {data}: {error}")


def write_people(study: Study, data: str, source: Path | None, out: Path) -> None:
    """Write ``results/<data>.md`` and ``.csv`` about who is at the sites, in the partition of each seed.

    Args:
        study: The study; its data are there.
        data: Name of a data set.
        source: Folder of the data as they are.
        out: Folder of the study.
    """
    data_set, page, tables = study.data[data], _path(out, data, ".md"), []
    parts = [f"# {study.name}: {data}\n", f"{study.about}\n" if study.about else ""]
    for seed, fold in study.repetitions(data_set):
        if fold:
            continue  # the folds of a seed have the same people
        place = dataset_dir(out, source, data, data_set, seed, fold)
        tables.append(people_table(place).assign(seed=seed))
        parts += [f"### Seed {seed}\n", people_markdown(tables[-1].drop(columns="seed"), place, page)]
    write_atomic(_path(out, data, ".csv"), csv_table(pd.concat(tables)).encode())
    write_atomic(page, "\n".join(part for part in parts if part).encode())


def _over(study: Study, outcome: Outcome[Job], data: str) -> list[Job]:
    """The runs with scores to compare, in the order of the rows."""
    order = list(study.rows)
    over = [job for job, status in outcome.status.items() if job.data == data and status in OVER]
    return sorted(over, key=lambda job: order.index(job.row))


def _path(out: Path, data: str, ending: str) -> Path:
    return out / "results" / f"{slug(data)}{ending}"


def _tables(study: Study, data: str, jobs: list[Job], out: Path) -> list[str]:
    """Write the tables of at least one run, and say them in Markdown.

    While a baseline has no run, the first row stands in.
    """
    labels, runs = [job.row for job in jobs], [read_run(job.folder) for job in jobs]
    last = compare(runs, study.metrics or None, _baselines(study, labels), labels=labels)
    groups = group_runs(runs, labels)
    sets_of = sets_reader()
    claims = [check_claim(groups, claim.measure, claim.better, claim.than, sets_of) for claim in study.claims]
    metric = forgetting_metric(groups)
    rounds = forgetting_table(groups, metric) if metric else pd.DataFrame()
    models = models_table(groups, list(last["metric"].unique()))
    scores = final_scores(study.name, data, groups, sets_of)
    tables = {"": last, "-scores": scores, "-models": models, "-rounds": rounds, "-claims": claims_table(claims)}
    for ending, table in tables.items():
        if not table.empty:
            write_atomic(_path(out, data, f"{ending}.csv"), csv_table(table).encode())
    parts = [
        to_markdown(last, names_of(runs)),
        *(models_markdown(models, metric) for metric in key_metrics(groups)[:1]),
    ]
    return [*parts, rounds_markdown(rounds), claims_markdown(claims)]


def _baselines(study: Study, labels: Collection[str]) -> dict[str, str]:
    """The row that each row is compared with, if that has runs."""
    named = {name: row.baseline or study.baseline for name, row in study.rows.items()}
    return {name: base for name, base in named.items() if base is not None and base in labels}


def _attacks(study: Study, data: str, jobs: list[Job], out: Path, registry: Registry) -> str:
    """Write what the attacks found on the runs that are over, and say it in Markdown."""
    table = attack_table(attack_jobs(study, jobs, registry))
    if not table.empty:
        write_atomic(_path(out, data, "-attacks.csv"), csv_table(table).encode())
    return attacks_markdown(table, registry.attacks)


def _failed(attacked: Outcome[AttackJob] | None, data: str) -> str:
    """A line for each attack that was tried and gave nothing."""
    tried = attacked.status.items() if attacked else ()
    failed = [(attack, status) for attack, status in tried if attack.run.data == data and status.startswith("failed")]
    lines = [
        f"- {attack.record.name} of {attack.run.row}, {attack.run.repetition}: {status}; see {attack.log}"
        for attack, status in failed
    ]
    return "\n".join(["Attacks that failed:\n", *lines]) + "\n" if lines else ""


def _releases(jobs: list[Job]) -> str:
    """What is promised for the images that sites released, a line for each row and promise; empty if none did."""
    releases = {(job.row, *cells): None for job in jobs if (cells := _release(job.folder))}
    if not releases:
        return ""
    head = ["method", "noise", "variance", "clip", "epsilon, add or remove", "epsilon, replace"]
    return f"### Privacy of released images\n\n{table_lines([head, *map(list, releases)])}\n"


def _release(folder: Path) -> list[str]:
    """Noise, variance, clip and both epsilons of what a run released of each image; empty if it released none."""
    from medfl.privacy.release import Release, epsilon_together

    sharing = read_findings(folder).meta.get("sharing", {})
    copies = [Release.from_meta(meta) for meta in sharing.get("releases", [])]
    if not copies or not sharing["items"]:
        return []
    columns: list[list[str]] = [
        [release.noise for release in copies],
        ["-" if release.noise == "none" else f"{release.variance:g}" for release in copies],
        ["none" if release.clip is None else f"{release.norm.upper()} {release.clip:g}" for release in copies],
    ]
    epsilons = [epsilon_together(copies, adjacency) for adjacency in SENSITIVITY]
    promised = ["no differential privacy" if epsilon is None else f"{epsilon:.2f}" for epsilon in epsilons]
    return [*(listed(list(dict.fromkeys(column))) for column in columns), *promised]


def _standing(jobs: dict[Job, str]) -> str:
    """How many runs are finished, and a line for each that is not."""
    finished = sum(status == "finished" for status in jobs.values())
    lines = [f"{finished} of {len(jobs)} runs are finished.\n"]
    lines += [f"- {job.row}, {job.repetition}: {status}" for job, status in jobs.items() if status != "finished"]
    return "\n".join(lines) + ("\n" if len(lines) > 1 else "")


COLUMNS = (
    "study",
    "data",
    "row",
    "method",
    "seed",
    "fold",
    "site",
    "model",
    "taken_home",
    "split",
    "moment",
    "metric",
    "value",
    "images",
    "patients",
)
"""Columns of the table. `model` is ``global`` or ``personal``; `taken_home` is true for the one that the site keeps."""

AT_SERVER = ("global_test", "public_test")
"""Test sets at the server, which stand in the column `site`."""

MOMENT = "aggregated"
"""Final scores are those after the last evaluated aggregation."""


def final_scores(study: str, data: str, groups: Sequence[Group], sets_of: Callable[[RunRecord], Sets]) -> pd.DataFrame:
    """Collect the final scores of all runs.

    Args:
        study: Name of the study.
        data: Name of the data set.
        groups: The rows with their runs.
        sets_of: Returns the test sets of a run.

    Returns:
        A table with `COLUMNS`, a line for each score that is defined. `images` and `patients` are those of a site's
        test set; they are empty for other splits, without predictions, and `patients` where they are not known.
    """
    rows = [
        {"study": study, "data": data, "row": group.label, "method": run.method, "seed": run.seed, "fold": run.fold}
        | score
        for group in groups
        for run in group.runs
        for score in _scores(run, sets_of(run))
    ]
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    return table.astype(dict.fromkeys(("fold", "images", "patients"), "Int64"))


def _scores(run: RunRecord, sets: Sets) -> Iterator[dict[str, Any]]:
    for model, splits in run.scores.items():
        for split, metrics in splits.items():
            for metric, scores in metrics.items():
                about = {"model": model, "split": split, "moment": MOMENT, "metric": metric}
                for site, value in scores.sites.items():
                    test_set = sets.get(site) if split == "test" else None
                    if value is not None:
                        yield about | {
                            "site": site,
                            "taken_home": run.exported_kind(site) == model,
                            "value": value,
                            "images": None if test_set is None else len(test_set.rows),
                            "patients": None if test_set is None else test_set.patient_count,
                        }
                for place in AT_SERVER:
                    if (value := getattr(scores, place)) is not None:
                        yield about | {"site": place, "taken_home": False, "value": value}
