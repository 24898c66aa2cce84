"""Write a study's tables and reports from its run folders. Unfinished runs are listed with their status.

Each row of a study is a method with settings; a row has one run for each data set, seed and fold.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from medfl.engine.runs.findings import read_findings
from medfl.engine.runs.records import RunRecord, common_output_names, read_run
from medfl.errors import MedflError
from medfl.plugins import Registry
from medfl.privacy.gaussian import SENSITIVITY
from medfl.utils.files import write_atomic
from medfl.utils.formats import count, csv_table, join_words, table_lines
from medfl.utils.text import Say
from medfl_report.claims import check_claim, claims_markdown, claims_table, correct_claims
from medfl_report.compare import compare, to_markdown
from medfl_report.evaluation.external_scores import other_evaluations
from medfl_report.forgetting import forgetting_metric, forgetting_table
from medfl_report.groups import Group, group_runs
from medfl_report.page import write_report
from medfl_report.patient_tests import PredictionSets, sets_reader
from medfl_report.rounds_markdown import rounds_markdown
from medfl_report.scores import key_metrics
from medfl_studies.attacks import AttackJob, attack_jobs, attack_table, attack_values, attacks_markdown
from medfl_studies.demographics import demographics_markdown, demographics_table
from medfl_studies.external_tables import external_markdown, external_table
from medfl_studies.jobs import RunJob, dataset_dir
from medfl_studies.runner import JobOutcome
from medfl_studies.schema import Study, slug
from medfl_studies.site_models import models_markdown, models_table
from medfl_studies.unseen import UnseenOutcome

ENDED_STATUSES = ("finished", "diverged", "incomplete")
"""Statuses of ended runs, which have scores to compare."""


def write_tables(
    study: Study,
    outcome: JobOutcome[RunJob],
    data: str,
    out: Path,
    registry: Registry,
    attacked: JobOutcome[AttackJob] | None = None,
    rows: str = "",
    unseen: UnseenOutcome | None = None,
) -> None:
    """Write ``results/<data>.md`` and ``.csv`` from the runs that have ended.

    The final scores of each run are written to ``<data>-scores.csv``. Further tables are written if they have entries:

    * ``<data>-models.csv``: scores of each site's model at every site;
    * ``<data>-rounds.csv``: measures over all rounds;
    * ``<data>-claims.csv``: checks of the study's claims;
    * ``<data>-external.csv``: scores at sites that were left out of the training;
    * ``<data>-attacks.csv``: results of attacks.

    Args:
        study: The study.
        outcome: Status of its runs.
        data: Name of a data set.
        out: Output folder of the study.
        registry: Registry with the attacks.
        attacked: Status of the attacks, or None before the first attack.
        rows: Markdown of the table of the study's rows (`medfl_studies.study.rows_markdown`).
        unseen: Status of the runs without a site, and of the evaluations there; None before they start.
    """
    jobs = {job: status for job, status in outcome.status.items() if job.data == data}
    ended = _ended_runs(study, outcome, data)
    parts = [f"# {study.name}: {data}\n", f"{study.about}\n" if study.about else "", _list_unfinished_runs(jobs)]
    try:
        if ended:
            parts += _write_run_tables(study, data, ended, out)
            parts.append(_write_external_table(study, data, out, unseen))
            parts += [_release_table(ended), _write_attack_table(study, data, ended, out, registry)]
    except MedflError as error:
        parts.append(f"No table: {error}\n")
    parts += [_list_failed_attacks(attacked, data), rows]
    write_atomic(_result_path(out, data, ".md"), "\n".join(part for part in parts if part).encode())


def write_page(
    study: Study,
    outcome: JobOutcome[RunJob],
    data: str,
    out: Path,
    say: Say,
    registry: Registry,
    unseen: UnseenOutcome | None = None,
) -> None:
    """Write ``results/<data>.html``, a report on the runs that have ended, or print the reason for its absence.

    Args:
        study: The study.
        outcome: Status of its runs.
        data: Name of a data set.
        out: Output folder of the study.
        say: Callback that prints a line.
        registry: Registry with the sections of the page.
        unseen: Status of the runs without a site, and of the evaluations there.
    """
    ended = _ended_runs(study, outcome, data)
    try:
        rows = [job.row for job in ended]
        page, baselines = _result_path(out, data, ".html"), _baselines(study, rows)
        say(f"writing the report {page.relative_to(out)} on {count(len(ended), 'run')}")
        further = {} if unseen is None else unseen.folders(data)
        write_report([job.folder for job in ended], page, rows, baselines, registry, unseen=further)
    except MedflError as error:
        say(f"no report on {data}: {error}")


def write_demographics(study: Study, data: str, source: Path | None, out: Path) -> None:
    """Write ``results/<data>.md`` and ``.csv`` with the demographics of the sites, for each seed's partition.

    Args:
        study: The study; its data exist.
        data: Name of a data set.
        source: Folder of the source data.
        out: Output folder of the study.
    """
    data_set, page, tables = study.data[data], _result_path(out, data, ".md"), []
    parts = [f"# {study.name}: {data}\n", f"{study.about}\n" if study.about else ""]
    for seed, fold in study.repetitions(data_set):
        if fold:
            continue  # all folds of a seed contain the same people
        place = dataset_dir(out, source, data, data_set, seed, fold)
        tables.append(demographics_table(place).assign(seed=seed))
        parts += [f"### Seed {seed}\n", demographics_markdown(tables[-1].drop(columns="seed"), place, page)]
    write_atomic(_result_path(out, data, ".csv"), csv_table(pd.concat(tables)).encode())
    write_atomic(page, "\n".join(part for part in parts if part).encode())


def _ended_runs(study: Study, outcome: JobOutcome[RunJob], data: str) -> list[RunJob]:
    """Return the ended runs on a data set, in the order of the rows."""
    order = list(study.rows)
    ended = [job for job, status in outcome.status.items() if job.data == data and status in ENDED_STATUSES]
    return sorted(ended, key=lambda job: order.index(job.row))


def _result_path(out: Path, data: str, ending: str) -> Path:
    """Return the path of a result file."""
    return out / "results" / f"{slug(data)}{ending}"


def _write_run_tables(study: Study, data: str, jobs: list[RunJob], out: Path) -> list[str]:
    """Write the tables of at least one run, and return their Markdown.

    Until the baseline has a run, the first row replaces it.
    """
    labels, runs = [job.row for job in jobs], [read_run(job.folder) for job in jobs]
    last = compare(runs, study.metrics or None, _baselines(study, labels), labels=labels)
    groups = group_runs(runs, labels)
    sets_of = sets_reader()
    claims = correct_claims(
        [check_claim(groups, claim.measure, claim.better, claim.than, sets_of) for claim in study.claims]
    )
    metric = forgetting_metric(groups)
    rounds = forgetting_table(groups, metric) if metric else pd.DataFrame()
    models = models_table(groups, list(last["metric"].unique()))
    scores = final_scores(study.name, data, groups, sets_of)
    tables = {"": last, "-scores": scores, "-models": models, "-rounds": rounds, "-claims": claims_table(claims)}
    for ending, table in tables.items():
        if not table.empty:
            write_atomic(_result_path(out, data, f"{ending}.csv"), csv_table(table).encode())
    parts = [
        to_markdown(last, common_output_names(runs)),
        *(models_markdown(models, metric) for metric in key_metrics(groups)[:1]),
    ]
    return [*parts, rounds_markdown(rounds), claims_markdown(claims)]


def _write_external_table(study: Study, data: str, out: Path, unseen: UnseenOutcome | None) -> str:
    """Write the table of scores at sites that were left out of the training, and return its Markdown."""
    if unseen is None or study.unseen is None:
        return ""
    labels = [name for name in study.rows if name in unseen.folders(data)]
    runs = {label: [read_run(folder) for folder in unseen.folders(data)[label]] for label in labels}
    table = external_table(runs, study.metrics)
    if not table.empty:
        write_atomic(_result_path(out, data, "-external.csv"), csv_table(table).encode())
    return external_markdown(table, unseen.unfinished(data), other_evaluations(runs))


def _baselines(study: Study, labels: Collection[str]) -> dict[str, str]:
    """Map each row to its baseline, if the baseline has runs."""
    named = {name: row.baseline or study.baseline for name, row in study.rows.items()}
    return {name: base for name, base in named.items() if base is not None and base in labels}


def _write_attack_table(study: Study, data: str, jobs: list[RunJob], out: Path, registry: Registry) -> str:
    """Write the table of attack results on the ended runs, and return its Markdown."""
    table = attack_table(attack_values(attack_jobs(study, jobs, registry)))
    if not table.empty:
        write_atomic(_result_path(out, data, "-attacks.csv"), csv_table(table).encode())
    return attacks_markdown(table, registry.attacks)


def _list_failed_attacks(attacked: JobOutcome[AttackJob] | None, data: str) -> str:
    """Return a line for each attack that was tried and failed."""
    tried = attacked.status.items() if attacked else ()
    failed = [(attack, status) for attack, status in tried if attack.run.data == data and status.startswith("failed")]
    lines = [
        f"- {attack.record.name} of {attack.run.row}, {attack.run.repetition}: {status}; see {attack.log}"
        for attack, status in failed
    ]
    return "\n".join(["Attacks that failed:\n", *lines]) + "\n" if lines else ""


def _release_table(jobs: list[RunJob]) -> str:
    """Return a table of the privacy guarantees for released images, one line for each row and guarantee.

    The text is empty if no run released images.
    """
    releases = {(job.row, *cells): None for job in jobs if (cells := _describe_release(job.folder))}
    if not releases:
        return ""
    head = ["method", "noise", "variance", "clip", "epsilon, add or remove", "epsilon, replace"]
    return f"### Privacy of released images\n\n{table_lines([head, *map(list, releases)])}\n"


def _describe_release(folder: Path) -> list[str]:
    """Return noise, variance, clipping and both epsilons of the images that a run released; empty without images.

    The word release has the meaning of differential privacy: a noised value that leaves a site.
    """
    from medfl.privacy.release import ImageRelease, epsilon_together

    sharing = read_findings(folder).meta.get("sharing", {})
    copies = [ImageRelease.from_meta(meta) for meta in sharing.get("releases", [])]
    if not copies or not sharing["items"]:
        return []
    columns: list[list[str]] = [
        [release.noise for release in copies],
        ["-" if release.noise == "none" else f"{release.variance:g}" for release in copies],
        ["none" if release.clip is None else f"{release.norm.upper()} {release.clip:g}" for release in copies],
    ]
    epsilons = [epsilon_together(copies, adjacency) for adjacency in SENSITIVITY]
    promised = ["no differential privacy" if epsilon is None else f"{epsilon:.2f}" for epsilon in epsilons]
    return [*(join_words(list(dict.fromkeys(column))) for column in columns), *promised]


def _list_unfinished_runs(jobs: dict[RunJob, str]) -> str:
    """Return the number of finished runs, and a line for each run that is not finished."""
    finished = sum(status == "finished" for status in jobs.values())
    lines = [f"{finished} of {len(jobs)} runs are finished.\n"]
    lines += [f"- {job.row}, {job.repetition}: {status}" for job, status in jobs.items() if status != "finished"]
    return "\n".join(lines) + ("\n" if len(lines) > 1 else "")


SCORE_COLUMNS = (
    "study",
    "data",
    "row",
    "method",
    "seed",
    "fold",
    "site",
    "model",
    "exported",
    "split",
    "moment",
    "metric",
    "value",
    "images",
    "patients",
)
"""Columns of the table of final scores.

The column `model` is ``global`` or ``personal``; `exported` is true for the model that the site exports.
"""

SERVER_TEST_SETS = ("server_test", "public_test")
"""Test sets of the server; their names are in the column `site`."""

FINAL_MOMENT = "aggregated"
"""Name of the moment within a round at which the final scores were computed: after the server's aggregation."""


def final_scores(
    study: str, data: str, groups: Sequence[Group], sets_of: Callable[[RunRecord], PredictionSets]
) -> pd.DataFrame:
    """Collect the final scores of all runs.

    Args:
        study: Name of the study.
        data: Name of the data set.
        groups: Rows with their runs.
        sets_of: Returns the test sets of a run.

    Returns:
        A table with `SCORE_COLUMNS` and a line for each defined score. `images` and `patients` are the sizes of a
            site's test set. They are empty for other splits and for runs without predictions; `patients` also if
            patients are unknown.
    """
    rows = [
        {"study": study, "data": data, "row": group.label, "method": run.method, "seed": run.seed, "fold": run.fold}
        | score
        for group in groups
        for run in group.runs
        for score in _iterate_scores(run, sets_of(run))
    ]
    table = pd.DataFrame(rows, columns=list(SCORE_COLUMNS))
    return table.astype(dict.fromkeys(("fold", "images", "patients"), "Int64"))


def _iterate_scores(run: RunRecord, sets: PredictionSets) -> Iterator[dict[str, Any]]:
    """Yield the final scores of a run as rows of the table."""
    for model, splits in run.scores.items():
        for split, metrics in splits.items():
            for metric, scores in metrics.items():
                about = {"model": model, "split": split, "moment": FINAL_MOMENT, "metric": metric}
                for site, value in scores.sites.items():
                    test_set = sets.get(site) if split == "test" else None
                    if value is not None:
                        yield about | {
                            "site": site,
                            "exported": run.exported_kind(site) == model,
                            "value": value,
                            "images": None if test_set is None else len(test_set.rows),
                            "patients": None if test_set is None else test_set.patient_count,
                        }
                for place in SERVER_TEST_SETS:
                    if (value := getattr(scores, place)) is not None:
                        yield about | {"site": place, "exported": False, "value": value}
