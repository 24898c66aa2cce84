"""Tables of the results pages. A template calls them by name; each returns a table in Markdown.

Each row of a study is a method with settings.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from medfl.errors import StoreError
from medfl.metrics import LOWER_IS_BETTER_METRICS
from medfl.privacy import gaussian
from medfl.privacy.concentrated import calibrate_sum
from medfl.settings import Privacy
from medfl.utils.formats import metric_words
from medfl_report.data_set_ranks import DataSetComparison, DataSetScores, compare_data_sets
from medfl_studies.results.page_formats import cell, mean_cell, p_cell, spread_cell, table
from medfl_studies.results.page_statistics import DataScores


def scores_table(scores: DataScores, metrics: Sequence[str]) -> str:
    """Return a table of a study's scores with intervals over patients, spread over seeds, and bytes.

    Args:
        scores: Scores on a data set on which all seeds have the same test images.
        metrics: Names of the metrics; the spread over the seeds is the first metric's.
    """
    words = [metric_words(metric) for metric in metrics]
    head = ["row", "seeds", words[0], "± over seeds", *words[1:], "bytes a round and site"]
    lines = []
    for row in scores.rows:
        estimates = [scores.score(row, metric=metric) for metric in metrics]
        first, *others = map(cell, estimates)
        lines.append(
            [
                row,
                str(len(scores.seeds(row))),
                first,
                spread_cell(estimates[0]),
                *others,
                f"{scores.bytes_up(row):,.0f}",
            ]
        )
    return table(head, lines)


def sites_table(scores: DataScores) -> str:
    """Return a table of the score at each site, with intervals over patients.

    Args:
        scores: Scores on a data set on which all seeds have the same test images.
    """
    head = [metric_words(scores.metric), *(f"{site} ({scores.images(site)})" for site in scores.sites)]
    return table(head, [[row, *(cell(scores.score(row, site)) for site in scores.sites)] for row in scores.rows])


def differences_table(scores: DataScores, pairs: Sequence[tuple[str, str]], metrics: Sequence[str]) -> str:
    """Return a table of differences between rows, with intervals over seeds and patients.

    All differences of the table are one family, which Holm's procedure corrects.

    Args:
        scores: Scores on a data set on which all seeds have the same test images.
        pairs: Pairs of rows; the second one is subtracted. A pair with a row without runs is left out.
        metrics: Names of the metrics.
    """
    values = scores.differences(pairs, metrics)
    lines = []
    for row, other in pairs:
        if row in scores.rows and other in scores.rows:
            estimates = [values[row, other, metric] for metric in metrics]
            cells = [text for value in estimates for text in (cell(value, "+"), p_cell(value))]
            lines.append([f"{row} − {other}", str(len(scores.seeds(row, other))), *cells])
    heads = [text for metric in metrics for text in (metric_words(metric), "p (Holm)")]
    return table(["difference", "seeds", *heads], lines)


def methods_table(scores: DataScores, base: str | None, metrics: Sequence[str] = (), server_test: bool = False) -> str:
    """Return a table that compares each row with another one.

    All differences of the table are one family, which Holm's procedure corrects.

    Args:
        scores: Scores on a data set, with the metric of the comparison.
        base: Name of the row that the others are compared with; None means the baseline of each row in the study.
        metrics: Further metrics, as means over sites and seeds.
        server_test: Whether there is a column with the score of the global model on the server's test set.
    """
    main, difference = scores.metric, "difference to" if base is None else f"difference to {base}"
    head = ["method", "sites weigh by", f"{main}, mean of sites", "worst site", difference, "p (Holm)", "effect"]
    head += [*metrics, *([f"{main}, server's test"] if server_test else [])]
    lines = []
    for row in scores.rows:
        compared, reference = scores.compare_all(base)[row], f"{scores.baseline(row)}: " if base is None else ""
        lines.append(
            [
                row,
                scores.weighting(row),
                mean_cell(scores.mean(row)),
                cell(scores.worst(row)),
                "" if compared is None else reference + cell(compared, "+"),
                "" if compared is None else p_cell(compared),
                "" if compared is None else compared.effect,
                *(cell(scores.mean(row, metric)) for metric in metrics),
                *([cell(scores.server_test(row))] if server_test else []),
            ]
        )
    return table(head, lines)


def compare_ranks_over(parts: Sequence[DataScores], reference: str, rope: float) -> DataSetComparison:
    """Rank the rows that all of several studies have, one study for each data set; see `medfl rank`.

    Args:
        parts: Scores of each study in its own metric.
        reference: Row that the others are compared with.
        rope: Largest difference that is practically none, >= 0.
    """
    data = []
    for scores in parts:
        sign = -1 if scores.metric in LOWER_IS_BETTER_METRICS else 1
        lines = [
            (row, run, scores.data, sign * value)
            for row in scores.rows
            for run, value in enumerate(scores.by_seed(row))
        ]
        table = pd.DataFrame(lines, columns=["row", "seed", "site", "value"])
        data.append(DataSetScores(scores.results.raw.study, scores.metric, table))
    return compare_data_sets(data, reference, rope)


def mean_noise(epsilon: float, sites: int, releases: int, threshold: int | None = None) -> float:
    """Return the standard deviation of the noise in the mean of the sites' updates, in units of the clip.

    The guarantee protects a whole site, with adjacency `replace` and the default delta.

    Args:
        epsilon: Budget of all releases together.
        sites: Number of sites.
        releases: Number of rounds.
        threshold: Number of shares that suffice for the guarantee, if the sites add shares of the noise in their sum;
            None if each site adds the whole noise to its own update.
    """
    privacy = Privacy(epsilon=epsilon, clip=1.0, adjacency="replace")
    if threshold is None:
        return gaussian.noise_multiplier(privacy, releases) / math.sqrt(sites)
    return calibrate_sum(privacy, releases) * math.sqrt(sites / threshold) / sites


def figures_table(figures: Mapping[str, float], head: Sequence[str], prefix: str = "") -> str:
    """Return measured numbers as a table.

    Args:
        figures: Maps each figure's name to its number.
        head: The two headings.
        prefix: Beginning of the names of the figures to show.
    """
    return table(head, [[name, cell(value)] for name, value in figures.items() if name.startswith(prefix)])


def read_figures(path: Path) -> dict[str, float]:
    """Return the numbers of a JSON file that maps the name of each measured figure to its number.

    Raises:
        StoreError: If the file can't be read.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): float(value) for name, value in values.items()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise StoreError(
            "unreadable_file", f"'{path}' can't be read: {error}. Write the file again.", path=path
        ) from None
