"""Scoring models. Only scores leave a site, and every score says its moment, split and model."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import nn

from medfl.contract import Method, Model
from medfl.metrics import LOWER_IS_BETTER, UNBOUNDED
from medfl.settings import Settings
from medfl.task import Task
from medfl.training.predict import predict
from medfl.types import Dataset, Judged


class Row(NamedTuple):
    """One line of ``metrics.csv``.

    Attributes:
        round: From 1.
        site: Whose data (or, for costs, whose work); ``global`` is the test set that the server holds.
        model: ``global``, ``personal``, ``ensemble`` (several models of a method), or ``personal@SITE`` in the final
            global test.
        split: ``train``, ``val`` or ``test``; costs stand under ``train``. ``shared``: the site's personal model on the
            test set that all sites share.
        moment: ``aggregated`` (after the round), ``trained`` (right after a site's training in it), or ``epoch N`` of a
            model that the server trains in it.
        metric: Its name.
        value: Its value; nan where it is undefined.
    """

    round: int
    site: str
    model: str
    split: str
    moment: str
    metric: str
    value: float


def csv_lines(rows: list[Row], header: bool = False) -> str:
    """Rows as CSV text."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if header:
        writer.writerow(Row._fields)
    writer.writerows(rows)
    return text.getvalue()


def predictor_of(method: Method, task: Task, model: Model) -> nn.Module:
    """What a model predicts with, in a run with this task."""
    return method.predictor(method.task_of(task), [model])


def score(model: nn.Module, data: Dataset, task: Task, settings: Settings) -> dict[str, float]:
    """The task's metrics of a model on a data set, and those of its bundle itself; empty for an empty one."""
    if not len(data):
        return {}
    rows, targets = predict(model, data, task.objective, task.metrics, settings, task.device, task.inferer)
    scores = {name: task.objective.score(name, rows, targets) for name in task.metrics}
    return scores | (data.judge(model, task.device) if isinstance(data, Judged) else {})


@dataclass(frozen=True)
class Best:
    """The evaluated round with the best validation score so far.

    Attributes:
        round: From 1; 0 where no round has a score.
        step: Its last step.
        score: Mean over the sites of the model that each would take home, on its validation images.
        since: Evaluations after it.
    """

    round: int = 0
    step: int = 0
    score: float = 0.0
    since: int = 0

    def after(self, round_: int, step: int, rows: Iterable[Row], metric: str) -> Best:
        """The best with a further round; only a better score than that of all before it replaces one.

        Args:
            round_: The round.
            step: Its last step.
            rows: Its scores.
            metric: What is compared; a value outside [0, 1] counts if the metric has such.
                A site where it is not defined is left out of the mean.
        """
        scores_by_site: dict[str, dict[str, float]] = {}
        for row in rows:
            if (row.split, row.moment, row.metric) == ("val", "aggregated", metric):
                scores_by_site.setdefault(row.site, {})[row.model] = row.value
        values = [models.get("personal", models.get("global", math.nan)) for models in scores_by_site.values()]
        values = [value for value in values if 0 <= value <= 1 or (metric in UNBOUNDED and math.isfinite(value))]
        score = math.fsum(values) / len(values) if values else math.nan
        better = score < self.score if metric in LOWER_IS_BETTER else score > self.score
        if better or (values and not self.round):
            return Best(round_, step, score)
        return replace(self, since=self.since + 1)


def rows_of(scores: dict[str, float], round_: int, site: str, model: str, split: str, moment: str) -> list[Row]:
    """Scores as rows."""
    return [Row(round_, site, model, split, moment, name, value) for name, value in scores.items()]


def watcher(
    method: Method, tests: Mapping[str, Dataset], task: Task, settings: Settings, round_: int, rows: list[Row]
) -> Callable[[Model, int], None] | None:
    """What scores a model that the server trains after each of its epochs (`Server.watch`); None if nobody asks.

    Args:
        method: Makes the predictor.
        tests: The server's test sets by their names.
        task: The learning problem.
        settings: The run's; its moments ask for ``epochs`` or don't.
        round_: The round.
        rows: Takes the scores.
    """
    if "epochs" not in settings.moments:
        return None

    def watch(model: Model, epoch: int) -> None:
        predictor = predictor_of(method, task, model)
        for name, data in tests.items():
            scores = score(predictor, data, task, settings)
            rows.extend(rows_of(scores, round_, name, "global", "test", f"epoch {epoch}"))

    return watch
