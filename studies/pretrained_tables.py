"""Write the tables of docs/results/pretrained.md, and its CSV files, from the run folders of pretrained_breast.yaml.

    medfl study studies/pretrained_breast.yaml --source FOLDER
    python studies/pretrained_tables.py runs/pretrained_breast \
        --rates runs/pretrained_breast_rates-tune --cpu cpu.json

A score of a row is the mean over its seeds, then over the sites with at least 20 test images. Its interval is a
bootstrap over the patients of each site: all seeds have the same test images, so a resample draws the same patients for
all of them. Rows without a finished run are left out, and each row states its seeds.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean, stdev

import torch
import yaml

from medfl.engine.runs.records import RunRecord, read_run
from medfl_report.groups import Group
from medfl_report.predictions import PredictionSet, read_prediction_sets
from medfl_report.site_comparison import mean_interval
from medfl_report.statistics import Interval, bootstrap
from medfl_studies.schema import slug
from medfl_studies.study_tables import final_scores

STUDY = Path(__file__).with_name("pretrained_breast.yaml")
PAGE = Path(__file__).parents[1] / "docs" / "results" / "pretrained.md"

MIN_IMAGES = 20
"""Minimum number of test images of a site that counts in the mean of the sites."""

METRICS = ("auc", "balanced_accuracy", "accuracy")

PAIRS = (
    ("fedavg frozen", "local frozen"),
    ("fedavg lora", "local lora"),
    ("fedavg full", "local full"),
    ("fedavg from scratch", "local from scratch"),
    ("fedavg small from scratch", "local small from scratch"),
    ("fedavg frozen", "fedavg from scratch"),
    ("fedavg frozen", "fedavg small from scratch"),
    ("fedavg lora", "fedavg frozen"),
    ("fedavg full", "fedavg frozen"),
    ("fedavg frozen, site epsilon 8", "fedavg frozen"),
    ("fedavg frozen, site epsilon 2", "fedavg frozen"),
    ("fedavg frozen, image epsilon 8", "fedavg frozen"),
    ("fedavg lora, site epsilon 8", "fedavg lora"),
    ("fedavg lora, site epsilon 2", "fedavg lora"),
    ("fedavg full, site epsilon 8", "fedavg full"),
    ("fedavg full, site epsilon 2", "fedavg full"),
)
"""Pairs of rows whose difference, first minus second, is a line of the table of differences."""


@dataclass(frozen=True, eq=False)
class StudyRowRuns:
    """Finished runs of one row on one data set.

    Attributes:
        data: Name of the data set.
        name: Name of the row.
        runs: Runs by seed, at least one.
    """

    data: str
    name: str
    runs: dict[int, RunRecord]

    @cached_property
    def tested(self) -> dict[int, dict[str, PredictionSet]]:
        """Maps each seed to the test set of each site."""
        return {seed: read_prediction_sets(run) for seed, run in self.runs.items()}

    @property
    def sites(self) -> list[str]:
        """Names of the sites with test images."""
        return sorted(next(iter(self.tested.values())))

    @property
    def counted_sites(self) -> list[str]:
        """Names of the sites that count in the mean."""
        sets = next(iter(self.tested.values()))
        return [site for site in self.sites if len(sets[site].rows) >= MIN_IMAGES]

    @property
    def seed_list(self) -> str:
        """Seeds of the runs, as text."""
        return " ".join(str(seed) for seed in sorted(self.runs))

    def common_seeds(self, other: StudyRowRuns | None) -> list[int]:
        """Return the seeds that this row and another one have both; all seeds of this row without another one."""
        return [seed for seed in sorted(self.runs) if other is None or seed in other.runs]

    def interval(self, site: str, metric: str) -> Interval | None:
        """Return the mean over the seeds of a site's score, with its interval over the patients."""
        return interval_over_patients(site, metric, self, None)

    def mean(self, metric: str) -> Interval:
        """Return the mean of the counted sites with its interval."""
        return mean_interval(known([self.interval(site, metric) for site in self.counted_sites]))

    def spread(self, metric: str) -> float | None:
        """Return the standard deviation over the seeds of the mean of the counted sites; None for one seed."""
        means = [fmean(sets[site].score(metric) for site in self.counted_sites) for sets in self.tested.values()]
        return stdev(means) if len(means) > 1 else None

    @property
    def bytes_up(self) -> float:
        """Largest number of bytes that a site sends to the server in a round."""
        return max(
            cost.bytes_up / run.summary.rounds
            for run in self.runs.values()
            if run.summary is not None
            for cost in run.summary.costs.values()
        )


def known(intervals: Sequence[Interval | None]) -> list[Interval]:
    """Return the intervals that are not None."""
    return [interval for interval in intervals if interval is not None]


def interval_over_patients(site: str, metric: str, row: StudyRowRuns, other: StudyRowRuns | None) -> Interval | None:
    """Return the mean score of a row at a site, minus the one of another row, with its interval over the patients.

    A difference covers the seeds that both rows have.

    Raises:
        ValueError: If the runs have different test images.
    """
    seeds = row.common_seeds(other)
    groups = [[group.tested[seed][site] for seed in seeds] for group in (row, other) if group is not None]
    first = groups[0][0]
    if not all(first.same_images(test_set) for group in groups for test_set in group):
        raise ValueError(f"The runs of '{row.name}' have different test images at {site}.")
    score, width = partial(first.objective.weighted_score, metric), first.predictions.shape[1]

    def mean_difference(predictions: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        scores = [score(part, targets, weights) for part in predictions.split(width, dim=1)]
        cut = len(groups[0])
        value = torch.stack(scores[:cut]).mean(dim=0)
        return value - torch.stack(scores[cut:]).mean(dim=0) if len(groups) > 1 else value

    stacked = torch.cat([test_set.predictions for group in groups for test_set in group], dim=1)
    return bootstrap(mean_difference, stacked, first.targets, patients=first.patients)


def difference(row: StudyRowRuns, other: StudyRowRuns, metric: str) -> Interval:
    """Return the difference of two rows in the mean of the counted sites, with its interval over the patients."""
    return mean_interval(known([interval_over_patients(site, metric, row, other) for site in row.counted_sites]))


def read_rows(folder: Path) -> list[StudyRowRuns]:
    """Return the rows of the study with finished runs, by data set, in the order of the study file."""
    study = yaml.safe_load(STUDY.read_text(encoding="utf-8"))
    rows = []
    for data, entry in study["data"].items():
        for name in study["rows"]:
            if name not in entry.get("rows", study["rows"]):
                continue
            records = {}
            for path in sorted((folder / "runs" / slug(data) / slug(name)).glob("seed-*/summary.json")):
                record = read_run(path.parent)
                if record.summary is not None and record.summary.status == "finished":
                    records[record.seed] = record
            if records:
                rows.append(StudyRowRuns(data, name, records))
    return rows


def text(interval: Interval | None, sign: str = "") -> str:
    """Format a score with its interval."""
    if interval is None:
        return "–"
    return f"{interval.difference:{sign}.3f} [{interval.low:{sign}.3f}, {interval.high:{sign}.3f}]"


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    table = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in table)


def scores_table(rows: Sequence[StudyRowRuns]) -> str:
    """Return the table of scores and bytes."""
    head = ["row", "seeds", "AUC", "± over seeds", "balanced accuracy", "accuracy", "bytes a round and site"]
    lines = []
    for row in rows:
        spread = row.spread("auc")
        scores = [text(row.mean(metric)) for metric in METRICS]
        spread_text = "–" if spread is None else f"{spread:.3f}"
        lines.append([row.name, str(len(row.runs)), scores[0], spread_text, *scores[1:], f"{row.bytes_up:,.0f}"])
    return markdown(head, lines)


def sites_table(rows: Sequence[StudyRowRuns]) -> str:
    """Return the table of the AUC at each site."""
    sets = next(iter(rows[0].tested.values()))
    head = ["AUC", *(f"{site} ({len(sets[site].rows)})" for site in rows[0].sites)]
    return markdown(head, [[row.name, *(text(row.interval(site, "auc")) for site in row.sites)] for row in rows])


def differences_table(rows: Sequence[StudyRowRuns]) -> str:
    """Return the table of the differences in AUC and balanced accuracy between pairs of rows."""
    named = {row.name: row for row in rows}
    lines = [
        [
            f"{first} − {second}",
            str(len(named[first].common_seeds(named[second]))),
            *(text(difference(named[first], named[second], metric), "+") for metric in METRICS[:2]),
        ]
        for first, second in PAIRS
        if first in named and second in named
    ]
    return markdown(["difference", "seeds", "AUC", "balanced accuracy"], lines)


def write_csv(path: Path, head: Sequence[str], lines: Sequence[Sequence[object]]) -> None:
    """Write a CSV file."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([head, *lines])


def write_files(rows: Sequence[StudyRowRuns], out: Path) -> None:
    """Write the CSV files: scores by row and site, differences, bytes, and the final scores of each run."""
    ends = ["value", "low", "high"]
    scores = [
        [row.data, row.name, row.seed_list, place, metric, found.difference, found.low, found.high]
        for row in rows
        for metric in METRICS
        for place, found in [
            ("mean of counted sites", row.mean(metric)),
            *((site, row.interval(site, metric)) for site in row.sites),
        ]
        if found is not None
    ]
    write_csv(out / "pretrained_scores.csv", ["data", "row", "seeds", "site", "metric", *ends], scores)
    named = {(row.data, row.name): row for row in rows}
    differences = []
    for data in dict.fromkeys(row.data for row in rows):
        for first, second in PAIRS:
            if (data, first) in named and (data, second) in named:
                for metric in METRICS:
                    pair = named[data, first], named[data, second]
                    gap, seeds = difference(*pair, metric), " ".join(map(str, pair[0].common_seeds(pair[1])))
                    differences.append([data, first, second, seeds, metric, gap.difference, gap.low, gap.high])
    write_csv(out / "pretrained_differences.csv", ["data", "row", "minus", "seeds", "metric", *ends], differences)
    costs = [[row.data, row.name, row.seed_list, row.bytes_up] for row in rows]
    write_csv(out / "pretrained_bytes.csv", ["data", "row", "seeds", "bytes_up_per_round"], costs)
    for data in dict.fromkeys(row.data for row in rows):
        groups = [Group(row.name, tuple(row.runs.values())) for row in rows if row.data == data]
        table = final_scores(STUDY.stem, data, groups, read_prediction_sets)
        table.to_csv(out / f"pretrained_{data}_scores.csv", index=False)


def cpu_table(path: Path) -> str:
    """Return the table of the CPU seconds of the benchmark's figures in a CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        figures = [(line["figure"], float(line["value"])) for line in csv.DictReader(file)]
    lines = [[name, f"{value:.3f}"] for name, value in figures if name.startswith("CPU seconds")]
    return markdown(["100 images of 64 x 64 pixels, one epoch", "seconds"], lines)


def update_page(page: Path, rows: Sequence[StudyRowRuns]) -> None:
    """Replace the tables of the page between its markers, such as `<!-- scores breast64 -->` and `<!-- end -->`."""
    makers = {"scores": scores_table, "sites": sites_table, "differences": differences_table}

    def replace(match: re.Match[str]) -> str:
        if match["kind"] == "cpu":
            return f"<!-- cpu figures -->\n\n{cpu_table(page.with_name('pretrained_cpu.csv'))}\n\n<!-- end -->"
        chosen = [row for row in rows if row.data == match["data"]]
        return f"<!-- {match['kind']} {match['data']} -->\n\n{makers[match['kind']](chosen)}\n\n<!-- end -->"

    pattern = rf"<!-- (?P<kind>{'|'.join([*makers, 'cpu'])}) (?P<data>\w+) -->.*?<!-- end -->"
    content = page.read_text(encoding="utf-8")
    page.write_text(re.sub(pattern, replace, content, flags=re.DOTALL), encoding="utf-8")


def main() -> None:
    """Write the CSV files and the tables of the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="output folder of the study")
    parser.add_argument("--page", type=Path, default=PAGE, help="page with the tables; the CSV files go beside it")
    parser.add_argument("--rates", type=Path, help="output folder of the search of learning rates")
    parser.add_argument("--cpu", type=Path, help="file of benchmarks/feature_cache.py --json")
    options = parser.parse_args()
    if options.rates is not None:
        shutil.copyfile(options.rates / "search.csv", options.page.parent / "pretrained_rates.csv")
    if options.cpu is not None:
        figures = json.loads(options.cpu.read_text(encoding="utf-8"))
        write_csv(options.page.parent / "pretrained_cpu.csv", ["figure", "value"], list(figures.items()))
    rows = read_rows(options.folder)
    write_files(rows, options.page.parent)
    update_page(options.page, rows)


if __name__ == "__main__":
    main()
