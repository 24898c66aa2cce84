"""Test scoring: each image once, in evaluation mode, with correct rows."""

import csv
import io
import math

import pytest
import torch
from refusals import refused
from torch import nn
from toys import metric_rows

from medfl.engine.evaluation import MetricRow, rows_to_csv, score_dataset, scores_to_rows
from medfl.engine.plan import MethodChoice
from medfl.engine.runs.simulation import RunData, SimulatedRun, simulate
from medfl.errors import SettingsError
from medfl.metrics import METRICS
from medfl.objectives import Multiclass
from medfl.plugins import load_plugins
from medfl.settings import Settings
from medfl.testing.cohort import Case, SmallNet, TensorData, make_data, make_sites, make_task
from medfl.training.predict import EVALUATION_BATCH, predict
from medfl_methods.fedavg import FedAvg

SETTINGS = Settings(rounds=1)
GOAL = Multiclass(3)


def test_every_image_is_seen_once_in_order():
    seen = []

    class Counting(nn.Module):
        def forward(self, images):
            seen.append(len(images))
            return torch.stack([images[:, 0, 0, 0], -images[:, 0, 0, 0]], 1)

    n = 2 * EVALUATION_BATCH + 3
    images = torch.linspace(-1, 1, n).reshape(n, 1, 1, 1)
    probabilities, _ = predict(
        Counting(), TensorData(images, torch.zeros(n, dtype=torch.int64)), Multiclass(2), (), SETTINGS
    )
    assert seen == [EVALUATION_BATCH, EVALUATION_BATCH, 3]
    assert probabilities.shape == (n, 2)
    assert torch.allclose(probabilities.sum(1), torch.ones(n))
    assert torch.allclose(probabilities[:, 0], torch.sigmoid(2 * images.flatten()))


def test_scoring_changes_nothing_and_drops_nothing():
    model = nn.Sequential(SmallNet(), nn.Dropout(0.5)).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    data = make_data(30, "a")
    torch.manual_seed(1)
    first = predict(model, data, GOAL, (), SETTINGS)[0]
    assert torch.equal(first, predict(model, data, GOAL, (), SETTINGS)[0])
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not first.requires_grad


def test_the_batch_size_does_not_matter(monkeypatch):
    model, data = SmallNet(), make_data(30, "a")
    whole = predict(model, data, GOAL, (), SETTINGS)[0]
    monkeypatch.setattr("medfl.training.predict.EVALUATION_BATCH", 7)
    torch.testing.assert_close(predict(model, data, GOAL, (), SETTINGS)[0], whole)


def test_half_precision_is_close():
    model, data = SmallNet(), make_data(30, "a")
    rough = predict(model, data, GOAL, (), Settings(rounds=1, precision="bf16"))[0]
    assert rough.dtype == torch.float32
    assert 0 < (rough - predict(model, data, GOAL, (), SETTINGS)[0]).abs().max() < 0.05


def test_scores_are_the_metrics_of_the_task():
    task, data = make_task(), make_data(40, "a")
    model = task.load(task.initial(1))
    with torch.no_grad():
        right = (model.eval()(data.images).argmax(1) == data.class_labels).double().mean().item()
    assert score_dataset(model, data, task, SETTINGS) == {"accuracy": pytest.approx(right)}
    assert set(METRICS) >= set(task.metrics)


def test_an_empty_split_has_no_scores():
    task = make_task()
    empty = make_data(0, "a")
    assert score_dataset(task.load(task.initial(1)), empty, task, SETTINGS) == {}
    assert len(predict(task.load(task.initial(1)), empty, GOAL, (), SETTINGS)[0]) == 0


def test_a_diverged_model_scores_nan_and_raises_nothing():
    task = make_task()
    model = task.load(
        {name: tensor * math.nan if tensor.is_floating_point() else tensor for name, tensor in task.initial(1).items()}
    )
    assert math.isnan(score_dataset(model, make_data(9, "a"), task, SETTINGS)["accuracy"])


def test_rows_are_tidy_csv():
    rows = scores_to_rows({"accuracy": 0.1, "auc": math.nan}, 3, 'a "b", c', "personal@x", "test", "aggregated")
    text = rows_to_csv(rows, header=True)
    assert text.splitlines()[0] == "round,site,model,split,moment,metric,value"
    back = list(csv.DictReader(io.StringIO(text)))
    assert [line["metric"] for line in back] == ["accuracy", "auc"]
    assert [line["site"] for line in back] == ['a "b", c'] * 2
    assert float(back[0]["value"]) == rows[0].value == 0.1
    assert math.isnan(float(back[1]["value"]))
    assert rows_to_csv(rows) == "".join(line + "\n" for line in text.splitlines()[1:])
    assert rows[0] == MetricRow(3, 'a "b", c', "personal@x", "test", "aggregated", "accuracy", 0.1)


# ---- when and where a run scores


def case(name="fedavg"):
    return Case(load_plugins(), name)


def test_rounds_between_evaluations(tmp_path):
    case().run(tmp_path, rounds=5, evaluate_every=2)
    assert sorted(metric_rows(tmp_path, moment="aggregated")["round"].unique()) == [2, 4, 5]
    assert sorted(metric_rows(tmp_path, metric="loss")["round"].unique()) == [1, 2, 3, 4, 5]


def test_models_are_scored_right_after_training_on_request(tmp_path):
    case().run(tmp_path, moments=("aggregated", "trained"), rounds=2)
    trained = metric_rows(tmp_path, moment="trained", metric="accuracy")
    assert set(trained["model"]) == {"personal"}
    assert len(trained) == 2 * 3 * 2  # rounds, sites, splits
    assert len(metric_rows(tmp_path, moment="aggregated", model="global", split="test")) == 2 * 4
    case("local").run(tmp_path / "local", moments=("aggregated", "trained"), rounds=2)
    both = metric_rows(tmp_path / "local", metric="accuracy", split="test").pivot_table(
        index=["round", "site"], columns="moment", values="value"
    )
    assert (both["aggregated"] == both["trained"]).all()  # nothing happens between the two


@pytest.mark.parametrize(("name", "kind"), [("fedbn", "personal"), ("local", "personal"), ("fedavg", "global")])
def test_the_cross_site_evaluation_scores_every_model_everywhere(tmp_path, name, kind):
    sites = make_sites()
    result = case(name).run(tmp_path, rounds=2, cross_site_evaluation=True)
    table = metric_rows(tmp_path, moment="aggregated", split="test", metric="accuracy")
    crossed = table[table["model"].str.contains("@")]
    assert set(crossed["round"]) == {2}
    assert set(crossed["model"]) == {f"{kind}@{site}" for site in sites}
    assert len(crossed) == 9
    for owner in sites:
        model = FedAvg().predictor(make_task(), [result.models[owner][kind]])
        for site, data in sites.items():
            (value,) = crossed[(crossed["model"] == f"{kind}@{owner}") & (crossed["site"] == site)]["value"]
            assert value == pytest.approx(score_dataset(model, data.test, make_task(), Settings(rounds=1))["accuracy"])
    assert set(result.summary.scores) == {kind}


@pytest.mark.parametrize("name", ["fedbn", "fedavg"])
def test_the_shared_test_scores_every_personal_model_on_the_servers_test_set(tmp_path, name):
    shared = make_data(10, "global")
    result = case(name).run(tmp_path, rounds=2, shared_test=True)
    table = metric_rows(tmp_path, split="shared", metric="accuracy")
    if name == "fedavg":  # the one model of all sites is scored there anyway
        assert table.empty
        return
    assert set(map(tuple, table[["round", "site", "model", "moment"]].values)) == {
        (round_, site, "personal", "aggregated") for round_ in (1, 2) for site in make_sites()
    }
    scores = result.summary.scores["personal"]["shared"]["accuracy"]
    for site, models in result.models.items():
        model = FedAvg().predictor(make_task(), [models["personal"]])
        expected = score_dataset(model, shared, make_task(), SETTINGS)["accuracy"]
        assert scores.sites[site] == pytest.approx(expected)
        assert table.set_index(["round", "site"]).loc[(2, site), "value"] == pytest.approx(expected)
    assert scores.mean == pytest.approx(sum(scores.sites.values()) / 3)


def test_without_a_test_set_there_is_nothing_to_share(tmp_path):
    run = SimulatedRun(
        method=MethodChoice(name="fedbn", make=case("fedbn").make_method),
        task=make_task(),
        settings=Settings(rounds=1, shared_test=True),
        data=RunData(sites=make_sites()),
        folder=tmp_path,
    )
    with refused(SettingsError, "missing_test_set", setting="shared_test"):
        simulate(run)
