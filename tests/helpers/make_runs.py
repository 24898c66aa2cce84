"""Small run folders with the files of a real run, made without training anything."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from run_records import run_file, summary_of, task_of

from medfl.contract import Findings, State
from medfl.engine.evaluation import MetricRow, rows_to_csv
from medfl.engine.journal import Commit, Journal
from medfl.engine.runs.findings import write_findings
from medfl.engine.runs.progress import ProgressFile, committed_step
from medfl.engine.runs.records import PREDICTIONS
from medfl.engine.status import FINISHED, RUNNING
from medfl.metrics import METRICS, worst
from medfl.records.partition import TestFold
from medfl.records.progress import RunEnd, RunStart
from medfl.records.run_file import AssignedNetwork, DataOrigin, Provenance, RunFile, SettingOrigin
from medfl.records.summary import ImageCounts, MetricScores, SiteCosts, Summary
from medfl.utils.locks import LOCK_FILE

CLASSES = ("basophil", "eosinophil", "lymphocyte")
SITES = ("site-1", "site-2", "site-3")

Scores = Mapping[str, Mapping[str, float | None]]
"""Metric to site to value."""


def make_run(folder: Path, method: str = "fedavg", seed: int = 0, **options: Any) -> Path:
    """Write a run folder.

    Args:
        folder: Where.
        method: Name of the method.
        seed: The run's seed.
        **options: Other attributes of `MadeUpRun`.

    Returns:
        The folder.
    """
    MadeUpRun(method, seed, **options).write(folder)
    return folder


@dataclass
class MadeUpRun:
    """A run that never was.

    Attributes:
        method: Name of the method.
        seed: The run's seed.
        sites: Names of the sites.
        classes: Names of the classes.
        images: Test images of each site; the labels depend on `data` and the site only.
        skill: How much the logit of the right class is raised; 0 guesses.
        model: The kind that a site exports, ``global`` or ``personal``.
        metrics: Metrics of the task.
        scores: Final values by metric and site, instead of the predictions' scores.
        server_test: Metric to the final value on the server's test set.
        server: Accuracy on the server's test set after each round.
        trained: For each round, the sites that train in it, with their accuracy right after that or None for no score;
            empty if all do, without one.
        crossed: Metric to the owner of a model to the site whose test images it sees to the final value.
        sex: Of the persons of each site's test images, over and over; empty for data that do not tell it.
        centre: Where each site's test images were taken, likewise.
        data_folder: Where the data lie, seen from the run folder; empty for a run that does not say it.
        regions: Whether the task used an atlas.
        evaluate_every: The scores after the other rounds are left out.
        splits: Splits with scores, with the same values in each.
        method_args: The method's settings.
        settings: Other settings of the identity, for example ``{"epochs": 2}``.
        data: Identifies the data.
        data_name: Of the data set; empty for a run that does not know it.
        fold: The fold that is the sites' test sets, or None.
        folds: With a fold: how many there are.
        rounds: Rounds asked for.
        done: Rounds that are over; by default all.
        status: As in the summary; ``running`` writes no summary and no bundles.
        unscored: Last rounds that were not scored any more.
        reason: Why the run ended early.
        leaks: Sentences about allowed violations.
        bundles: Whether there are site bundles and predictions.
        state: Whether there is a state folder, with a journal.
        assigned: Maps each site to the network that a network assignment gave it, and the facts of that.
        findings: What the method found out.
        accounts: Site to the facts of its privacy account.
        plain: Bytes that a site would send up in a round without quantisation; None for a run that does not note it.
    """

    method: str = "fedavg"
    seed: int = 0
    sites: Sequence[str] = SITES
    classes: Sequence[str] = CLASSES
    images: int = 40
    skill: float = 1.0
    model: str = "global"
    metrics: Sequence[str] = ("accuracy", "auc")
    scores: Scores | None = None
    server_test: Mapping[str, float] = field(default_factory=dict)
    server: Sequence[float] = ()
    trained: Sequence[Mapping[str, float | None]] = ()
    crossed: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    sex: Sequence[str] = ()
    centre: Sequence[str] = ()
    data_folder: str = ""
    regions: bool = False
    evaluate_every: int = 1
    splits: Sequence[str] = ("test",)
    method_args: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    data: str = "data"
    data_name: str = ""
    fold: int | None = None
    folds: int = 5
    rounds: int = 3
    done: int | None = None
    status: str = FINISHED
    unscored: int = 0
    reason: str = ""
    leaks: Sequence[str] = ()
    bundles: bool = True
    state: bool = True
    assigned: Mapping[str, AssignedNetwork] = field(default_factory=dict)
    findings: Findings = field(default_factory=Findings)
    accounts: Mapping[str, Any] = field(default_factory=dict)
    plain: float | None = None

    def write(self, folder: Path) -> None:
        """Write all files."""
        folder.mkdir(parents=True)
        (folder / LOCK_FILE).touch()
        self.run().write(folder / RunFile.NAME)
        write_findings(folder, self.findings)
        if self.state:
            self._journal(folder)
        (folder / "metrics.csv").write_text(rows_to_csv(self.rows(), header=True))
        self._events(folder)
        if self.status == RUNNING:
            return
        self.summary().write(folder / Summary.NAME)
        if self.bundles:
            for site, (probabilities, labels) in self.predictions.items():
                _bundle(folder / "sites" / site)
                facts = {"sex": self.sex, "centre": self.centre}
                _predictions(folder / "sites" / site / PREDICTIONS, probabilities, labels, facts)
            if self.model == "global":
                _bundle(folder / "global")

    @cached_property
    def over(self) -> int:
        """Rounds that are over."""
        return self.rounds if self.done is None else self.done

    @cached_property
    def predictions(self) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Site to probabilities (images, classes) and labels of its test set."""
        by_site = {}
        for site in self.sites:
            labels = _generator(self.data, site).integers(len(self.classes), size=self.images)
            noise = _generator(self.data, site, self.method, self.seed)
            logits = noise.normal(size=(self.images, len(self.classes)))
            logits[np.arange(self.images), labels] += self.skill
            by_site[site] = torch.from_numpy(logits).softmax(dim=1), torch.from_numpy(labels)
        return by_site

    @cached_property
    def final(self) -> Scores:
        """Scores after the last round."""
        classes, predictions = len(self.classes), self.predictions.items()
        return self.scores or {
            name: {site: METRICS[name](*pair, classes) for site, pair in predictions} for name in self.metrics
        }

    def run(self) -> RunFile:
        """Return the content of ``run.json``."""
        settings = {"seed": self.seed, "epochs": 1, "batch_size": 32, "fraction": 1.0} | dict(self.settings)
        optimizer = {"lr": 0.05, "momentum": 0.9}
        shown = {"rounds": self.rounds} | settings | {f"optimizer.{name}": value for name, value in optimizer.items()}
        shown |= {f"method_args.{name}": value for name, value in self.method_args.items()}
        provenance = Provenance(
            settings={name: SettingOrigin(value=value, origin="command line") for name, value in shown.items()},
            data=DataOrigin(
                name=self.data_name,
                sites={site: f"{n:064x}" for n, site in enumerate(self.sites)},
                folder=self.data_folder or None,
                fold=None if self.fold is None else TestFold(fold=self.fold, folds=self.folds),
            ),
            plugins={"medfl_builtin": "medfl", "medfl_methods": "medfl"},
            assigned_networks=dict(self.assigned),
        )
        task = task_of(self.metrics, len(self.classes), regions="0123456789abcdef" if self.regions else None)
        every = settings | {"rounds": self.rounds}
        return run_file(self.method, self.sites, every, self.method_args, task, self.data, provenance)

    def rows(self) -> list[MetricRow]:
        """Scores as they are given or that grow evenly to the final ones, and the costs of each round."""
        rows = []
        for round_ in range(1, self.over + 1):
            trained = self.trained[round_ - 1] if self.trained else dict.fromkeys(self.sites)
            for index, (site, score) in enumerate(trained.items()):
                costs = {"loss": 1.0 / round_, "seconds": 1.5, "work_seconds": 2.0 + index}
                costs |= {"bytes_down": 4000.0, "bytes_up": 4000.0, "bytes_to_peers": 0.0}
                costs |= {} if self.plain is None else {"bytes_up_plain": self.plain}
                rows += [
                    MetricRow(round_, site, "personal", "train", "trained", name, cost) for name, cost in costs.items()
                ]
                if score is not None:
                    rows.append(MetricRow(round_, site, "personal", "test", "trained", "accuracy", score))
            if round_ % self.evaluate_every:
                continue
            for site in self.sites:
                rows.append(MetricRow(round_, site, "personal", "train", "aggregated", "evaluate_seconds", 1.0))
            share = round_ / self.over
            for metric, values in self.final.items():
                for split in self.splits:
                    for site, value in values.items():
                        now = float("nan") if value is None else value * share
                        rows.append(MetricRow(round_, site, self.model, split, "aggregated", metric, now))
            for metric, value in self.server_test.items():
                rows.append(MetricRow(round_, "global", "global", "test", "aggregated", metric, value * share))
            if self.server:
                rows.append(
                    MetricRow(round_, "global", "global", "test", "aggregated", "accuracy", self.server[round_ - 1])
                )
        return [*rows, *self._crossed_rows()]

    def _crossed_rows(self) -> list[MetricRow]:
        return [
            MetricRow(self.over, site, f"{self.model}@{owner}", "test", "aggregated", metric, value)
            for metric, table in self.crossed.items()
            for owner, values in table.items()
            for site, value in values.items()
        ]

    def summary(self) -> Summary:
        """Return the content of ``summary.json``."""
        scores: dict[str, Any] = {self.model: {split: self._summed_up() for split in self.splits}}
        for metric, value in self.server_test.items():
            test = scores.setdefault("global", {}).setdefault("test", {})
            known = test.get(metric, MetricScores(mean=None, worst=None, sites={}))
            test[metric] = known.model_copy(update={"server_test": value})
        sent = {"bytes_up": 4000.0 * self.over, "bytes_down": 4000.0 * self.over, "bytes_to_peers": 0.0}
        spent = [
            SiteCosts(**sent, train_seconds=(2.0 + n) * self.over, evaluate_seconds=1.0 * self.over)
            for n in range(len(self.sites))
        ]
        return summary_of(
            self.run(),
            scores if self.over else {},
            self.status,
            reason=self.reason,
            rounds=self.over,
            evaluated_round=self.over - self.unscored or None,
            models_round=self.over,
            costs=dict(zip(self.sites, spent, strict=True)),
            holdings=self._holdings(),
            leaks=tuple(self.leaks),
            privacy=dict(self.accounts),
        )

    def _summed_up(self) -> dict[str, MetricScores]:
        summary = {}
        for metric, values in self.final.items():
            sites = {site: None if value is None or value != value else value for site, value in values.items()}
            known = [value for value in sites.values() if value is not None]
            mean, least = (sum(known) / len(known), worst(metric, known)) if known else (None, None)
            summary[metric] = MetricScores(mean=mean, worst=least, sites=sites)
        return summary

    def _holdings(self) -> ImageCounts:
        sites = {}
        for site, (_, labels) in self.predictions.items():
            counts = torch.bincount(labels, minlength=len(self.classes)).tolist()
            sites[site] = {"training": [4 * n for n in counts], "validation": [0] * len(counts), "test": counts}
        return ImageCounts.model_validate({"classes": self.classes, "sites": sites})

    def _events(self, folder: Path) -> None:
        """Write the events, six seconds a round; the scores of a round come with the step after it."""
        clock = iter(6.0 * number for number in range(self.over + 3))
        progress = ProgressFile(folder, clock=lambda: next(clock))
        progress.note(
            RunStart(
                method=self.method,
                seed=self.seed,
                rounds=self.rounds,
                sites=tuple(sorted(self.sites)),
                metric=self.metrics[0],
            )
        )
        for step in range(1, self.over + 2):
            rows = [row for row in self.rows() if row.round == step - (row.moment == "aggregated")]
            facts = Commit(step, round=min(step, self.over), rounds_done=min(step, self.over), rows=rows)
            progress.note(committed_step(facts, self.metrics[0]))
        if self.status != RUNNING:
            progress.note(RunEnd(status=self.status, reason=self.reason, rounds=self.over))
        progress.close()

    def _journal(self, folder: Path) -> None:
        journal = Journal(folder)
        journal.begin(State(), Commit())
        if self.over:
            status = RUNNING if self.status == FINISHED else self.status
            tensors = {"model/weight": torch.arange(1000.0)}
            journal.commit(State(tensors), Commit(self.over, status, self.over, self.over, self.over))


def _generator(*key: object) -> np.random.Generator:
    return np.random.default_rng(list(repr(key).encode()))


def _bundle(folder: Path) -> None:
    for name in ("configs/metadata.json", "configs/inference.json"):
        _write(folder / name, {})
    (folder / "models").mkdir()
    torch.save({"weight": torch.zeros(3)}, folder / "models" / "model.pt")


def _predictions(
    path: Path, probabilities: torch.Tensor, labels: torch.Tensor, facts: dict[str, Sequence[str]]
) -> None:
    known = {name: entries for name, entries in facts.items() if entries}
    lines = [",".join(["row", "label", *(f"p{index}" for index in range(probabilities.shape[1])), *known])]
    for row, (label, values) in enumerate(zip(labels.tolist(), probabilities.tolist(), strict=True)):
        cells = [entries[row % len(entries)] for entries in known.values()]
        lines.append(",".join([str(row), str(label), *(repr(value) for value in values), *cells]))
    path.write_text("\n".join(lines) + "\n")


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2))
