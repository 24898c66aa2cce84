"""Score models on data sets, write the scores as rows of ``metrics.csv``, and track the best validation round."""

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
from medfl.metrics import LOWER_IS_BETTER_METRICS, UNBOUNDED_METRICS
from medfl.networks.transfer.adapters.layers import adapter_scale
from medfl.networks.transfer.adapters.tensors import merge_adapters
from medfl.networks.transfer.frozen import get_tensor, removed_names
from medfl.settings import Settings
from medfl.task import Task
from medfl.training.predict import predict
from medfl.types import Dataset, Meta, Tensors, is_self_scoring
from medfl.utils import wire


class MetricRow(NamedTuple):
    """Row of ``metrics.csv``: one score of a model, or one cost of a site.

    Attributes:
        round: Number of the round, from 1.
        site: Site whose data were scored, or whose cost it is. The name ``global`` is the server's test set.
        model: Kind of model: ``global``, ``personal``, or ``personal@SITE`` in the final cross-site evaluation.
        split: ``train``, ``val`` or ``test``. Costs have the split ``train``. ``shared`` is the server's test set when
            it scores the personal model of a site.
        moment: Time of the scored model: ``aggregated`` (after the round), ``trained`` (after the site's local training
            in the round), or ``epoch N`` of a model that the server trains in the round.
        metric: Name of the metric or cost.
        value: Value of the metric or cost; nan if it is undefined.
    """

    round: int
    site: str
    model: str
    split: str
    moment: str
    metric: str
    value: float


def rows_to_csv(rows: list[MetricRow], header: bool = False) -> str:
    """Format rows as CSV text.

    Args:
        rows: Rows of metrics.
        header: Whether the text begins with the column names.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if header:
        writer.writerow(MetricRow._fields)
    writer.writerows(rows)
    return text.getvalue()


def build_predictor(method: Method, task: Task, model: Model) -> nn.Module:
    """Build the network that predicts with a model, as the method defines it.

    Args:
        method: Method that made the model. It may change the task, for example add an output.
        task: The learning problem.
        model: Tensors of the model, with the name of its network.
    """
    return method.predictor(method.task_of(task), [model])


def add_frozen_tensors(method: Method, task: Task, models: Mapping[str, Model]) -> dict[str, Model]:
    """Return copies of models that include the frozen tensors of their networks, with merged adapters.

    Messages and stored states leave frozen tensors out. The tensors have the names of the networks without
    low-rank adapters. A network with adapters can load them, too: its weight changes B A then are zero.

    Args:
        method: The method that made the models.
        task: The run's task.
        models: Maps the kind of each model to the model.
    """
    return {kind: replace(model, tensors=_with_frozen(method, task, model)) for kind, model in models.items()}


def _with_frozen(method: Method, task: Task, model: Model) -> Tensors:
    """Return the tensors of a model together with the frozen tensors of its network."""
    frozen = task.frozen(model.network)
    if not frozen:
        return model.tensors
    predictor = build_predictor(method, replace(task, device="cpu"), model)
    if predictor.state_dict().keys() == model.tensors.keys():  # else the method replaced the network
        frozen = {name: get_tensor(predictor, name).detach() for name in removed_names(predictor)}
    scale = adapter_scale(predictor)
    return model.tensors | frozen if scale is None else merge_adapters(model.tensors | frozen, scale)


def score_dataset(model: nn.Module, data: Dataset, task: Task, settings: Settings) -> dict[str, float]:
    """Compute the task's metrics of a network on a data set, and the bundle's own metrics if it has some.

    Args:
        model: Network whose outputs have the form that the task's objective expects.
        data: Data set. An empty data set gives an empty result.
        task: The learning problem.
        settings: Settings of the run.

    Returns:
        A mapping from the name of each metric to its value.
    """
    if not len(data):
        return {}
    scores = score_predictions(*predict_dataset(model, data, task, settings), task)
    return scores | (data.compute_metrics(model, task.device) if is_self_scoring(data) else {})


def predict_dataset(
    model: nn.Module, data: Dataset, task: Task, settings: Settings, cases: tuple[int, int] | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Predict a data set, and return the predictions and targets that the task's metrics need.

    Args:
        model: Network whose outputs have the form that the task's objective expects.
        data: Data set.
        task: The learning problem.
        settings: Settings of the run.
        cases: Range of cases, as (number of the first case, number after that of the last case); None predicts all.

    Returns:
        Predictions for N cases, shape (N, K), and targets, shape (N, ...). A prediction has K numbers, such as
        probabilities of the classes; the objective defines them.
    """
    return predict(model, data, task.objective, task.metrics, settings, task.device, task.inferer, cases)


def score_predictions(predictions: torch.Tensor, targets: torch.Tensor, task: Task) -> dict[str, float]:
    """Compute the task's metrics from the result of `predict_dataset`.

    Args:
        predictions: Predictions for N cases, K numbers each, shape (N, K).
        targets: Targets of the cases, shape (N, ...).
        task: The learning problem.

    Returns:
        A mapping from the name of each metric to its value.
    """
    return {name: task.objective.score(name, predictions, targets) for name in task.metrics}


Predictors = dict[str, nn.Module]
"""Networks that predict, by kind of model, for kinds of models that are the same at all sites (``global``)."""

ScoreCache = dict[str, Meta]
"""Last scores of a participant's models, by kind of model, as JSON.

The keys of an entry are ``scores`` (by split and metric) and ``model`` (digest of the model that was scored).
"""


@dataclass
class Scorer:
    """Scorer of one participant's models. It reuses the scores of a personal model that did not change.

    Attributes:
        task: The learning problem.
        settings: Settings of the run.
        cache: Last scores of the participant's personal models.
    """

    task: Task
    settings: Settings
    cache: ScoreCache = field(default_factory=dict)

    def scores(
        self, method: Method, kind: str, model: Model, splits: Mapping[str, Dataset], shared: Predictors
    ) -> dict[str, dict[str, float]]:
        """Score a model on several splits, or return the cached scores of an unchanged personal model.

        Args:
            method: Method that builds the predictor.
            kind: Kind of the model: ``global`` or ``personal``.
            model: The model.
            splits: Maps the name of each split to its data.
            shared: Networks of models that are the same at every site, by kind. A missing network is added in place.

        Returns:
            The value of each metric, by split and metric.
        """
        if kind == "global":  # it changes in every round, so a cache would never hit
            return self._score_splits(self.predictor(method, kind, model, shared), splits)
        digest = wire.digest(model.tensors, {"network": model.network, "meta": model.meta})
        if self.cache.get(kind, {}).get("model") != digest:
            scores = self._score_splits(self.predictor(method, kind, model, shared), splits)
            self.cache[kind] = {"model": digest, "scores": scores}
        cached: dict[str, dict[str, float]] = self.cache[kind]["scores"]
        return cached

    def _score_splits(self, predictor: nn.Module, splits: Mapping[str, Dataset]) -> dict[str, dict[str, float]]:
        return {split: score_dataset(predictor, data, self.task, self.settings) for split, data in splits.items()}

    def predictor(self, method: Method, kind: str, model: Model, shared: Predictors) -> nn.Module:
        """Return the network that predicts with a model.

        The network of the global model is built once and stored in `shared` in place.

        Args:
            method: Method that builds the network.
            kind: Kind of the model: ``global`` or ``personal``.
            model: The model.
            shared: Networks of models that are the same at every site, by kind.
        """
        if kind != "global":
            return build_predictor(method, self.task, model)
        if kind not in shared:
            shared[kind] = build_predictor(method, self.task, model)
        return shared[kind]


@dataclass(frozen=True)
class BestEvaluation:
    """Evaluated round with the best validation score so far.

    Attributes:
        round: Number of the round, from 1; 0 if no round has a score.
        step: Number of the round's last step.
        score: Mean over the sites of a validation score: each site scores the model that it would export.
        evaluations_since: Number of evaluations since this round, none of which was better.
    """

    round: int = 0
    step: int = 0
    score: float = 0.0
    evaluations_since: int = 0

    def after(self, round_: int, step: int, rows: Iterable[MetricRow], metric: str) -> BestEvaluation:
        """Return the best round after one more evaluated round. A tie keeps the earlier round.

        Args:
            round_: The evaluated round.
            step: Number of the last step of the round.
            rows: Rows with the scores of the round.
            metric: Metric that rounds are compared by. Sites without a valid value are left out of the mean. A value
                outside [0, 1] is valid only for a metric in `medfl.metrics.UNBOUNDED_METRICS`.
        """
        scores_by_site: dict[str, dict[str, float]] = {}
        for row in rows:
            if (row.split, row.moment, row.metric) == ("val", "aggregated", metric):
                scores_by_site.setdefault(row.site, {})[row.model] = row.value
        values = [models.get("personal", models.get("global", math.nan)) for models in scores_by_site.values()]
        values = [
            value for value in values if 0 <= value <= 1 or (metric in UNBOUNDED_METRICS and math.isfinite(value))
        ]
        score = math.fsum(values) / len(values) if values else math.nan
        better = score < self.score if metric in LOWER_IS_BETTER_METRICS else score > self.score
        if better or (values and not self.round):
            return BestEvaluation(round_, step, score)
        return replace(self, evaluations_since=self.evaluations_since + 1)


def scores_to_rows(
    scores: dict[str, float], round_: int, site: str, model: str, split: str, moment: str
) -> list[MetricRow]:
    """Return scores as rows of metrics.

    Args:
        scores: Maps the name of each metric or cost to its value.
        round_: Number of the round.
        site: Name of the site.
        model: Kind of the model.
        split: Name of the split.
        moment: Time of the scored model: ``aggregated``, ``trained`` or ``epoch N`` (see `MetricRow`).
    """
    return [MetricRow(round_, site, model, split, moment, name, value) for name, value in scores.items()]


def make_epoch_scorer(
    method: Method, tests: Mapping[str, Dataset], task: Task, settings: Settings, round_: int, rows: list[MetricRow]
) -> Callable[[Model, int], None] | None:
    """Return a callback that scores a model after each epoch in which the server trains it.

    The method calls it as ``watch(model, epoch)`` (`Server.watch`).

    Args:
        method: Method that builds the predictor.
        tests: Maps the name of each test set of the server to its data.
        task: The learning problem.
        settings: Settings of the run.
        round_: Number of the round.
        rows: List to which the callback appends the scores in place.

    Returns:
        None if the setting ``moments`` does not contain ``epochs``.
    """
    if "epochs" not in settings.moments:
        return None

    def score_epoch(model: Model, epoch: int) -> None:
        predictor = build_predictor(method, task, model)
        for name, data in tests.items():
            scores = score_dataset(predictor, data, task, settings)
            rows.extend(scores_to_rows(scores, round_, name, "global", "test", f"epoch {epoch}"))

    return score_epoch
