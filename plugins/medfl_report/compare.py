"""Methods side by side: mean and spread over seeds and folds, worst site, paired differences to a baseline.

Runs that differ only in their seed and fold (and in data that were drawn anew for these) make one row, in which each
counts the same. Scores are those of the last evaluated round, of the model that each site takes home. Nothing is picked
by its score, and no winner is marked.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Any

import pandas as pd

from medfl.engine.runs.records import RunRecord
from medfl.errors import SettingsError, StoreError, did_you_mean
from medfl.metrics import LOWER_IS_BETTER, worst
from medfl.types import Meta
from medfl.utils.formats import as_text, listed, metric_words, p_value, plus_minus, table_lines
from medfl_report.groups import (
    Group,
    constant_predictions,
    folds_among,
    group_runs,
    pairs,
)
from medfl_report.patient_tests import (
    NO_PREDICTIONS,
    PatientTest,
    Sets,
    method_test,
    sets_reader,
    verdict_over_runs,
)
from medfl_report.scores import Baseline, baseline_of
from medfl_report.sections.matrix import cross_site_score
from medfl_report.statistics import HEADER, explain, mean_std, paired_t, paired_tests

AT_SERVER = {
    "global_test": "Global test: the server's model on its test set.",
    "shared_test": "Shared test: the model that each site takes home, on the server's test set; mean over the sites.",
    "public_test": "Public test: the server's model on public test images.",
}
"""Columns of scores on images that the server holds, and what they are."""


def compare(
    runs: Sequence[RunRecord],
    metrics: Sequence[str] | None = None,
    baseline: Baseline = None,
    split: str = "test",
    labels: Sequence[str] | None = None,
) -> pd.DataFrame:
    """One row for each metric and group of runs, in the order in which they are given.

    Args:
        runs: At least one.
        metrics: Their names; by default the first metric of the first run's task.
        baseline: Method or label of the group that the others are compared to, or of each group by its label; by
            default the first group.
        split: ``test`` or ``val``.
        labels: One for each run, which then says what makes a row, as those of a study do.

    Returns:
        Columns: metric, split, label, method, seeds (with their folds), status, rounds (those evaluated), sites (with a
        score; the fewest of the group's runs), of_sites, constant_predictions (sentences about models that predict the
        same for every image, or ``-``), mean, std, worst, worst_std, global_test, global_test_std, shared_test,
        shared_test_std, public_test, public_test_std (see `AT_SERVER`), all_sites, all_sites_std,
        all_sites_spread (every site's model on all sites' test sets: mean over the models, its standard deviation over
        the runs and over the models), baseline, pairs, difference, low, high, verdict, p_patients, and of pairs over
        folds p_t, p_corrected and p_wilcoxon (see `medfl_report.statistics.PairedTests`). What is not there is NaN.
        `verdict` is ``better`` or ``worse`` if the interval over the runs is on one side of 0 and the test over
        patients has p_patients <= 0.05; the same with ``(seeds only)`` without such a test; ``n.s.``; ``too few
        patients``; or ``-`` with fewer than two pairs and for the baseline itself.

    Raises:
        SettingsError: If a metric, the baseline or the split is unknown or without scores, or a run is there twice.
        StoreError: If no run has scores.
    """
    chosen = list(metrics or runs[0].task_metrics[:1])
    _check_scores(runs, chosen, split)
    groups = group_runs(runs, labels)
    bases = [_baseline(groups, baseline_of(group.label, baseline)) for group in groups]
    both, sets_of = list(zip(groups, bases, strict=True)), sets_reader()
    return pd.DataFrame([_row(group, base, metric, split, sets_of) for metric in chosen for group, base in both])


def _check_scores(runs: Sequence[RunRecord], metrics: Sequence[str], split: str) -> None:
    """Refuse what no run has."""
    metrics_of: dict[str, set[str]] = {}
    for run in runs:
        for splits in run.scores.values():
            for name, scores in splits.items():
                metrics_of.setdefault(name, set()).update(scores)
    if not metrics_of:
        raise StoreError(
            "no_score",
            "None of these runs has scores: a run has them when it is over. "
            "`medfl status RUN...` says how far each is.",
        )
    if split not in metrics_of:
        raise SettingsError(
            "unknown_choice",
            f"No run has scores on the split '{split}'. {did_you_mean(split, metrics_of)}",
            what="split",
            choice=split,
        )
    for metric in metrics:
        if metric not in metrics_of[split]:
            raise SettingsError(
                "unknown_choice",
                f"No run has the metric '{metric}' on the split '{split}'. {did_you_mean(metric, metrics_of[split])}",
                what="metric",
                choice=metric,
                split=split,
            )


# ---- rows


def _baseline(groups: Sequence[Group], name: str | None) -> Group:
    if name is None:
        return groups[0]
    matching = [group for group in groups if name == group.label] or [group for group in groups if name == group.method]
    if not matching:
        raise SettingsError(
            "unknown_choice",
            f"Unknown baseline '{name}'. {did_you_mean(name, [group.label for group in groups])}",
            what="baseline",
            choice=name,
        )
    if len(matching) > 1:
        raise SettingsError(
            "ambiguous_baseline",
            f"The baseline '{name}' is not one row: name one of {', '.join(repr(group.label) for group in matching)}.",
            name=name,
            labels=[group.label for group in matching],
        )
    return matching[0]


def _row(group: Group, base: Group, metric: str, split: str, sets_of: Callable[[RunRecord], Sets]) -> Meta:
    scores = [_scores(run, metric, split) for run in group.runs]
    scored = [values for values in scores if values]
    crossed = [cross_site_score(run, metric) for run in group.runs] if split == "test" else []
    held = {
        "global_test": [run.server_score(metric, split=split) for run in group.runs],
        "shared_test": [run.shared(metric) if split == "test" else None for run in group.runs],
        "public_test": [run.server_score(metric, "public_test", split) for run in group.runs],
    }
    columns = {
        ("mean", "std"): [math.fsum(values.values()) / len(values) for values in scored],
        ("worst", "worst_std"): [worst(metric, values.values()) for values in scored],
        ("all_sites", "all_sites_std"): [mean for mean, _ in crossed if not math.isnan(mean)],
    }
    columns |= {(name, f"{name}_std"): [v for v in values if v is not None] for name, values in held.items()}
    row: Meta = {
        "metric": metric,
        "split": split,
        "label": group.label,
        "method": group.method,
        "seeds": group.repetitions,
        "status": ", ".join(f"{n} {status}" for status, n in Counter(run.status for run in group.runs).items()),
        "rounds": _joined({run.evaluated_round for run in group.runs if run.evaluated_round is not None}),
        "sites": min((len(values) for values in scored), default=0),
        "of_sites": len(group.runs[0].sites),
        "constant_predictions": constant_predictions(group) or "-",
    }
    for (name, spread), values in columns.items():
        mean, std = mean_std(values) if values else (math.nan, None)
        row |= {name: mean, spread: math.nan if std is None else std}
    spreads = [spread for _, spread in crossed if not math.isnan(spread)]
    row["all_sites_spread"] = fmean(spreads) if spreads else math.nan
    return row | _against(group, base, metric, split, sets_of)


def _against(group: Group, base: Group, metric: str, split: str, sets_of: Callable[[RunRecord], Sets]) -> Meta:
    """Compute the paired difference to the baseline over the seeds and folds that both have on the same data."""
    both = [] if group is base else pairs(group, base)
    differences = _differences(both, metric, split)
    folds = folds_among([run for run, _ in both])
    interval, tests = paired_t(differences, folds=folds), paired_tests(differences, folds)
    test = method_test(both, metric, sets_of) if split == "test" else PatientTest(reason=NO_PREDICTIONS)
    words = ("worse", "better") if metric in LOWER_IS_BETTER else ("better", "worse")
    return {
        "baseline": base.label,
        "pairs": len(differences),
        "difference": mean_std(differences)[0] if differences else math.nan,
        "low": interval.low if interval else math.nan,
        "high": interval.high if interval else math.nan,
        "verdict": verdict_over_runs(interval, test, words),
        "p_patients": math.nan if test.p is None else test.p,
        "p_t": tests.t,
        "p_corrected": tests.corrected,
        "p_wilcoxon": tests.wilcoxon,
    }


def _differences(matched: Sequence[tuple[RunRecord, RunRecord]], metric: str, split: str) -> list[float]:
    """For each pair of runs, the mean over the sites that both have a score for."""
    differences = []
    for pair in matched:
        ours, theirs = (_scores(run, metric, split) for run in pair)
        both = sorted(ours.keys() & theirs.keys())
        differences += [math.fsum(ours[site] - theirs[site] for site in both) / len(both)] if both else []
    return differences


def _scores(run: RunRecord, metric: str, split: str) -> dict[str, float]:
    """Site to the score of the model that it takes home; without sites where it is not defined."""
    scores = {site: run.score(site, metric, split) for site in run.sites}
    return {site: value for site, value in scores.items() if value is not None}


def _joined(numbers: Iterable[int]) -> str:
    return ", ".join(str(number) for number in sorted(numbers))


# ---- Markdown


def to_markdown(table: pd.DataFrame, names: Sequence[str] = ()) -> str:
    """One table for each metric, and below them what the numbers mean.

    Args:
        table: From `compare`.
        names: What each output of the networks is for (`medfl.engine.runs.records.names_of`), for scores of a single
            one.

    Returns:
        Text that ends with a line break.
    """
    metrics = [_metric(str(name), rows, names) for name, rows in table.groupby("metric", sort=False)]
    return "\n".join([*metrics, *(f"- {note}" for note in notes(table))]) + "\n"


def notes(table: pd.DataFrame) -> list[str]:
    """What a reader must know of the numbers, as sentences.

    Args:
        table: From `compare`.
    """
    split, bases = table["split"].iloc[0], table["baseline"].unique()
    folds = bool(table["seeds"].str.contains("fold").any())
    rounds = ", ".join(sorted({last for rows in table["rounds"] for last in rows.split(", ") if last}, key=int))
    sentences = [
        f"Split: {split}. Each run's last evaluated round (round {rounds}), never its best one.",
        "Mean of sites: of the model that each site takes home, every site with the same weight. Worst site: its "
        f"worst value. ± is the standard deviation over the {'runs, one for each seed and fold' if folds else 'seeds'} "
        "(ddof = 1).",
    ]
    if len(set(table["label"])) > 1:
        over, few = ("seeds and folds", "pairs") if folds else ("seeds", "seeds")
        base = bases[0] if len(bases) == 1 else "the row that is named beside it"
        sentences.append(
            f"Difference: to {base}, paired over the {over} that both have on the same data, with its 95 % interval by "
            f"Student's t. '-': fewer than two such {few}, or the same difference in all of them, from which no "
            "interval can be computed."
        )
        sentences.append(
            "A row is better or worse if two tests agree: this interval is on one side of 0, so that chance in "
            "training does not explain the difference, and p (patients) is at most 0.05, so that the choice of test "
            "patients does not explain it. p (patients): exchange test of the two methods' predictions, patient by "
            "patient within each site, for the mean of sites and seeds. 'n.s.': one of them shows no difference. "
            "'(seeds only)': there are no predictions to test; other patients may give another result. The 5 % refer "
            "to each row: of 20 rows without any difference, up to one is called better or worse by chance."
        )
    sentences += [AT_SERVER[name] for name in _at_server(table)]
    if table["p_wilcoxon"].notna().any():
        sentences.append(explain(int(table["pairs"].max())))
    if table["all_sites"].notna().any():
        sentences.append(
            "All sites' test sets: every site's model on every site's test images, the mean over the sites for each "
            "model, then over the models. ± is the standard deviation over the runs; 'over models': that over the "
            "models of a run, as a mean over the runs."
        )
    if (table["sites"] < table["of_sites"]).any():
        sentences.append("Sites where a metric is not defined, such as auc with one class only, are left out.")
    cells = table.drop_duplicates("label").set_index("label")["constant_predictions"]
    labels: dict[str, list[str]] = {}
    for label, text in cells[cells != "-"].items():
        labels.setdefault(text, []).append(str(label))
    sentences += [f"{listed(same)}, {text}" for text, same in labels.items()]
    if table["status"].str.contains("diverged|incomplete|running").any():
        sentences.append(
            "Runs that did not finish stay in the table with the scores of their last evaluated round; a run that has "
            "none counts in no mean."
        )
    return sentences


def _metric(name: str, rows: pd.DataFrame, names: Sequence[str]) -> str:
    held, crossed, bases = _at_server(rows), bool(rows["all_sites"].notna().any()), rows["baseline"].unique()
    several, tested = len(rows) > 1, bool(rows["p_wilcoxon"].notna().any())
    header = ["method", "seeds", "status", "sites", "mean of sites", "worst site"]
    header += [name.replace("_", " ") for name in held]
    header += ["all sites' test sets", "over models"] if crossed else []
    header += ["compared with"] if len(bases) > 1 else []
    header += (
        [f"difference to {bases[0]}" if len(bases) == 1 else "difference", "p (patients)", "verdict"] if several else []
    )
    header += HEADER if tested else []
    lines = [header]
    for row in rows.to_dict("records"):
        sites = str(row["sites"]) if row["sites"] == row["of_sites"] else f"{row['sites']} of {row['of_sites']}"
        cells = [row["label"], row["seeds"], row["status"], sites]
        cells += [plus_minus(row["mean"], row["std"]), plus_minus(row["worst"], row["worst_std"])]
        cells += [plus_minus(row[name], row[f"{name}_std"]) for name in held]
        cells += [plus_minus(row["all_sites"], row["all_sites_std"])] if crossed else []
        cells += [plus_minus(row["all_sites_spread"], math.nan)] if crossed else []
        cells += [row["baseline"]] if len(bases) > 1 else []
        cells += [_difference(row), p_value(row["p_patients"]), row["verdict"]] if several else []
        cells += [p_value(row[name]) for name in ("p_t", "p_corrected", "p_wilcoxon")] if tested else []
        lines.append(cells)
    better = "lower" if name in LOWER_IS_BETTER else "larger"
    words, plain = (metric_words(name, known) for known in (names, ()))
    called = "" if words == plain else f", {as_text(words)}"
    return f"### {name}{called} ({better} is better)\n\n{table_lines(lines)}\n"


def _at_server(rows: pd.DataFrame) -> list[str]:
    """The columns on images that the server holds which say something; the shared one only beside the global one."""
    names = [name for name in AT_SERVER if rows[name].notna().any()]
    differs = (rows["shared_test"].notna() & (rows["shared_test"] != rows["global_test"])).any()
    return [name for name in names if name != "shared_test" or differs]


def _difference(row: dict[Any, Any]) -> str:
    if math.isnan(row["difference"]):
        return "-"
    interval = "" if math.isnan(row["low"]) else f" [{row['low']:+.3f}, {row['high']:+.3f}]"
    return f"{row['difference']:+.3f}{interval}"
