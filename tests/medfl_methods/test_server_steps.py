"""Tests of methods that change the server's step: closed forms, efforts, lost replies and control variates."""

import dataclasses
import logging

import pytest
import torch
from quadratic_toys import quadratic, run_curved
from refusals import refused

from medfl.contract import Server, State
from medfl.engine.store import Store
from medfl.errors import SettingsError
from medfl.plugins import load_plugins
from medfl.settings import Settings
from medfl.testing.cohort import Case, make_sites, make_task, states
from medfl.training.sgd import distance_in_learning_rates
from medfl.types import SERVER
from medfl_methods.feddyn import FedDyn
from medfl_methods.fednova import FedNova
from medfl_methods.flash import Flash
from medfl_methods.scaffold import distance_covered

REGISTRY = load_plugins()


# ---- FLASH


def walk_flash(method, updates):
    """Return w and delta after each mean update of one coordinate; a buffer takes the updates unchanged."""
    server = Server("server", 1, State({}, {"parameters": ["w"]}), make_task(), Settings(rounds=9), sites=["a"])
    shared, trace = {name: torch.zeros((), dtype=torch.float64) for name in ("w", "running")}, []
    for number, update in enumerate(updates, start=1):
        mean = dict.fromkeys(shared, torch.tensor(update, dtype=torch.float64))
        shared = method.server_update(server, shared, mean)
        trace.append((shared["w"].item(), server.state.tensors["kept/drift/w"].item()))
        assert shared["running"].item() == pytest.approx(sum(updates[:number]))
    return trace


def test_flash_two_rounds_equal_the_formulas():
    (w1, delta1), (w2, delta2) = walk_flash(Flash(), [0.05, 0.05])
    assert (w1, delta1) == pytest.approx((0.0141843972, 0.002475), abs=1e-9)
    assert (w2, delta2) == pytest.approx((0.0311399991, 0.0024505), abs=1e-9)


def test_flash_guard_prevents_steps_in_the_wrong_direction(caplog):
    with caplog.at_level(logging.WARNING, logger="medfl_methods.flash"):
        assert walk_flash(Flash(), [0.5])[0][0] == pytest.approx(0.5, abs=1e-9)
        assert caplog.records == []
        assert walk_flash(Flash(guard=False), [0.5])[0][0] == pytest.approx(-0.0025445293, abs=1e-9)
    assert "1 coordinates of FLASH's denominator are not positive" in caplog.text


def test_flash_coordinate_without_updates_stays_unchanged():
    assert walk_flash(Flash(), [0.0, 0.0]) == [(0.0, 0.0), (0.0, 0.0)]


# ---- FedNova

FEDNOVA_METAS = {"a": {"effort": 1.0, "steps": 1}, "b": {"effort": 5.0, "steps": 5}, "c": {"effort": 10.0, "steps": 10}}
FEDNOVA_SIZES = {"a": 1.0, "b": 1.0, "c": 2.0}


def sgd_fednova(momentum=0.0, lr=0.1, **options):
    return torch.optim.SGD([torch.zeros(1)], lr=lr, momentum=momentum, **options)


class UnevenFedNova(FedNova):
    """FedNova whose sites a, b, c take 1, 5 and 10 steps."""

    def train(self, site, request):
        steps = {"a": 1, "b": 5, "c": 10}[site.name]
        settings = site.settings.model_copy(update={"steps": steps})
        return super().train(dataclasses.replace(site, settings=settings), request)


def test_fednova_three_rounds_equal_the_formulas(tmp_path):
    values = [quadratic(tmp_path, UnevenFedNova, rounds) for rounds in (1, 2, 3)]  # each run continues the previous one
    assert values == pytest.approx([0.9798087779, 1.4625897052, 1.7004702275], abs=1e-9)


def test_fednova_weights_and_step_factor_equal_the_specification():
    method = FedNova()
    assert method.step_factor(FEDNOVA_SIZES, FEDNOVA_METAS) == pytest.approx(2.275, abs=1e-12)
    sized = {name: meta | {"size": FEDNOVA_SIZES[name]} for name, meta in FEDNOVA_METAS.items()}
    weights = method.weights_of(None, sized)
    assert [7 * w / sum(weights.values()) for w in weights.values()] == pytest.approx([5, 1, 1])
    assert FedNova(tau_eff="steps").step_factor(FEDNOVA_SIZES, FEDNOVA_METAS) == pytest.approx(2.275, abs=1e-12)
    halved = {name: meta | {"effort": meta["effort"] / 2} for name, meta in FEDNOVA_METAS.items()}
    assert FedNova(tau_eff="steps").step_factor(FEDNOVA_SIZES, halved) == pytest.approx(4.55, abs=1e-12)
    assert method.step_factor(FEDNOVA_SIZES, halved) == pytest.approx(2.275, abs=1e-12), "the unit of efforts cancels"


@pytest.mark.parametrize(
    ("optimizer", "steps", "mu", "expected"),
    [
        (sgd_fednova(), 5, 0.0, 5.0),
        (sgd_fednova(0.9), 5, 0.0, 13.1441),
        (sgd_fednova(0.9), 10, 0.0, 41.3810596090),
        (sgd_fednova(), 5, 1.0, 4.0951),
        (sgd_fednova(), 0, 1.0, 0.0),
    ],
)
def test_fednova_efforts_equal_the_formulas(optimizer, steps, mu, expected):
    assert distance_in_learning_rates(optimizer.param_groups[0], steps, mu) == pytest.approx(expected, abs=1e-9)


def test_fednova_effort_is_the_distance_of_sgd_along_a_constant_gradient():
    """Use momentum and a proximal term in the loss, which the momentum includes."""
    parameter = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    for _ in range(7):
        parameter.grad = -torch.ones_like(parameter) + 0.5 * parameter.detach()
        optimizer.step()
    assert distance_in_learning_rates(optimizer.param_groups[0], 7, 0.5) == pytest.approx(
        parameter.item() / 0.1, abs=1e-12
    )


def test_fednova_site_without_a_step_is_left_out():
    method, metas = FedNova(), {"a": FEDNOVA_METAS["b"] | {"size": 3}, "b": {"effort": 0.0, "steps": 0, "size": 1}}
    assert method.weights_of(None, metas) == {"a": pytest.approx(0.6), "b": 0.0}
    assert method.step_factor({"a": 3.0}, {"a": metas["a"]}) == 1.0


# ---- FedDyn


def run_feddyn(folder, name="feddyn", args=None, **options):
    return Case(REGISTRY, name, args or {}).run(folder, **options)


def test_feddyn_three_rounds_equal_the_formulas(tmp_path):
    start, mean = [], []
    for rounds in (1, 2, 3):  # each run continues the previous one
        result = run_curved(tmp_path, lambda: FedDyn(alpha=1.0), rounds)
        mean.append(result.outcome.models["global"].tensors["w"].item())
        start.append(states(tmp_path)[SERVER]["w"].item())
        if rounds == 1:
            duals = [-1.0 * states(tmp_path)[site]["kept/pending/w"].item() for site in "abc"]
    assert start == pytest.approx([0.8642308333, 1.2545932149, 1.3478714040], abs=1e-9)
    assert mean == pytest.approx([0.4321154167, 0.8433543158, 1.0956128599], abs=1e-9)
    assert duals == pytest.approx([0, -0.55462, -0.74172625], abs=1e-9)


def test_feddyn_converges_to_the_global_optimum(tmp_path):
    result = run_curved(tmp_path, lambda: FedDyn(alpha=1.0), 40)
    assert result.outcome.models["global"].tensors["w"].item() == pytest.approx(8 / 7, abs=1e-4)


def test_feddyn_by_size_converges_to_the_size_weighted_optimum():
    method = FedDyn(alpha=0.5, by_size=True)

    class Held:
        site_info = {"a": {"size": 1}, "b": {"size": 1}, "c": {"size": 4}}

        def trainable(self):
            return sorted(self.site_info)

    assert [method.alpha_of(Held(), name) for name in "abc"] == pytest.approx([1.0, 1.0, 0.25])


def test_feddyn_lost_reply_counts_neither_at_the_site_nor_at_the_server(tmp_path):
    """The mean of the sites' confirmed sums of updates equals the server's value."""

    class Lost(FedDyn):
        """The reply of site-2 in round 1 is not taken."""

        def aggregate_updates(self, server, replies):
            if server.round == 1:
                replies = Without(replies, "site-2")
            super().aggregate_updates(server, replies)

    class Without:
        def __init__(self, replies, name):
            self.replies, self.name, self.missing = replies, name, [name]
            self.meta = {site: meta for site, meta in replies.meta.items() if site != name}

        def __iter__(self):
            return ((site, tensors) for site, tensors in self.replies if site != self.name)

        def __len__(self):
            return len(self.meta)

    Case(REGISTRY, "feddyn").run(tmp_path, make_method=Lost, task=make_task("plain"), rounds=3)
    server = states(tmp_path)[SERVER]
    sums = {}
    for site in make_sites():
        held = states(tmp_path)[site]
        for name in (n.removeprefix("kept/pending/") for n in held if n.startswith("kept/pending/")):
            own = held.get(f"kept/drift/{name}", 0) + held[f"kept/pending/{name}"]
            sums[name] = sums.get(name, 0) + own / 3
    for name, total in sums.items():
        torch.testing.assert_close(server[f"kept/drift/{name}"], total, atol=1e-5, rtol=1e-4)


def test_feddyn_warns_of_a_long_sum_of_updates(tmp_path, caplog):
    run_feddyn(tmp_path, task=make_task("plain"), rounds=1)
    assert not [record for record in caplog.records if record.name == "medfl_methods.feddyn"]
    state = State({"w": torch.ones(2), "kept/drift/w": torch.full((2,), 20.0)}, {"parameters": ["w"], "replied": 1})
    server = Server("server", 2, state, make_task(), Settings(rounds=2), sites=["a"])
    FedDyn().server_update(server, {"w": torch.ones(2)}, {"w": torch.zeros(2, dtype=torch.float64)})
    assert "FedDyn's sum of updates is more than 10 times as long" in caplog.text


@pytest.mark.slow
def test_feddyn_dp_sgd_covers_both_terms(tmp_path):
    """Both terms are part of each image's loss, so they are clipped with it; g_k is the sum of noised updates."""
    pytest.importorskip("opacus")
    privacy = {"unit": "sample", "epsilon": 8.0, "delta": 1e-3, "clip": 1.0}
    result = run_feddyn(tmp_path, task=make_task("plain"), privacy=privacy, rounds=2)
    assert all(bool(tensor.isfinite().all()) for tensor in result.outcome.models["global"].tensors.values())
    with refused(SettingsError, "missing_site_sizes", setting="by_size"):
        run_feddyn(tmp_path / "sizes", args={"by_size": True}, task=make_task("plain"), privacy=privacy)


# ---- SCAFFOLD


def run_scaffold(folder, name="scaffold", args=None, **options):
    return Case(REGISTRY, name, args or {}).run(folder, **options)


def curved(folder, name, rounds, **args):
    result = run_curved(folder, lambda: REGISTRY.make_method(name, args), rounds)
    return result.outcome.models["global"].tensors["w"].item()


def test_scaffold_three_rounds_equal_the_formulas(tmp_path):
    w, c = [], []
    for rounds in (1, 2, 3):  # each run continues the previous one
        w.append(curved(tmp_path, "scaffold", rounds))
        c.append(states(tmp_path)[SERVER]["kept/control/w"].item())
        if rounds == 1:
            own = [states(tmp_path)[site]["kept/control/w"].item() for site in "abc"]
    assert w == pytest.approx([0.5257320833, 0.8185538974, 0.9758604716], abs=1e-9)
    assert c == pytest.approx([-1.0514641667, -0.5856436282, -0.3146131483], abs=1e-9)
    assert own == pytest.approx([0, -1.34464, -1.8097525], abs=1e-9)


def test_scaffold_converges_to_the_global_optimum_and_fedavg_does_not(tmp_path):
    assert curved(tmp_path / "scaffold", "scaffold", 25) == pytest.approx(8 / 7, abs=1e-6)
    assert abs(curved(tmp_path / "fedavg", "fedavg", 25, weights="uniform") - 8 / 7) > 0.05


def test_scaffold_control_variates_cover_shared_parameters_only(tmp_path):
    run_scaffold(tmp_path, norm_sync="none", rounds=1)
    names = {
        name.removeprefix("kept/control/") for name in states(tmp_path)[SERVER] if name.startswith("kept/control/")
    }
    assert names == {"body.0.weight", "body.0.bias", "head.weight", "head.bias"}


def test_scaffold_refuses_dp_sgd_and_makes_one_release_per_site_and_round(tmp_path):
    pytest.importorskip("opacus")
    privacy = {"epsilon": 8.0, "delta": 1e-3, "clip": 1.0}
    with refused(SettingsError, "method_not_supported", feature="dp_sgd", method="scaffold"):
        run_scaffold(tmp_path / "sample", task=make_task("plain"), privacy=privacy | {"unit": "sample"})
    run_scaffold(tmp_path / "site", task=make_task("plain"), privacy=privacy | {"unit": "site"})
    store = Store(tmp_path / "site" / "state" / "site-1")
    for step in store.steps():
        record = store.load(step)
        assert len(record.meta["released"]) == 1
        assert {name.split("/")[1] for name in record.tensors if name.startswith("reply/")} == {"model", "control"}


def test_scaffold_distance_covered_equals_that_of_sgd():
    parameter = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    for _ in range(7):
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    assert distance_covered(optimizer, 7)[parameter] == pytest.approx(-parameter.item(), abs=1e-12)
