"""Tests of FedAvgM, FedAdam, FedYogi and FedAdagrad: closed forms, unaffected tensors, and state."""

import math

import pytest
import torch
from quadratic_toys import quadratic

from medfl.contract import Server, State
from medfl.plugins import load_plugins
from medfl.settings import Settings
from medfl.testing.cohort import Case, make_task
from medfl.toolkit.averaging import Averaging
from medfl.toolkit.participant_state import model_tensors
from medfl.toolkit.server_optimizer import momentum_step
from medfl.utils.wire import tensors_equal
from medfl_methods.fedavgm import FedAvgM

REGISTRY = load_plugins()
ADAPTIVE = ["fedadam", "fedyogi", "fedadagrad"]
METHODS = ["fedavgm", *ADAPTIVE]


def method(name, **args):
    return lambda: REGISTRY.make_method(name, args)


# ---- three quadratic losses


class MovingAverage(FedAvgM):
    """A common mistake in FedAvgM: the update is weighted by 1 - beta."""

    def server_update(self, server, old, mean):
        return super().server_update(server, old, {name: (1 - self.beta) * m for name, m in mean.items()})


def by_hand(step):
    """Return w after rounds 1 to 3: five steps of 0.1 move w by (1 - 0.9^5) of its distance to 2.25, on average."""
    w, seen = 0.0, []
    for round_ in (1, 2, 3):
        w += step(round_, (1 - 0.9**5) * (2.25 - w))
        seen.append(w)
    return seen


def flower(moment, eta, beta1, tau, corrected=False):
    """Compute Flower's adaptive strategies for one number."""
    kept = {"m": 0.0, "v": 0.0}

    def step(round_, d):
        kept["m"] = beta1 * kept["m"] + (1 - beta1) * d
        kept["v"] = moment(kept["v"], d * d)
        factor = math.sqrt(1 - 0.99 ** (round_ + 1.0)) / (1 - beta1 ** (round_ + 1.0)) if corrected else 1.0
        return eta * factor * kept["m"] / (math.sqrt(kept["v"]) + tau)

    return step


def nesterov(beta, rate):
    """Compute Sutskever's form of Nesterov momentum."""
    kept = {"v": 0.0}

    def step(round_, d):
        kept["v"] = beta * kept["v"] + d
        return rate * (d + beta * kept["v"])

    return step


FLOWER = {
    "fedadam": flower(lambda v, s: 0.99 * v + 0.01 * s, 0.1, 0.9, 1e-9, corrected=True),
    "fedyogi": flower(lambda v, s: v - 0.01 * s * ((v > s) - (v < s)), 0.01, 0.9, 1e-3),
    "fedadagrad": flower(lambda v, s: v + s, 0.1, 0.0, 1e-9),
}


@pytest.mark.parametrize(
    ("make_method", "expected"),
    [
        (method("fedavgm", beta=0.5), [0.9213975, 1.9261722598, 2.5611703376]),
        (method("fedavgm", beta=0.0), [0.9213975, 1.4654735098, 1.7867449528]),  # FedAvg's
        (lambda: MovingAverage(beta=0.5), [0.46069875, 1.0574165024, 1.5999628127]),  # the row that must not match
        (method("fedavgm", beta=0.7, server_lr=0.5, nesterov=True), by_hand(nesterov(0.7, 0.5))),
        (method("fedadam", preset="paper"), [0.09892064, 0.23237623, 0.38789274]),
        (method("fedyogi", preset="paper"), [0.09892058, 0.23202974, 0.38672011]),
        (method("fedadagrad", preset="paper"), [0.09989153, 0.16892494, 0.22447534]),
        *((method(name, preset="flower"), by_hand(FLOWER[name])) for name in ADAPTIVE),
    ],
    ids=["m", "m-zero", "m-wrong", "nesterov", *ADAPTIVE, *(f"{name}-flower" for name in ADAPTIVE)],
)
def test_quadratic_federation(tmp_path, make_method, expected):
    positions = [quadratic(tmp_path, make_method, rounds) for rounds in (1, 2, 3)]  # each continues the one before
    assert positions == pytest.approx(expected, abs=1e-6)


# ---- at a server


def make_server(name="plain"):
    """Return a server after `setup`, in round 1."""
    server = Server("server", 1, State(), make_task(name), Settings(rounds=5), sites=["a", "b"])
    Averaging().setup(server)
    return server


def mean_updates(server, seed=0):
    """Return a synthetic mean update: float64, and integer buffers one step ahead."""
    rng = torch.Generator().manual_seed(seed)
    return {
        name: 0.02 * torch.randn(t.shape, generator=rng, dtype=torch.float64) if t.is_floating_point() else t * 0 + 1
        for name, t in model_tensors(server).items()
    }


def after(toy, server, *means):
    """Return the shared tensors after rounds with these mean updates."""
    for server.round, mean in enumerate(means, start=1):
        server.state.tensors |= toy.server_update(server, model_tensors(server), mean)
    return model_tensors(server)


@pytest.mark.parametrize("name", METHODS)
def test_statistics_of_norms_are_averaged_as_in_fedavg(name):
    """Momentum would make a running variance negative while updates decrease."""
    server, plain = make_server("norm"), make_server("norm")
    means = [mean_updates(server, seed) for seed in range(3)]
    for mean, fall in zip(means, (0.4, 0.3, 0.2), strict=True):
        mean["body.1.running_var"] = torch.full((6,), -fall, dtype=torch.float64)
    tensors, expected = after(REGISTRY.make_method(name, {}), server, *means), after(Averaging(), plain, *means)
    buffers = {"body.1.running_mean", "body.1.running_var", "body.1.num_batches_tracked"}
    assert tensors.keys() == expected.keys()
    assert {key for key in tensors if torch.equal(tensors[key], expected[key])} == buffers
    assert (tensors["body.1.running_var"] > 0.09).all()
    assert tensors["body.1.num_batches_tracked"] == 3
    assert {key.split("/", 2)[2] for key in server.state.tensors if key.startswith("kept/")} == tensors.keys() - buffers


@pytest.mark.parametrize("name", METHODS)
def test_the_order_of_coordinates_does_not_matter(name):
    order = torch.randperm(24, generator=torch.Generator().manual_seed(1))
    straight, mixed = make_server(), make_server()
    mixed.state.tensors["head.weight"] = mixed.state.tensors["head.weight"][:, order]
    means = [mean_updates(straight, seed) for seed in range(3)]
    turned = [mean | {"head.weight": mean["head.weight"][:, order]} for mean in means]
    tensors, expected = (
        after(REGISTRY.make_method(name, {}), *case) for case in ((mixed, *turned), (straight, *means))
    )
    assert tensors_equal(tensors, expected | {"head.weight": expected["head.weight"][:, order]})


@pytest.mark.parametrize("name", METHODS)
def test_what_the_server_remembers_goes_to_no_one(tmp_path, name):
    result = Case(REGISTRY, name).run(tmp_path, rounds=2)
    start = make_task().initial(7)
    assert result.outcome.models["global"].tensors.keys() == start.keys()
    server, toy = make_server("norm"), REGISTRY.make_method(name, {})
    after(toy, server, mean_updates(server))
    assert len(server.state.tensors) > len(start)
    assert toy.publish(server).keys() == {"model/" + key for key in start}
    assert toy.plan(server).requests[0].tensors.keys() == {"model/" + key for key in start}
    assert {t.dtype for key, t in server.state.tensors.items() if key.startswith("kept/")} == {torch.float32}


# ---- momentum


def test_momentum_on_some_parameters_leaves_the_others_to_averaging():
    server, old = make_server(), {name: torch.ones(2) for name in ("body", "head", "still")}
    mean = {name: torch.full((2,), 0.25, dtype=torch.float64) for name in ("body", "head")}
    for expected in (0.25, 0.375, 0.4375):  # 1 + 1/2 + 1/4 of the update
        new = momentum_step(server, old, mean, ["body", "still"], 0.5)
        assert new["body"].tolist() == [1 + expected] * 2
        assert new["head"].tolist() == [1.25] * 2
        assert new["still"].tolist() == [1.0] * 2  # nobody sent it
    assert [key for key in server.state.tensors if key.startswith("kept/")] == ["kept/velocity/body"]
    assert {tensor.dtype for tensor in new.values()} == {torch.float32}


def test_memory_of_half_precision_is_kept_in_single():
    server, old = make_server(), {"w": torch.ones(1, dtype=torch.bfloat16)}
    mean = {"w": torch.full((1,), 1e-3, dtype=torch.float64)}
    assert momentum_step(server, old, mean, ["w"], 0.5)["w"].dtype == torch.bfloat16
    assert server.state.tensors["kept/velocity/w"].item() == pytest.approx(1e-3, rel=1e-6)


# ---- second moments


def test_second_moments():
    kept, square = torch.tensor([4.0, 1.0, 2.0, 0.0]), torch.tensor([1.0, 4.0, 2.0, 0.0])
    toys = {name: REGISTRY.make_method(name, {} if name == "fedadagrad" else {"beta2": 0.75}) for name in ADAPTIVE}
    moments = {name: toy.second_moment(kept, square).tolist() for name, toy in toys.items()}
    assert moments == {
        "fedadam": [3.25, 1.75, 2.0, 0.0],
        "fedyogi": [3.75, 2.0, 2.0, 0.0],
        "fedadagrad": [5.0, 5.0, 4.0, 0.0],
    }


FIRST = {
    "fedadagrad": lambda d, tau: 1 / (math.sqrt(tau**2 + d**2) + tau),
    "fedadam": lambda d, tau: 0.1 / (math.sqrt(0.99 * tau**2 + 0.01 * d**2) + tau),
    "fedyogi": lambda d, tau: 0.1 / (math.sqrt(tau**2 + math.copysign(0.01 * d**2, d - tau)) + tau),
}
"""First step of a coordinate in multiples of FedAvg's and of eta, by the size of the mean update."""


@pytest.mark.parametrize("name", ADAPTIVE)
@pytest.mark.parametrize("size", [2e-4, 0.0013, 0.0036, 0.02])
@pytest.mark.parametrize("eta", [0.1, 0.01])
def test_a_first_step_in_multiples_of_fedavgs(name, size, eta):
    server, toy = make_server(), REGISTRY.make_method(name, {"eta": eta})
    old = {"head.bias": torch.zeros(3, dtype=torch.float64)}
    moved = toy.server_update(server, old, {"head.bias": torch.full((3,), size, dtype=torch.float64)})["head.bias"]
    assert (moved / size).tolist() == pytest.approx([eta * FIRST[name](size, 1e-3)] * 3)


@pytest.mark.parametrize("name", ADAPTIVE)
@pytest.mark.parametrize("preset", ["paper", "flower", "medfl"])
def test_only_flowers_adam_is_corrected_for_its_start_and_one_round_late(name, preset):
    toy = REGISTRY.make_method(name, {"preset": preset})
    assert toy.v0 == ("zero" if preset == "flower" else "tau2")
    assert toy.beta1 == (0.0 if name == "fedadagrad" else 0.9)
    rates = [toy.rate(round_) for round_ in (1, 2, 900)]
    if (name, preset) != ("fedadam", "flower"):
        assert rates == [toy.eta] * 3
        return
    assert rates == pytest.approx([0.1 * 0.1410673598 / 0.19, 0.1 * 0.1723368794 / 0.271, 0.1], rel=1e-4)


@pytest.mark.parametrize("name", ADAPTIVE)
@pytest.mark.parametrize("v0", ["tau2", "zero"])
def test_a_coordinate_without_updates_stays_where_it_is(name, v0):
    server, toy = make_server(), REGISTRY.make_method(name, {"v0": v0, "tau": 1e-9})
    start = dict(server.state.tensors)
    nothing = {key: torch.zeros_like(t, dtype=torch.float64) for key, t in start.items()}
    assert tensors_equal(after(toy, server, nothing, nothing), start)
