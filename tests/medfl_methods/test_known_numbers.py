"""Tests of the framework against known numbers: closed forms, byte counts, invariances and learning."""

import pandas as pd
import pytest
import torch
from quadratic_toys import quadratic
from torch import nn

from medfl.contract import Participant
from medfl.data.pooled import EmptyDataset
from medfl.engine.plan import MethodChoice
from medfl.engine.runs.simulation import RunData, SimulatedRun, simulate
from medfl.engine.site import Splits
from medfl.objectives import Multiclass
from medfl.plugins import load_plugins
from medfl.settings import Settings
from medfl.task import Task
from medfl.testing.cohort import Case, TensorData, bits, make_sites, make_task
from medfl.toolkit import circulating as circulating
from medfl.toolkit.model_transfer import draw_route
from medfl.utils.rng import make_generator
from medfl_methods.fedcross import relay
from medfl_methods.fedprox import FedProx, squared_distance

REGISTRY = load_plugins()
QUICK, FURTHER = (
    ["local", "fedavg", "fedbn", "fedkper"],
    ["centralized", "fedprox", "fedcross", "fedcross_star", "fedskd"],
)
METHODS = [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in FURTHER)]
ARGS = {
    "fedcross": {"test": "owner"},  # evaluate one model per site, as the other methods do
    "fedcross_star": {"p2p_scale": 1},
    "fedskd": {"skd": ("batch",), "p2p_scale": 1},  # vectors have no positions to compare
}

# ---- closed forms: one parameter, three quadratic losses


class WithoutTheHalf(FedProx):
    """FedProx without the factor 1/2, a common implementation error."""

    def loss(self, fit, batch):
        return fit.task_loss(batch) + self.mu * squared_distance(fit)


def method(name, **args):
    return lambda: REGISTRY.make_method(name, args)


@pytest.mark.parametrize(
    ("make_method", "expected"),
    [
        (method("fedavg"), [0.9213975, 1.4654735098, 1.7867449528]),
        (method("fedavg", weights="uniform"), [0.6825166667, 1.0855359332, 1.3235147798]),
        (method("fedprox", mu=1.0), [0.75636, 1.2584620224, 1.591777429]),
        (method("fedprox", preset="paper"), [0.75636, 1.2584620224, 1.591777429]),
        (method("fedprox", mu=0.0), [0.9213975, 1.4654735098, 1.7867449528]),
        (lambda: WithoutTheHalf(mu=1.0), [0.6239475, 1.0748681188, 1.4007439408]),  # must differ from FedProx
    ],
    ids=["fedavg", "fedavg-uniform", "fedprox", "fedprox-paper", "fedprox-zero", "fedprox-wrong"],
)
def test_quadratic_federation(tmp_path, make_method, expected):
    positions = [quadratic(tmp_path, make_method, rounds) for rounds in (1, 2, 3)]  # each continues the previous run
    assert positions == pytest.approx(expected, abs=1e-6)


def test_the_fixed_point_is_the_optimum_of_the_weighted_loss(tmp_path):
    assert quadratic(tmp_path, method("fedavg"), 30) == pytest.approx(2.25, abs=1e-6)


# ---- invariances


def renamed_route(new, old, hosts, held, *how):
    """Return the route of the renamed sites that corresponds to the route of the original ones."""
    before = {old[model]: old[holder] for model, holder in held.items()}
    return {
        new[host]: new[model] for host, model in draw_route(sorted(old[host] for host in hosts), before, *how).items()
    }


@pytest.mark.parametrize("name", METHODS)
def test_renamed_sites_give_the_same_models(tmp_path, monkeypatch, name):
    other = {"site-1": "site-3", "site-2": "site-1", "site-3": "site-2"}
    sites, case = make_sites(), Case(REGISTRY, name, ARGS.get(name, {}))
    before = bits(case.run(tmp_path / "before", batch_size=64 if name == "centralized" else 5))
    key_of = {new: old for old, new in other.items()}
    monkeypatch.setattr(
        Participant, "rng", lambda self, label: make_generator(7, key_of.get(self.name, self.name), self.round, label)
    )
    for module in (circulating, relay):  # the server draws over sorted names
        monkeypatch.setattr(
            module, "draw_route", lambda hosts, held, *how: renamed_route(other, key_of, hosts, held, *how)
        )
    renamed = {other[site]: data for site, data in sites.items()}
    after = bits(case.run(tmp_path / "after", sites=renamed, batch_size=64 if name == "centralized" else 5))
    assert before.keys() == after.keys()
    for key, tensors in before.items():
        site, kind = key.split("/")
        for tensor_name, tensor in tensors.items():
            torch.testing.assert_close(
                after[f"{other.get(site, site)}/{kind}"][tensor_name], tensor, atol=1e-5, rtol=1e-5
            )


# ---- bytes


@pytest.mark.parametrize(
    ("name", "network"), [("fedavg", "norm"), ("fedavg", "plain"), ("fedbn", "norm"), ("local", "norm")]
)
def test_bytes_are_four_for_each_shared_number(tmp_path, name, network):
    case = Case(REGISTRY, name)
    case.run(tmp_path, task=make_task(network))
    parameters = 6 * 9 + 6 + 24 * 3 + 3
    norms = {"norm": {"fedavg": 4 * (2 * 6 + 2 * 6) + 8}}.get(network, {}).get(name, 0)  # affine, statistics, counter
    expected = 0 if name == "local" else 4 * parameters + norms
    table = pd.read_csv(tmp_path / "metrics.csv")
    for metric in ("bytes_up", "bytes_down"):
        rows = table[table["metric"] == metric]
        assert len(rows) == 9
        assert set(rows["value"]) == {expected}
    assert set(table[table["metric"] == "bytes_to_peers"]["value"]) == {0}


# ---- learning


class TwoLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.head = nn.Linear(8, 2)
        self.feature_layers = [self.body]

    def forward(self, images):
        return self.head(self.body(images))


GAUSSIANS = Task(
    {"two": TwoLayers},
    "two",
    nn.CrossEntropyLoss(),
    lambda p: torch.optim.SGD(p, lr=0.05),
    Multiclass(2),
    ("accuracy",),
)


def gaussian_sites(random_labels):
    """Return sites with two classes in 8 dimensions, four standard deviations apart."""
    rng = torch.Generator().manual_seed(5)

    def split(n):
        labels = torch.randint(2, (n,), generator=rng)
        images = torch.randn(n, 8, 1, 1, generator=rng)
        images[:, 3, 0, 0] += 4.0 * labels - 2.0
        return TensorData(images, torch.randint(2, (n,), generator=rng) if random_labels else labels)

    return {f"site-{index}": Splits(split(200), EmptyDataset(), split(100)) for index in range(4)}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("random_labels", [False, True], ids=["separable", "random"])
def test_methods_learn_separable_classes_and_not_random_labels(tmp_path, name, random_labels):
    rounds = 3 if random_labels else 8  # 20 are allowed
    settings = Settings(rounds=rounds, evaluate_every=rounds)
    run = SimulatedRun(
        method=MethodChoice(name=name, make=method(name, **ARGS.get(name, {}))),
        task=GAUSSIANS,
        settings=settings,
        data=RunData(sites=gaussian_sites(random_labels)),
        folder=tmp_path,
    )
    (scores,) = simulate(run).summary.scores.values()
    accuracy = scores["test"]["accuracy"].mean
    assert abs(accuracy - 0.5) <= 0.08 if random_labels else accuracy >= 0.95
