"""Tests of an objective in a plugin file: lookup, training, metrics, and reading of run files."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from own_plugins import load_block
from refusals import refused

from medfl.data.pooled import TensorData, labels_of
from medfl.data.targets import list_objective
from medfl.engine.runs.records import read_run
from medfl.engine.site import Splits
from medfl.errors import DataError, PluginError, SettingsError
from medfl.objectives import check_metrics, objective_class, read_objective
from medfl.plugins import load_plugins
from medfl.testing.cohort import Case, SmallNet, make_data, make_task


def counted(n: int, key: str) -> TensorData:
    """Return images whose targets are their class numbers."""
    data = make_data(n, key)
    return TensorData(data.images, labels_of(data).float()[:, None])


def test_an_objective_of_a_plugin_file_trains_and_is_read_again(tmp_path: Path) -> None:
    registry = load_block("counts", tmp_path)
    objective = read_objective({"name": "counts", "dimensions": 1})
    assert list_objective({"objective": objective.facts}, tmp_path / "datalist.json") == objective
    task = replace(
        make_task(loss=objective.default_loss()),
        networks={"plain": partial(SmallNet, norm=False, outputs=objective.outputs)},
        network="plain",
        objective=objective,
        metrics=objective.metrics,
    )
    sites = {name: Splits(counted(12, name), counted(4, f"{name}/val"), counted(6, f"{name}/test")) for name in "ab"}
    result = Case(registry, "fedavg").run(
        tmp_path / "run", task=task, sites=sites, server_test=counted(8, "global"), rounds=2
    )
    assert result.outcome.status == "finished"
    run = read_run(tmp_path / "run")
    assert run.objective == objective
    outputs, targets = torch.tensor([[0.0], [1.0]]), torch.tensor([[1.0], [0.0]])
    assert objective.score("mae", objective.scoring_inputs(outputs, targets, ["mae"]), targets) == pytest.approx(
        torch.tensor(1.0).exp().item() / 2
    )


def test_metrics_of_a_plugins_objective_are_known(tmp_path: Path) -> None:
    path = tmp_path / "scored.py"
    path.write_text(
        "from medfl.objectives import Regression\n"
        "from medfl.plugins import ObjectiveRecord, hookimpl\n"
        "class Scored(Regression):\n"
        "    name = 'scored'\n"
        "    @property\n"
        "    def scores(self):\n"
        "        return {'own_score': None}\n"
        "@hookimpl\n"
        "def medfl_objectives():\n"
        "    return [ObjectiveRecord('scored', f'{__name__}:Scored'), ObjectiveRecord('other', f'{__name__}:Scored')]\n"
    )
    with refused(SettingsError, "unknown_choice", what="metric", choice="own_score"):
        check_metrics(["own_score"])
    load_plugins([path])
    assert "own_score" in objective_class("scored").example().scores
    with refused(PluginError, "wrong_name", expected="other", found="scored"):
        objective_class("other")


def test_a_data_list_with_an_unknown_objective_is_refused(tmp_path: Path) -> None:
    with refused(DataError, "invalid_objective", path=str(tmp_path / "datalist.json")) as caught:
        list_objective({"objective": {"name": "multiclas", "num_classes": 3}}, tmp_path / "datalist.json")
    assert "Did you mean 'multiclass'" in str(caught.value)
