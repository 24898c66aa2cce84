"""Scoring models. Only scores leave a site, and every score says its moment, split and model."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import nn

from medfl.contract import Method, Model
from medfl.metrics import LOWER_IS_BETTER, UNBOUNDED
from medfl.networks.frozen import held_names
from medfl.settings import Settings
from medfl.task import Task
from medfl.training.predict import predict
from medfl.types import Dataset, Judged, Meta, Tensors
from medfl.utils import wire


class Row(NamedTuple):
    """One line of ``metrics.csv``.

    Attributes:
        round: From 1.
        site: Whose data (or, for costs, whose work); ``global`` is the test set that the server holds.
        model: ``global``, ``personal``, or ``personal@SITE`` in the final global test.
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


def completed(method: Method, task: Task, models: Mapping[str, Model]) -> dict[str, Model]:
    """Return models with the frozen parameters of their networks, which messages and stored states leave out.

    Args:
        method: The method that made the models.
        task: The run's task.
        models: Maps the kind of each model to the model.
    """
    return {kind: replace(model, tensors=_complete(method, task, model)) for kind, model in models.items()}


def _complete(method: Method, task: Task, model: Model) -> Tensors:
    frozen = task.frozen(model.network)
    if not frozen:
        return model.tensors
    predictor = predictor_of(method, replace(task, device="cpu"), model)
    if predictor.state_dict().keys() == model.tensors.keys():  # a network of the method's own has other names
        frozen = {name: predictor.get_parameter(name).detach() for name in held_names(predictor)}
    return model.tensors | frozen


def score(model: nn.Module, data: Dataset, task: Task, settings: Settings) -> dict[str, float]:
    """The task's metrics of a model on a data set, and those of its bundle itself; empty for an empty one."""
    if not len(data):
        return {}
    scores = score_predictions(*predictions(model, data, task, settings), task)
    return scores | (data.judge(model, task.device) if isinstance(data, Judged) else {})


def predictions(
    model: nn.Module, data: Dataset, task: Task, settings: Settings, cases: tuple[int, int] | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the task's metrics need to know of a model on a data set, or on some cases of it (`predict`)."""
    return predict(model, data, task.objective, task.metrics, settings, task.device, task.inferer, cases)


def score_predictions(judged: torch.Tensor, kept: torch.Tensor, task: Task) -> dict[str, float]:
    """The task's metrics of `predictions`."""
    return {name: task.objective.score(name, judged, kept) for name in task.metrics}


Predictors = dict[str, nn.Module]
"""Kind of a model that is the same at all sites to its predictor."""

Known = dict[str, Meta]
"""Kind of a site's model to what it scored when it was last scored: ``scores`` by split and metric, and ``model``, the
digest of the model that it was. JSON."""


@dataclass
class Scorer:
    """Scores the models of one participant; a personal model that has the bits of when it was last scored not again.

    Attributes:
        task: The learning problem.
        settings: The run's settings.
        known: What its personal models scored before.
    """

    task: Task
    settings: Settings
    known: Known = field(default_factory=dict)

    def scores(
        self, method: Method, kind: str, model: Model, splits: Mapping[str, Dataset], shared: Predictors
    ) -> dict[str, dict[str, float]]:
        """Split to metric to value.

        Args:
            method: Makes the predictor.
            kind: Of the model.
            model: The model.
            splits: The data sets.
            shared: Predictors that are the same at every site, by kind.
        """
        if kind == "global":  # another one after each round
            return self._scores(self.predictor(method, kind, model, shared), splits)
        digest = wire.digest(model.tensors, {"network": model.network, "meta": model.meta})
        if self.known.get(kind, {}).get("model") != digest:
            scores = self._scores(self.predictor(method, kind, model, shared), splits)
            self.known[kind] = {"model": digest, "scores": scores}
        known: dict[str, dict[str, float]] = self.known[kind]["scores"]
        return known

    def _scores(self, predictor: nn.Module, splits: Mapping[str, Dataset]) -> dict[str, dict[str, float]]:
        return {split: score(predictor, data, self.task, self.settings) for split, data in splits.items()}

    def predictor(self, method: Method, kind: str, model: Model, shared: Predictors) -> nn.Module:
        """What a model predicts with; that of the global one is built once per `shared`."""
        if kind != "global":
            return predictor_of(method, self.task, model)
        if kind not in shared:
            shared[kind] = predictor_of(method, self.task, model)
        return shared[kind]


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


def epoch_scorer(
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

    def score_epoch(model: Model, epoch: int) -> None:
        predictor = predictor_of(method, task, model)
        for name, data in tests.items():
            scores = score(predictor, data, task, settings)
            rows.extend(rows_of(scores, round_, name, "global", "test", f"epoch {epoch}"))

    return score_epoch
