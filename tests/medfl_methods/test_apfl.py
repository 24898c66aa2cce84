"""APFL against closed forms and a plain loop, and the methods that it is at its limits."""

import pytest
import torch
from quadratic_toys import QUADRATIC, quadratic_sites
from torch.nn import functional as F

from medfl.contract import Order, Site, State
from medfl.engine.store import Store
from medfl.plugins import load_plugins
from medfl.settings import Settings
from medfl.testing.cohort import Case, make_sites, make_task
from medfl.toolkit.kept import keep, kept
from medfl.utils.rng import make_generator
from medfl.utils.wire import select, tensors_equal
from medfl_methods.apfl import APFL, MIXED, OWN

REGISTRY = load_plugins()


def run(folder, args=None, name="apfl", **options):
    return Case(REGISTRY, name, args or {}).run(folder, **options)


def scalar(w, v, epochs, **args):
    """A site whose images have the value 4 after a training."""
    site = Site("c", 1, State(), QUADRATIC, Settings(rounds=1, epochs=epochs))
    site.train = quadratic_sites()["c"].train
    keep(site, OWN, {"w": torch.tensor(v, dtype=torch.float64)})
    reply = APFL(**args).train(site, Order("c", "fit", {"model/w": torch.tensor(w, dtype=torch.float64)}))
    return site, w + reply.tensors["model/w"].item()


def test_five_steps_have_the_values_of_the_formulas():
    site, w = scalar(0.0, 0.0, 5, alpha=0.5, adaptive=False)
    assert w == pytest.approx(1.63804, abs=1e-9)
    assert kept(site, OWN)["w"].item() == pytest.approx(0.8630914844, abs=1e-9)
    assert kept(site, MIXED)["w"].item() == pytest.approx(1.2505657422, abs=1e-9)


def test_alpha_takes_one_step_a_round():
    for epochs in (1, 3):
        site, _ = scalar(1.0, 3.0, epochs, alpha=0.5)
        assert site.state.meta["alpha"] == pytest.approx(0.9)  # 0.5 - 0.1 <3 - 1, 2 - 4>
    assert scalar(1.0, 3.0, 1, alpha=0.5, adaptive=False)[0].state.meta["alpha"] == 0.5
    assert scalar(1.0, -30.0, 1, alpha=0.5)[0].state.meta["alpha"] == 0.0


@pytest.mark.parametrize("network", ["norm", "plain"])
def test_the_common_model_is_that_of_fedavg_and_alpha_1_is_local(tmp_path, network):
    task = make_task(network)
    ours = run(tmp_path / "apfl", {"alpha": 1.0, "adaptive": False}, task=task)
    fedavg, local = (run(tmp_path / name, name=name, task=task) for name in ("fedavg", "local"))
    assert tensors_equal(ours.outcome.models["global"].tensors, fedavg.outcome.models["global"].tensors)
    for site in make_sites():
        assert tensors_equal(ours.models[site]["personal"].tensors, local.models[site]["personal"].tensors)


def test_with_alpha_0_the_mixture_is_what_the_site_trained_for_all(tmp_path):
    result = run(tmp_path, {"alpha": 0.0, "adaptive": False}, task=make_task("plain"), rounds=1)
    first = make_task("plain").initial(7)
    for site in make_sites():
        update = select(Store(tmp_path / "state" / site).latest().tensors, "reply/model/")
        for name, tensor in result.models[site]["personal"].tensors.items():
            torch.testing.assert_close(tensor, first[name] + update[name])


def test_it_is_the_loop_of_the_paper(tmp_path):
    """Two rounds with momentum; v and alpha go on, both optimisers start anew."""
    sites, task = make_sites(), make_task("plain")
    result = run(tmp_path, {"alpha": 0.3}, task=task, rounds=2, batch_size=7)
    common = task.initial(7)
    own, alphas, mixed = dict.fromkeys(sites, common), dict.fromkeys(sites, 0.3), {}
    total = sum(len(splits.train) for splits in sites.values())
    for round_ in (1, 2):
        ends = []
        for site, splits in sites.items():
            w, v, alpha, data = dict(common), dict(own[site]), alphas[site], splits.train
            speeds = [{name: torch.zeros_like(t) for name, t in common.items()} for _ in range(2)]
            stream = make_generator(7, site, round_, "batches")
            for number, rows in enumerate(torch.randperm(len(data), generator=stream).split(7)):
                both = {name: alpha * v[name] + (1 - alpha) * w[name] for name in w}
                gradients = [gradients_at(task, tensors, *data.batch(rows)) for tensors in (w, both)]
                slope = sum(((v[name] - w[name]) * gradients[1][name]).sum().item() for name in w)
                step = alpha
                if number == 0:
                    alpha = min(max(alpha - 0.1 * slope, 0), 1)
                for name in w:
                    speeds[0][name] = 0.9 * speeds[0][name] + gradients[0][name]
                    speeds[1][name] = 0.9 * speeds[1][name] + step * gradients[1][name]
                w = {name: w[name] - 0.1 * speeds[0][name] for name in w}
                v = {name: v[name] - 0.1 * speeds[1][name] for name in v}
            own[site], alphas[site] = v, alpha
            mixed[site] = {name: alpha * v[name] + (1 - alpha) * w[name] for name in w}
            ends.append((len(data) / total, w))
        common = {name: sum(share * w[name] for share, w in ends) for name in common}
    assert len(set(alphas.values())) == 3
    for site in sites:
        assert Store(tmp_path / "state" / site).latest().state().meta["alpha"] == pytest.approx(alphas[site], abs=1e-5)
        for name, tensor in mixed[site].items():
            torch.testing.assert_close(result.models[site]["personal"].tensors[name], tensor, atol=1e-5, rtol=1e-4)


def gradients_at(task, tensors, images, labels):
    """Of the cross entropy by each parameter."""
    model = task.build()
    model.load_state_dict(tensors)
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(F.cross_entropy(model(images), labels), parameters), strict=True))
