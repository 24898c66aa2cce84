"""Collect the raw results of a study: identity and status of its runs, scores, predictions, and results of attacks.

Each row of a study is a method with settings; a row has one run for each data set, seed and fold. A scale is a named
variant of the study.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from medfl import __version__
from medfl.data.datalists import DATALIST_FILE, Datalist, read_datalist
from medfl.engine.runs.records import RunRecord
from medfl.errors import DataError, SettingsError, StoreError, did_you_mean
from medfl.plugins import load_plugins
from medfl.types import GLOBAL
from medfl.utils.files import bytes_in, write_atomic
from medfl_report.predictions import read_prediction_sets
from medfl_studies.attacks import RUN_KEY, attack_jobs, attack_values
from medfl_studies.checks import find_source
from medfl_studies.code_version import current_commit
from medfl_studies.jobs import RunJob, expand_study
from medfl_studies.pretrained_weights import find_weights
from medfl_studies.records.raw_results import CodeVersion, KeptDataSet, KeptRun, RawResults, UnfinishedRun
from medfl_studies.records.study_files import JobIdentity
from medfl_studies.results.compressed_tables import MAX_ROUNDING_ERROR, replace_rows, round_probabilities, write_table
from medfl_studies.results.recorded_study import (
    ATTACKS,
    ROUNDS,
    SCORE_COLUMNS,
    SCORES,
    RunKey,
    StudyResults,
    compare_scores,
    read_results,
    round_rows,
    run_key,
    run_name,
    score_rows,
)
from medfl_studies.results.server_predictions import collect_run
from medfl_studies.results.trials_table import TRIALS, collect_trials
from medfl_studies.schema import FULL_SCALE, Study, slug
from medfl_studies.study import default_output_dir
from medfl_studies.study_reader import read_study
from medfl_studies.study_tables import ENDED_STATUSES

DIGITS = 9
"""Number of significant digits of predictions by default, as in run folders."""

UNSTATED_LICENCES = ("", "unknown")
"""Texts in a data list that state no licence."""


@dataclass(frozen=True)
class StudyPart:
    """Part of a study whose raw results are collected.

    Attributes:
        scale: Scale of the study.
        seeds: Number of seeds that replaces the study's seeds, >= 1, or a list of seeds; None for the study's seeds.
        data: Names of the data sets; empty means all.
        rows: Names of the rows; empty means all.
    """

    scale: str = FULL_SCALE
    seeds: int | list[int] | None = None
    data: Sequence[str] = ()
    rows: Sequence[str] = ()


WHOLE_STUDY = StudyPart()
"""All data sets, rows and seeds of a study, as in its file."""


@dataclass(frozen=True)
class Collected:
    """Raw results that were written.

    Attributes:
        folder: Folder of the raw results.
        raw: Content of ``runs.json.gz``.
        size: Size of all files in bytes.
    """

    folder: Path
    raw: RawResults
    size: int


@dataclass(frozen=True)
class _StudyRuns:
    """Runs of a study with results, and where they come from.

    Attributes:
        runs: Each run, with its scores and predictions, in the order of the study.
        data: Maps each data set with runs to its licence and citation, in the order of the study.
        rows: Names of the rows, in the order of the study.
        unfinished: Runs without results.
        trials: Trials of the searches that chose the settings, with `TRIAL_COLUMNS`.
        attacks: Results of the attacks on the runs, with `VALUE_COLUMNS`.
    """

    runs: list[tuple[KeptRun, RunRecord]]
    data: dict[str, KeptDataSet]
    rows: tuple[str, ...]
    unfinished: tuple[UnfinishedRun, ...]
    trials: pd.DataFrame
    attacks: pd.DataFrame


def collect_study(
    file: Path,
    into: Path,
    out: Path | None = None,
    source: Path | None = None,
    part: StudyPart = WHOLE_STUDY,
    digits: int = DIGITS,
    decimals: int | None = None,
    notes: Iterable[str] = (),
    add: bool = False,
) -> Collected:
    """Write the raw results of a study from its output folder, and replace earlier raw results in the folder.

    Args:
        file: Study file.
        into: Folder of the raw results.
        out: Output folder of the study; None means ``runs/<name>``, as for ``medfl study``.
        source: Folder of the source data; needed only for a data set without preparation.
        part: Scale, seeds, data sets and rows to collect. Other runs are neither kept nor listed as unfinished.
        digits: Number of significant digits of predictions, >= 1.
        decimals: Number of decimals of the probabilities of classes, >= 1 (`round_probabilities`); None rounds to
            `digits` only.
        notes: Sentences about the origin of the runs.
        add: Whether to keep those runs of earlier raw results that have no folder here. They need the same options as
            in the study file. Their predictions keep their digits, which must not be more than `digits`.

    Raises:
        DataError: If a data set states no licence.
        SettingsError: If the study has no such scale, data set or row.
        StoreError: If no run has ended, a run has other options than in the study file, the rounding of the
            predictions changes a score by more than `MAX_ROUNDING_ERROR`, `decimals` are given for predictions that
            are no probabilities of classes, or the earlier raw results have another scale, other decimals or more
            digits.
        MedflError: If the study file or a run folder can't be read.
    """
    source = find_source(source)
    study, _ = find_weights(read_study(file, part.scale, part.seeds, part.data), source)
    study = _with_rows(study, part.rows, file)
    place = (out or default_output_dir(study, part.scale)).absolute()
    bundle = file.parent / study.bundle
    new_runs = _find_runs(study, expand_study(study, bundle, source, place), place)
    if add and (into / RawResults.NAME).is_file():
        earlier = read_results(into)
        whole = read_study(file, part.scale)
        whole = whole.model_copy(update={"seeds": sorted({kept.seed for kept in earlier.raw.runs})})
        whole, _ = find_weights(whole, source)
        _check_earlier(
            earlier,
            {"scale": part.scale, "digits": digits, "decimals": decimals},
            expand_study(whole, bundle, source, place),
            {run_key(kept) for kept, _ in new_runs.runs},
        )
        new_runs = _join(new_runs, earlier, whole)
        notes = dict.fromkeys((*earlier.raw.notes, *notes))
    text = file.read_text(encoding="utf-8")
    raw = RawResults(
        study=study.name,
        study_file=text,
        study_sha256=hashlib.sha256(text.encode()).hexdigest(),
        scale=part.scale,
        collected_with=CodeVersion(medfl=__version__, commit=current_commit()),
        digits=digits,
        decimals=decimals,
        data=new_runs.data,
        rows=new_runs.rows,
        baseline=study.baseline if study.baseline in new_runs.rows else None,
        runs=tuple(kept for kept, _ in new_runs.runs),
        unfinished=new_runs.unfinished,
        notes=tuple(notes),
    )
    raw = _write_results(raw, new_runs, into)
    return Collected(into, raw, bytes_in(into))


def _find_runs(study: Study, jobs: Sequence[RunJob], out: Path) -> _StudyRuns:
    """Return the ended runs in the output folder of a study.

    Raises:
        StoreError: If no run has ended, or a run has other options than in the study file.
    """
    ended = [job for job in jobs if job.status() in ENDED_STATUSES]
    if not ended:
        raise StoreError(
            "no_run", f"No run of '{study.name}' has ended in '{out}'. Give the folder with --out.", path=out
        )
    names = [name for name in study.data if any(job.data == name for job in ended)]
    records = {job: collect_run(job.folder, job.dataset_dir) for job in ended}
    return _StudyRuns(
        runs=[(_keep_run(job, record), record) for job, record in records.items()],
        data={name: _describe_data(name, [job for job in ended if job.data == name]) for name in names},
        rows=tuple(study.rows),
        unfinished=tuple(
            UnfinishedRun(data=job.data, row=job.row, seed=job.seed, fold=job.fold, status=job.status())
            for job in jobs
            if job not in records
        ),
        trials=collect_trials(out),
        attacks=_find_attacks(study, records),
    )


def _find_attacks(study: Study, runs: Iterable[RunJob]) -> pd.DataFrame:
    """Return the results of the study's attacks on some runs, as `attack_values`."""
    registry = load_plugins(study.settings.get("plugins", ()), study.settings.get("disabled_plugins", ()))
    return attack_values(attack_jobs(study, runs, registry))


def _check_earlier(
    earlier: StudyResults, options: Mapping[str, Any], jobs: Sequence[RunJob], replaced: Collection[RunKey]
) -> None:
    """Check that new runs can be added to earlier raw results.

    Args:
        earlier: The earlier raw results.
        options: Scale, digits and decimals of the new runs.
        jobs: All runs of the study file with the seeds of the earlier runs.
        replaced: Earlier runs that new ones replace. They may have had other options.

    Raises:
        StoreError: If the earlier raw results have another scale, predictions with more digits or other decimals, or a
            run that is not in the study file or has other options there.
    """
    raw, place = earlier.raw, earlier.folder
    is_rounded = any(kept.predictions is not None for kept in raw.data.values())
    for name, now in options.items():
        before = getattr(raw, name)
        fits = before <= now if name == "digits" else before == now
        if not fits and (is_rounded or name == "scale"):
            raise StoreError(
                "other_results",
                f"The raw results in '{place}' have --{name} {before}, got --{name} {now}. Give "
                f"{'as many or more' if name == 'digits' else 'the same'}, or collect without --add, which replaces "
                "them.",
                path=place,
                setting=name,
            )
    by_key = {run_key(job): job for job in jobs}
    for kept in raw.runs:
        run, job = f"{kept.data}, {kept.row}, {run_name(kept)}", by_key.get(run_key(kept))
        if job is None:
            raise StoreError(
                "other_results",
                f"The raw results in '{place}' have a run that is not in the study file: {run}. Collect without --add, "
                "which replaces them.",
                path=place,
                setting="run",
            )
        if run_key(kept) not in replaced:
            _check_options(kept.job, job, f"'{place}': {run}")


def _join(new_runs: _StudyRuns, earlier: StudyResults, study: Study) -> _StudyRuns:
    """Return new runs with the earlier ones that were not found again, in the order of the study.

    Args:
        new_runs: The new runs.
        earlier: The earlier raw results.
        study: The study with all data sets and rows.
    """
    places: dict[RunKey, tuple[KeptRun, RunRecord]] = {
        run_key(kept): (kept, record) for kept, record in zip(earlier.raw.runs, earlier.runs, strict=True)
    }
    places |= {run_key(kept): (kept, record) for kept, record in new_runs.runs}
    data_order, row_order = list(study.data), list(study.rows)

    def position(run: tuple[KeptRun, RunRecord]) -> tuple[int, int, int, int]:
        kept = run[0]
        fold = -1 if kept.fold is None else kept.fold
        return data_order.index(kept.data), kept.seed, fold, row_order.index(kept.row)

    described = dict(earlier.raw.data)
    for name, kept in new_runs.data.items():
        errors = {} if name not in described else described[name].model_dump(include={"rounding_error", "score_error"})
        described[name] = kept.model_copy(update=errors)
    unfinished = {run_key(run): run for run in (*earlier.raw.unfinished, *new_runs.unfinished)}
    return _StudyRuns(
        runs=sorted(places.values(), key=position),
        data={name: described[name] for name in data_order if name in described},
        rows=tuple(row for row in row_order if row in {*earlier.raw.rows, *new_runs.rows}),
        unfinished=tuple(run for key, run in unfinished.items() if key not in places),
        trials=replace_rows(earlier.trials, new_runs.trials, ["split", "row"]),
        attacks=replace_rows(earlier.attacks, new_runs.attacks, [*RUN_KEY, "kind"]),
    )


def _write_results(raw: RawResults, study_runs: _StudyRuns, into: Path) -> RawResults:
    """Write all files of the raw results and replace those in the folder; after an error, the folder is unchanged.

    Returns:
        The raw results with the names of the files of predictions and the errors of rounding.

    Raises:
        StoreError: If the rounding of the predictions changes a score by more than `MAX_ROUNDING_ERROR`.
    """
    into.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{into.name}-", dir=into.parent) as place:
        new = Path(place)
        raw = _write_files(raw, study_runs, new)
        for path in [
            *(into / name for name in (RawResults.NAME, SCORES, ROUNDS, TRIALS, ATTACKS)),
            *into.glob("predictions-*.csv.gz"),
        ]:
            path.unlink(missing_ok=True)
        for path in sorted(new.iterdir()):
            write_atomic(into / path.name, path.read_bytes())
    return raw


def _write_files(raw: RawResults, study_runs: _StudyRuns, new: Path) -> RawResults:
    """Write all files of the raw results into an empty folder; see `_write_results`."""
    data = {}
    for name, kept in raw.data.items():
        table = _prediction_table([run for run in study_runs.runs if run[0].data == name])
        predictions = None if table.empty else f"predictions-{slug(name)}.csv.gz"
        if predictions is not None:
            rounded = table if raw.decimals is None else round_probabilities(table, raw.decimals)
            write_table(new / predictions, rounded, raw.digits)
        data[name] = kept.model_copy(update={"predictions": predictions})
    raw = raw.model_copy(update={"data": data})
    lines = [line for kept, record in study_runs.runs for line in score_rows(kept, record)]
    write_table(new / SCORES, pd.DataFrame(lines, columns=list(SCORE_COLUMNS)).astype({"fold": "Int64"}))
    write_table(new / ROUNDS, pd.concat([round_rows(kept, record) for kept, record in study_runs.runs]))
    if not study_runs.trials.empty:
        write_table(new / TRIALS, study_runs.trials)
    if not study_runs.attacks.empty:
        write_table(new / ATTACKS, study_runs.attacks.sort_values([*RUN_KEY, "kind"], kind="stable"))
    raw.write(new / RawResults.NAME)
    raw = _measure_errors(new, raw, [record for _, record in study_runs.runs])
    raw.write(new / RawResults.NAME)
    return raw


def _with_rows(study: Study, rows: Sequence[str], file: Path) -> Study:
    """Return a study with some of its rows, in the order of the study file; without names, with all of them.

    Raises:
        SettingsError: If the study has no such row.
    """
    for name in rows:
        if name not in study.rows:
            raise SettingsError(
                "unknown_choice",
                f"The study '{file}' has no row '{name}'. {did_you_mean(name, study.rows)}",
                what="row",
                choice=name,
                path=file,
            )
    return study.model_copy(
        update={"rows": {name: row for name, row in study.rows.items() if not rows or name in rows}}
    )


def _describe_data(name: str, jobs: Sequence[RunJob]) -> KeptDataSet:
    """Return name, licence and citation of a data set from the data lists of its sites.

    Raises:
        DataError: If a data list states no licence.
    """
    lists = sorted({path for job in jobs for path in job.dataset_dir.glob(f"*/{DATALIST_FILE}")})
    if not lists:
        raise DataError(
            "missing_file",
            f"expected the data lists of '{name}' in '{jobs[0].dataset_dir}', which state the licence; found none.",
            path=jobs[0].dataset_dir,
        )
    contents = [read_datalist(path.parent) for path in lists]
    for path, content in zip(lists, contents, strict=True):
        if content.licence.strip().lower() in UNSTATED_LICENCES:
            raise DataError(
                "no_licence",
                f"'{path}' states no licence. Raw results are kept of public data only: prepare the data with their "
                "licence, or do not collect this study.",
                path=path,
                data=name,
            )
    return KeptDataSet(
        dataset=contents[0].name,
        licence="; ".join(dict.fromkeys(content.licence for content in contents)),
        citation="; ".join(dict.fromkeys(filter(None, map(_citation, contents)))),
    )


def _citation(datalist: Datalist) -> str:
    return str(datalist.extra.get("citation", ""))


def _keep_run(job: RunJob, run: RunRecord) -> KeptRun:
    """Return the record of a run, without scores, origins of settings and the path of its data.

    Raises:
        StoreError: If the run has other options than in the study file.
    """
    path = job.folder / JobIdentity.NAME
    identity = JobIdentity.read(path) if path.is_file() else None
    _check_options(identity, job, f"'{job.folder}'")
    origin = run.run.provenance
    shortened = origin.model_copy(update={"settings": {}, "data": origin.data.model_copy(update={"folder": None})})
    assert run.summary is not None  # the run has ended
    return KeptRun(
        data=job.data,
        row=job.row,
        seed=job.seed,
        fold=job.fold,
        job=identity,
        run=run.run.model_copy(update={"provenance": shortened}),
        summary=run.summary.model_copy(update={"scores": {}}),
    )


def _check_options(identity: JobIdentity | None, job: RunJob, place: str) -> None:
    """Raise StoreError if a run was made with other options than in the study file.

    Args:
        identity: Options of the run; None if they are unknown.
        job: The run in the study file.
        place: Place of the run, for the message.
    """
    expected = json.loads(json.dumps(job.options))
    if identity is not None and identity.options != expected:
        changed = sorted(
            key for key in identity.options.keys() | expected.keys() if identity.options.get(key) != expected.get(key)
        )
        raise StoreError(
            "other_run",
            f"The run in {place} has other options than the study file: {', '.join(changed)}. Give the study file, "
            "and the scale, that the runs were made with.",
            place=place,
            options=changed,
        )


def _prediction_table(runs: Sequence[tuple[KeptRun, RunRecord]]) -> pd.DataFrame:
    """Return the predictions of the exported models for the test images of all sites and the server, in order."""
    parts = []
    for kept, run in sorted(runs, key=lambda item: (item[0].row, item[0].seed, item[0].fold or 0)):
        for site in sorted({*read_prediction_sets(run), GLOBAL}):
            if (table := run.predictions(site)) is None:
                continue  # the server has no test set
            head = {"data": kept.data, "row": kept.row, "seed": kept.seed, "fold": kept.fold, "site": site}
            head |= {"split": "test", "model": run.exported_kind(site) or GLOBAL}
            content = table.rename(columns={"row": "image"}).sort_values("image", kind="stable")
            parts.append(pd.DataFrame(head, index=content.index).join(content))
    if not parts:
        return pd.DataFrame(columns=list(RUN_KEY))
    return pd.concat(parts, ignore_index=True).astype({"fold": "Int64"})


def _measure_errors(folder: Path, raw: RawResults, runs: Sequence[RunRecord]) -> RawResults:
    """Return the record with the largest errors of the scores of the written predictions, for each data set.

    The errors of earlier runs, whose predictions were rounded before, are in the record already.

    Raises:
        StoreError: If the rounding of the predictions changes a score by more than `MAX_ROUNDING_ERROR`.
    """
    errors = {
        name: {"rounding_error": kept.rounding_error, "score_error": kept.score_error}
        for name, kept in raw.data.items()
    }
    results = read_results(folder)
    for original, kept, recorded in zip(runs, raw.runs, results.runs, strict=True):
        exact = {
            (score.site, score.metric): score
            for score in compare_scores(kept, original, read_prediction_sets(original))
        }
        for rounded in compare_scores(kept, recorded, results.read_sets(recorded)):
            before, largest = exact[rounded.site, rounded.metric], errors[kept.data]
            change = abs(rounded.computed - before.computed)
            if change > MAX_ROUNDING_ERROR:
                raise StoreError(
                    "rounded_too_far",
                    f"{rounded.place}: the {rounded.metric} of the rounded predictions is {rounded.computed:.6f} "
                    f"instead of {before.computed:.6f}. Give more --digits or --decimals.",
                    place=rounded.place,
                    metric=rounded.metric,
                )
            largest["rounding_error"] = max(largest["rounding_error"], change)
            largest["score_error"] = max(largest["score_error"], rounded.error)
    data = {name: kept.model_copy(update=errors[name]) for name, kept in raw.data.items()}
    return raw.model_copy(update={"data": data})
