"""Per-FedAvg against closed forms and a plain loop; what moves running statistics, and what a site ends with."""

import pytest
import torch
from quadratic_toys import CURVED, CURVED_TASK, one_image, run_curved
from torch.nn import functional as F

from medfl.contract import Order, Site, State
from medfl.plugins import load_plugins
from medfl.settings import Settings
from medfl.testing.cohort import Case, make_sites, make_task
from medfl.utils.rng import make_generator
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


def test_by_default_the_runs_optimiser_takes_the_steps(tmp_path):
    """With alpha 0, on whole sites as second batches, it is FedAvg with the run's rate and momentum."""
    task, sites = make_task("plain"), make_sites({"a": 3, "b": 3})  # groups this small are all of them at once
    options = {"task": task, "sites": sites, "rounds": 2, "epochs": 3, "batch_size": 3}
    ours = Case(REGISTRY, "per_fedavg", {"alpha": 0.0}).run(tmp_path / "ours", **options)
    plain = Case(REGISTRY, "fedavg", {"weights": "uniform"}).run(tmp_path / "plain", **options)
    for name, tensor in plain.outcome.models["global"].tensors.items():
        torch.testing.assert_close(ours.outcome.models["global"].tensors[name], tensor, atol=1e-6, rtol=1e-5)
    paper = REGISTRY.make_method("per_fedavg", {"preset": "paper"})
    assert (paper.alpha, paper.beta) == (0.01, 0.001)


@pytest.mark.parametrize("alpha", [0.0, 0.2])
def test_first_order_rounds_are_a_plain_loop_on_pairs_of_batches(tmp_path, alpha):
    sites, task = make_sites({"a": 20, "b": 13}), make_task("plain")
    args = {"alpha": alpha, "beta": 0.1}
    result = Case(REGISTRY, "per_fedavg", args).run(tmp_path, task=task, sites=sites, rounds=2)
    w = task.initial(7)
    for round_ in (1, 2):
        ends = []
        for site, splits in sites.items():
            y, data = {name: tensor.clone() for name, tensor in w.items()}, splits.train
            stream = make_generator(7, site, round_, "batches")
            for group in torch.randperm(len(data), generator=stream).split(10):
                pair = group.tensor_split(2) if len(group) >= 4 else (group, group)
                inner = gradients_at(task, y, *data.batch(pair[0]))
                ahead = {name: y[name] - alpha * inner[name] for name in y}
                outer = gradients_at(task, ahead, *data.batch(pair[1]))
                y = {name: y[name] - 0.1 * outer[name] for name in y}
            ends.append(y)
        w = {name: (ends[0][name] + ends[1][name]) / 2 for name in w}
    for name, tensor in w.items():
        torch.testing.assert_close(result.outcome.models["global"].tensors[name], tensor, atol=1e-6, rtol=1e-5)
    for site, splits in sites.items():
        slopes = gradients_at(task, w, *splits.train.batch(torch.arange(len(splits.train))))
        for name, tensor in result.models[site]["personal"].tensors.items():
            torch.testing.assert_close(tensor, w[name] - alpha * slopes[name], atol=1e-6, rtol=1e-5)


def gradients_at(task, tensors, images, labels):
    """Of the cross entropy by each parameter."""
    model = task.build()
    model.load_state_dict(tensors)
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(F.cross_entropy(model(images), labels), parameters), strict=True))


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
