"""Comparison of methods over several data sets, from the final scores that studies write (``<set>-scores.csv``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from medfl.errors import SettingsError, StoreError
from medfl.metrics import LOWER_IS_BETTER_METRICS
from medfl.utils.formats import join_words, p_value, table_lines
from medfl_report.figures import INK, place_axes
from medfl_report.statistics.across_data_sets import (
    RankComparison,
    SignedRankPosterior,
    bayesian_signed_rank,
    compare_ranks,
)
from medfl_report.statistics.procedures import MIN_DATA_SETS
from medfl_report.statistics.site_effects import SiteEffects, SiteScore, site_effects

NEEDED = ("data", "row", "seed", "site", "exported", "split", "metric", "value")
"""Columns of a file of final scores that are used."""


@dataclass(frozen=True)
class DataSetScores:
    """Final test scores of one data set in one metric, of the models that the sites export.

    Attributes:
        name: Name of the data set.
        metric: Name of the metric.
        scores: Table with the columns row, seed, site and value; larger values are better, errors have another sign.
    """

    name: str
    metric: str
    scores: pd.DataFrame

    @property
    def means(self) -> pd.Series:
        """Score of each row: mean over the seeds of the mean over the sites."""
        return self.scores.groupby(["row", "seed"])["value"].mean().groupby(level="row").mean()


def read_scores(path: Path, metrics: Sequence[str]) -> DataSetScores:
    """Read a file of final scores.

    Args:
        path: File, such as ``results/blood-scores.csv`` of a study.
        metrics: Names of metrics; the first that the file has is used.

    Raises:
        StoreError: If the file can't be read or lacks a column.
        SettingsError: If the file lacks all of the metrics.
    """
    try:
        table = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise StoreError("unreadable_file", f"'{path}' can't be read: {error}", path=path) from error
    missing = [name for name in NEEDED if name not in table.columns]
    if missing:
        raise StoreError(
            "unreadable_file",
            f"'{path}' lacks the columns {join_words(missing)}. Give a file '<set>-scores.csv' of a study.",
            path=path,
        )
    tested = table[table["exported"].astype(bool) & (table["split"] == "test")]
    known = list(tested["metric"].unique())
    metric = next((name for name in metrics if name in known), None)
    if metric is None:
        raise SettingsError(
            "unknown_choice",
            f"'{path}' has none of the metrics {join_words(list(metrics))}. Known: {', '.join(known)}.",
            what="metric",
            choice=list(metrics),
        )
    chosen = tested[tested["metric"] == metric][["row", "seed", "site", "value"]]
    sign = -1 if metric in LOWER_IS_BETTER_METRICS else 1
    name = str(table["data"].iloc[0])
    return DataSetScores(name, metric, chosen.assign(value=sign * chosen["value"]))


@dataclass(frozen=True)
class DataSetComparison:
    """Comparison of the rows that all data sets have.

    Attributes:
        data: Data sets.
        reference: Row that the others are compared with.
        ranks: Mean ranks with Friedman's and Nemenyi's tests.
        posteriors: Maps each other row to its probabilities against the reference.
        effects: Maps each other row to its effect over the sites of all data sets; empty if not wanted.
        rope: Largest difference that is practically none.
    """

    data: tuple[DataSetScores, ...]
    reference: str
    ranks: RankComparison
    posteriors: dict[str, SignedRankPosterior]
    effects: dict[str, SiteEffects]
    rope: float


def compare_data_sets(
    data: Sequence[DataSetScores], reference: str, rope: float, with_sites: bool = False
) -> DataSetComparison:
    """Compare all rows that every data set has.

    Args:
        data: Data sets, at least two.
        reference: Row that the others are compared with.
        rope: Largest difference that is practically none, >= 0.
        with_sites: True to fit the mixed model over the sites of all data sets, which needs statsmodels.

    Raises:
        SettingsError: If a data set lacks the reference, or a comparison is not possible.
    """
    means = pd.DataFrame({place: data_set.means for place, data_set in enumerate(data)}).dropna()
    if reference not in means.index:
        raise SettingsError(
            "unknown_choice",
            f"No row '{reference}' in all files. Rows in all: {', '.join(map(str, means.index))}.",
            what="reference",
            choice=reference,
        )
    names = [str(row) for row in means.index]
    others = [row for row in names if row != reference]
    gaps = means - means.loc[reference]
    effects = {}
    if with_sites:
        sites = _site_scores(data)
        effects = {row: site_effects(sites, row, reference) for row in others}
    return DataSetComparison(
        data=tuple(data),
        reference=reference,
        ranks=compare_ranks(
            {str(row): list(values) for row, values in zip(means.index, means.to_numpy(), strict=True)}
        ),
        posteriors={
            row: bayesian_signed_rank([float(gap) for gap in gaps.loc[row].to_numpy()], rope) for row in others
        },
        effects=effects,
        rope=rope,
    )


def _site_scores(data: Sequence[DataSetScores]) -> list[SiteScore]:
    """Return the mean over the seeds of each row's score at each site; sites of different data sets differ."""
    scores = []
    for place, data_set in enumerate(data):
        means = data_set.scores.groupby(["site", "row"], as_index=False)["value"].mean()
        columns = zip(means["site"], means["row"], means["value"], strict=True)
        scores += [SiteScore(f"{place}/{site}", str(row), float(value)) for site, row, value in columns]
    return scores


def ranks_markdown(comparison: DataSetComparison) -> str:
    """Return the comparison as a Markdown table with explanations; the text ends with a line break."""
    ranks, has_effects = comparison.ranks, bool(comparison.effects)
    head = ["method", "mean rank", "P(better)", "P(equivalent)", "P(worse)", *(["effect over sites"] * has_effects)]
    lines = [head]
    for row, rank in ranks.ranks.items():
        posterior, effect = comparison.posteriors.get(row), comparison.effects.get(row)
        shares = ["-"] * 3
        if posterior is not None:
            shares = [f"{share:.2f}" for share in (posterior.first, posterior.equivalent, posterior.second)]
        lines.append([row, f"{rank:.2f}", *shares, *([_describe_effect(effect)] * has_effects)])
    enough = "" if ranks.can_decide else f" With fewer than {MIN_DATA_SETS} data sets no difference is claimed."
    names = join_words([f"{data_set.name} ({data_set.metric})" for data_set in comparison.data])
    notes = [
        f"Data sets: {names}. Score of a method: mean over seeds of the mean over sites. Rank 1 is the best.",
        f"Friedman's test: p = {p_value(ranks.p)}. Nemenyi's critical difference of mean ranks: "
        f"{ranks.critical_difference:.2f}.{enough}",
        f"P: posterior probabilities of the Bayesian signed-rank test against {comparison.reference}, with "
        f"differences of at most {comparison.rope:g} as equivalent.",
    ]
    if has_effects:
        notes.append(
            f"Effect over sites: difference from {comparison.reference} in a mixed model, score ~ method + (1 | site), "
            "over all sites, with its 95 % interval and without a correction for the number of rows."
        )
    return "\n".join([table_lines(lines), "", *(f"- {note}" for note in notes)]) + "\n"


def _describe_effect(effect: SiteEffects | None) -> str:
    if effect is None:
        return "-"
    return f"{effect.effect.difference:+.3f} [{effect.effect.low:+.3f}, {effect.effect.high:+.3f}]"


def critical_difference_figure(ranks: RankComparison) -> Figure:
    """Draw a critical-difference diagram: mean ranks on an axis, and a bar over methods that do not differ."""
    names, groups = list(ranks.ranks), ranks.groups()
    half, methods = math.ceil(len(names) / 2), len(names)
    left, right = 1 - 0.02 * methods, methods + 0.02 * methods
    with place_axes(1.0 + 0.16 * (half + len(groups)), 0, 0.3) as (figure, axes):
        for place, (name, rank) in enumerate(ranks.ranks.items()):
            is_left = place < half  # the outermost method has the shortest line, so that no lines cross
            depth, end = -(place + 1 if is_left else methods - place), left if is_left else right
            axes.plot([rank, rank, end], [0, depth, depth], color=INK, linewidth=0.8)
            axes.text(end, depth, f" {name} ", ha="right" if is_left else "left", va="center")
        for place, group in enumerate(groups):
            ends = [ranks.ranks[group[0]], ranks.ranks[group[-1]]]
            axes.plot(ends, [place + 1, place + 1], color=INK, linewidth=3, solid_capstyle="butt")
        top, margin = len(groups) + 1.5, 0.4 * methods
        axes.plot([1, 1 + ranks.critical_difference], [top, top], color=INK, linewidth=1, marker="|")
        axes.text(1, top + 0.3, f"critical difference {ranks.critical_difference:.2f}", va="bottom")
        axes.set(xlim=(1 - margin, methods + margin), ylim=(-half - 1, top + 2), yticks=[], xlabel="mean rank")
        axes.set_xticks([tick for tick in axes.get_xticks() if 1 <= tick <= methods])
        axes.spines["left"].set_visible(False)
    return figure
