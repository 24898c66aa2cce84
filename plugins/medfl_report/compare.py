"""Tables that compare methods: mean and spread over seeds and folds, worst site, paired differences from a reference.

Runs that differ only in seed and fold, and in data drawn for these, make one row with equal weights. Scores are those
of the exported models after the last evaluated round; a site exports its personal model if the method trains one, else
the global model. No run or round is selected by its score.
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
from medfl.metrics import LOWER_IS_BETTER_METRICS, worst
from medfl.types import Meta
from medfl.utils.formats import as_text, join_words, metric_words, p_value, plus_minus, table_lines
from medfl_report.groups import (
    Group,
    constant_predictions,
    folds_among,
    group_runs,
    pairs,
    split_ratio,
)
from medfl_report.patient_tests import (
    NO_PREDICTIONS,
    PatientTest,
    PredictionSets,
    compare_methods,
    method_test,
    sets_reader,
)
from medfl_report.scores import Baseline, baseline_of
from medfl_report.sections.cross_site import cross_site_score
from medfl_report.statistics import HEADER, LEVEL, explain, holm, mean_std, paired_tests
from medfl_report.statistics.procedures import MIN_PATIENTS, MIN_SEEDS

AT_SERVER = {
    "server_test": "Server test: the global model on the server's test set.",
    "shared_test": "Shared test: the exported model of each site on the server's test set, mean over the sites.",
    "public_test": "Public test: the global model on the public test set.",
}
"""Mapping from each column with scores on the server's or public images to an explanation of the column."""


def compare(
    runs: Sequence[RunRecord],
    metrics: Sequence[str] | None = None,
    baseline: Baseline = None,
    split: str = "test",
    labels: Sequence[str] | None = None,
    sets_of: Callable[[RunRecord], PredictionSets] | None = None,
) -> pd.DataFrame:
    """Compare groups of runs: one row for each metric and group, in the given order.

    Args:
        runs: At least one run.
        metrics: Names of the metrics; by default the first metric of the first run's task.
        baseline: Label or method of the reference group, or a mapping from each group's label to its reference; by
            default the first group.
        split: ``test`` or ``val``.
        labels: Label of the row of each run; by default runs that differ only in seed and data make a row.
        sets_of: Returns the test sets of a run; by default each run is read once.

    Returns:
        A table in which missing values are NaN. Its columns:

        - metric, split, label, method, seeds (with their folds), status, rounds (evaluated rounds).
        - sites (smallest number of sites with a score), of_sites (all sites of the run).
        - constant_predictions: sentences about models with the same prediction for every image, or ``-``.
        - mean, worst: mean over the sites and worst site, as means over the runs; with std and worst_std over the runs.
        - server_test, shared_test, public_test (see `AT_SERVER`), each with its ``_std``.
        - all_sites, all_sites_std, all_sites_spread: cross-site evaluation, mean over the models, with its standard
          deviations over the runs and over the models.
        - baseline, pairs, difference, low, high: paired difference from the reference with its 95 % interval, over
          seeds and patients, over splits, or over seeds alone (`medfl_report.statistics.procedures`).
        - effect: ``better`` or ``worse`` if p_holm <= 0.05; the same with ``(seeds only)`` without a test over
          patients; ``n.s.``; ``too few patients``; ``too few runs``; or ``-`` with fewer than two pairs and for the
          reference itself.
        - p_patients: p-value of the test over patients.
        - p_claim: p-value of the effect; NaN if there are too few patients or runs for a claim.
        - p_holm: p_claim, adjusted by Holm's procedure for all rows of the table.
        - p_t, p_corrected, p_wilcoxon: tests over folds (see `medfl_report.statistics.PairedTests`).

    Raises:
        SettingsError: If a metric, the reference or the split is unknown or has no scores, or a run is duplicated.
        StoreError: If no run has scores.
    """
    chosen = list(metrics or runs[0].task_metrics[:1])
    _check_scores(runs, chosen, split)
    groups = group_runs(runs, labels)
    bases = [_baseline(groups, baseline_of(group.label, baseline)) for group in groups]
    both, sets_of = list(zip(groups, bases, strict=True)), sets_of or sets_reader()
    rows = [comparison_row(group, base, metric, split, sets_of) for metric in chosen for group, base in both]
    return _correct_family(pd.DataFrame(rows))


def _check_scores(runs: Sequence[RunRecord], metrics: Sequence[str], split: str) -> None:
    """Raise if no run has scores, or none has the split or a metric."""
    metrics_of: dict[str, set[str]] = {}
    for run in runs:
        for splits in run.scores.values():
            for name, scores in splits.items():
                metrics_of.setdefault(name, set()).update(scores)
    if not metrics_of:
        raise StoreError(
            "no_score",
            "None of these runs has scores: a run has scores when it is over. "
            "`medfl status RUN...` shows the progress of each.",
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
    """Return the reference group with a label or method; by default the first group."""
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
            f"The baseline '{name}' matches several rows. Name one of: "
            f"{', '.join(repr(group.label) for group in matching)}.",
            name=name,
            labels=[group.label for group in matching],
        )
    return matching[0]


def comparison_row(
    group: Group, base: Group, metric: str, split: str, sets_of: Callable[[RunRecord], PredictionSets]
) -> Meta:
    """Return one row of the table of `compare` as a mapping from column name to value.

    Args:
        group: Runs of the row.
        base: Runs of the reference, or `group` itself.
        metric: Name of the metric.
        split: ``test`` or ``val``.
        sets_of: Returns the test sets of a run.
    """
    scores = [_scores(run, metric, split) for run in group.runs]
    scored = [values for values in scores if values]
    crossed = [cross_site_score(run, metric) for run in group.runs] if split == "test" else []
    held = {
        "server_test": [run.server_score(metric, split=split) for run in group.runs],
        "shared_test": [run.shared(metric) if split == "test" else None for run in group.runs],
        "public_test": [run.server_score(metric, "public_test", split) for run in group.runs],
    }
    columns = {
        ("mean", "std"): run_means(group, metric, split),
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
    return row | _difference_columns(group, base, metric, split, sets_of)


def _difference_columns(
    group: Group, base: Group, metric: str, split: str, sets_of: Callable[[RunRecord], PredictionSets]
) -> Meta:
    """Return the columns of the difference from the reference, paired by seed and fold on the same data."""
    both = [] if group is base else pairs(group, base)
    differences = _differences(both, metric, split)
    runs = [run for run, _ in both]
    over_patients = method_test(both, metric, sets_of) if split == "test" else PatientTest(reason=NO_PREDICTIONS)
    test = compare_methods(differences, split_ratio(runs), over_patients)
    tests = paired_tests(differences, folds_among(runs))
    interval, words = test.over_runs.interval, _direction_words(metric)
    return {
        "baseline": base.label,
        "pairs": len(differences),
        "difference": mean_std(differences)[0] if differences else math.nan,
        "low": interval.low if interval else math.nan,
        "high": interval.high if interval else math.nan,
        "effect": test.effect(words, test.p),
        "p_patients": math.nan if over_patients.p is None else over_patients.p,
        "p_claim": test.p,
        "p_holm": test.p,
        "p_t": tests.t,
        "p_corrected": tests.corrected,
        "p_wilcoxon": tests.wilcoxon,
    }


def _direction_words(metric: str) -> tuple[str, str]:
    """Return the words for a positive and for a negative difference."""
    return ("worse", "better") if metric in LOWER_IS_BETTER_METRICS else ("better", "worse")


def _correct_family(table: pd.DataFrame) -> pd.DataFrame:
    """Adjust the p-values of all rows of a page by Holm's procedure, and withdraw the claims that do not remain."""
    adjusted = holm(table["p_claim"].tolist())
    effects = [
        "n.s." if p > LEVEL and effect.split()[0] in ("better", "worse") else effect
        for p, effect in zip(adjusted, table["effect"], strict=True)
    ]
    return table.assign(p_holm=adjusted, effect=effects)


def _differences(matched: Sequence[tuple[RunRecord, RunRecord]], metric: str, split: str) -> list[float]:
    """Return the difference of each pair of runs: mean over the sites for which both runs have a score."""
    differences = []
    for pair in matched:
        ours, theirs = (_scores(run, metric, split) for run in pair)
        both = sorted(ours.keys() & theirs.keys())
        differences += [math.fsum(ours[site] - theirs[site] for site in both) / len(both)] if both else []
    return differences


def run_means(group: Group, metric: str, split: str = "test") -> list[float]:
    """Return for each run that has scores the mean over the sites with a score."""
    scores = [_scores(run, metric, split) for run in group.runs]
    return [math.fsum(values.values()) / len(values) for values in scores if values]


def _scores(run: RunRecord, metric: str, split: str) -> dict[str, float]:
    """Return the score of each site's exported model, without the sites at which it is not defined."""
    scores = {site: run.score(site, metric, split) for site in run.sites}
    return {site: value for site, value in scores.items() if value is not None}


def _joined(numbers: Iterable[int]) -> str:
    return ", ".join(str(number) for number in sorted(numbers))


# ---- Markdown


def to_markdown(table: pd.DataFrame, names: Sequence[str] = ()) -> str:
    """Return the tables of all metrics in Markdown, with explanations below; the text ends with a line break.

    Args:
        table: Table of `compare`.
        names: Name of each network output (`medfl.engine.runs.records.common_output_names`), for metrics of a single
            output.
    """
    metrics = [_metric_table(str(name), rows, names) for name, rows in table.groupby("metric", sort=False)]
    return "\n".join([*metrics, *(f"- {note}" for note in notes(table))]) + "\n"


def notes(table: pd.DataFrame) -> list[str]:
    """Return sentences that explain the numbers of a table.

    Args:
        table: Table of `compare`.
    """
    split, bases = table["split"].iloc[0], table["baseline"].unique()
    folds = bool(table["seeds"].str.contains("fold").any())
    rounds = ", ".join(sorted({last for rows in table["rounds"] for last in rows.split(", ") if last}, key=int))
    sentences = [
        f"Split: {split}. Scores after each run's last evaluated round (round {rounds}), not after its best one.",
        "Mean of sites: mean score of the sites' exported models, every site with the same weight. Worst site: the "
        f"lowest score (highest error) of a site. ± is the standard deviation over the "
        f"{'runs, one for each seed and fold' if folds else 'seeds'} (ddof = 1).",
    ]
    if len(set(table["label"])) > 1:
        over, few = ("seeds and folds", "pairs") if folds else ("seeds", "seeds")
        base = bases[0] if len(bases) == 1 else "the reference named in the row"
        sentences.append(
            f"Difference: from {base}, paired over the {over} that both have on the same data, with its 95 % "
            f"confidence interval. {_describe_intervals(folds)} '-': no interval, because there are fewer than two "
            f"such {few} or the difference is the same in all of them."
        )
        sentences.append(
            "Effect: better or worse if the p-value of the interval and p (patients) are both at most 0.05 after "
            f"Holm's correction for the {int(table['p_claim'].notna().sum())} comparisons of this table, all metrics "
            "together. p (patients): test of the models on other patients, for the mean of sites and seeds; an "
            "exchange test, or a BCa bootstrap with many patients. 'n.s.': not significant. 'too few patients', "
            f"'too few runs': fewer than {MIN_PATIENTS} patients or {MIN_SEEDS} runs allow no claim. '(seeds only)': "
            "there are no predictions to test; other patients may give another result."
        )
    sentences += [AT_SERVER[name] for name in _at_server(table)]
    if table["p_wilcoxon"].notna().any():
        sentences.append(explain(int(table["pairs"].max())))
    if table["all_sites"].notna().any():
        sentences.append(
            "All sites' test sets (cross-site evaluation): every site's model on every site's test images, mean over "
            "the sites for each model, then over the models. ± is the standard deviation over the runs. 'Over models': "
            "standard deviation over the models of a run, as a mean over the runs."
        )
    if (table["sites"] < table["of_sites"]).any():
        sentences.append("Sites where a metric is not defined, such as auc with one class only, are left out.")
    cells = table.drop_duplicates("label").set_index("label")["constant_predictions"]
    labels: dict[str, list[str]] = {}
    for label, text in cells[cells != "-"].items():
        labels.setdefault(text, []).append(str(label))
    sentences += [f"{join_words(same)}, {text}" for text, same in labels.items()]
    if table["status"].str.contains("diverged|incomplete|running").any():
        sentences.append(
            "Runs that did not finish are included with the scores of their last evaluated round; a run without "
            "scores counts in no mean."
        )
    return sentences


def _describe_intervals(folds: bool) -> str:
    """Return a sentence about the kind of the intervals of differences."""
    if folds:
        return "The interval is Student's t over the folds, corrected for their overlap."
    return (
        "The interval is over seeds and test patients if the seeds have the same test patients, Student's t corrected "
        "for the overlap if each seed has its own split, and Student's t over the seeds without predictions."
    )


def _metric_table(name: str, rows: pd.DataFrame, names: Sequence[str]) -> str:
    """Return the heading and the table of one metric in Markdown."""
    held, crossed, bases = _at_server(rows), bool(rows["all_sites"].notna().any()), rows["baseline"].unique()
    several, tested = len(rows) > 1, bool(rows["p_wilcoxon"].notna().any())
    header = ["method", "seeds", "status", "sites", "mean of sites", "worst site"]
    header += [name.replace("_", " ") for name in held]
    header += ["all sites' test sets", "over models"] if crossed else []
    header += ["compared with"] if len(bases) > 1 else []
    header += (
        [f"difference from {bases[0]}" if len(bases) == 1 else "difference", "p (patients)", "effect"]
        if several
        else []
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
        cells += [_difference(row), p_value(row["p_patients"]), row["effect"]] if several else []
        cells += [p_value(row[name]) for name in ("p_t", "p_corrected", "p_wilcoxon")] if tested else []
        lines.append(cells)
    better = "lower" if name in LOWER_IS_BETTER_METRICS else "larger"
    words, plain = (metric_words(name, outputs) for outputs in (names, ()))
    called = "" if words == plain else f", {as_text(words)}"
    return f"### {name}{called} ({better} is better)\n\n{table_lines(lines)}\n"


def _at_server(rows: pd.DataFrame) -> list[str]:
    """Return the columns on the server's images with values; the shared test only if it differs from the global one."""
    names = [name for name in AT_SERVER if rows[name].notna().any()]
    differs = (rows["shared_test"].notna() & (rows["shared_test"] != rows["server_test"])).any()
    return [name for name in names if name != "shared_test" or differs]


def _difference(row: dict[Any, Any]) -> str:
    """Return the difference and its interval as text."""
    if math.isnan(row["difference"]):
        return "-"
    interval = "" if math.isnan(row["low"]) else f" [{row['low']:+.3f}, {row['high']:+.3f}]"
    return f"{row['difference']:+.3f}{interval}"
