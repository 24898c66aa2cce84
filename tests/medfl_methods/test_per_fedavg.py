"""Per-FedAvg against closed forms and a plain loop; what moves running statistics, and what a site ends with."""

import pytest
import torch
from quadratic_toys import CURVED, CURVED_TASK, one_image, run_curved

from medfl.contract import Order, Site, State
from medfl.plugins import load_plugins
from medfl.settings import Settings
from medfl.testing.cohort import Case, make_sites
from medfl_methods.per_fedavg import PerFedAvg

REGISTRY = load_plugins()


@pytest.mark.parametrize(("order", "expected"), [("fo", 0.08), ("hf", 0.064)])
def test_a_step_has_the_value_of_the_formula(order, expected):
    site = Site("a", 1, State(), CURVED_TASK, Settings(rounds=1, epochs=1), train=one_image(1.0, 2.0))
    received = {"model/w": torch.zeros((), dtype=torch.float64)}
    reply = PerFedAvg(alpha=0.1, beta=0.05, order=order).train(site, Order("a", "fit", received))
    assert reply.tensors["model/w"].item() == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize(
    ("order", "expected"),
    [("fo", (0.4819080288, 0.7752711607, 0.9538569529)), ("hf", (0.4401554526, 0.7267733817, 0.9134116178))],
)
def test_three_rounds_have_the_values_of_the_formulas(tmp_path, order, expected):
    make_method = lambda: REGISTRY.make_method("per_fedavg", {"alpha": 0.1, "beta": 0.1, "order": order})  # noqa: E731
    for rounds, value in enumerate(expected, 1):  # each continues the one before
        result = run_curved(tmp_path, make_method, rounds)
        w = result.outcome.models["global"].tensors["w"].item()
        assert w == pytest.approx(value, abs=1e-9)
    for name, (m, a) in CURVED.items():
        own = result.models[name]["personal"].tensors["w"].item()
        assert own == pytest.approx(w - 0.1 * a * (w - m), abs=1e-9)


@pytest.mark.parametrize("order", ["fo", "hf"])
def test_only_second_batches_move_running_statistics(tmp_path, order):
    """One look at the images of each group, whatever else is computed."""
    args, groups = {"order": order}, {"fo": 2, "hf": 2}
    result = Case(REGISTRY, "per_fedavg", args).run(tmp_path, rounds=1, sites=make_sites({"a": 20}))
    tensors = result.outcome.models["global"].tensors
    assert tensors["body.1.num_batches_tracked"].item() == groups[order]
    personal = result.models["a"]["personal"].tensors
    for name in ("body.1.running_mean", "body.1.num_batches_tracked"):
        assert torch.equal(personal[name], tensors[name])
