"""LG-FedAvg: bodies stay, heads are averaged."""

import pytest
import torch

from medfl.engine.store import Store
from medfl.plugins import load_plugins
from medfl.testing.cohort import Case, make_sites, make_task, states
from medfl.types import SERVER
from medfl.utils.wire import select, tensors_equal

REGISTRY = load_plugins()


def run(folder, args=None, name="lg_fedavg", **options):
    return Case(REGISTRY, name, args or {}).run(folder, **({"rounds": 2} | options))


@pytest.mark.parametrize(("weights", "shares"), [("size", (21 / 42, 13 / 42, 8 / 42)), ("uniform", (1 / 3,) * 3)])
def test_the_head_is_the_mean_of_those_that_sites_trained(tmp_path, weights, shares):
    run(tmp_path, {"weights": weights}, rounds=1)
    first, mean = make_task().initial(7), states(tmp_path)[SERVER]
    assert set(mean) == {"head.weight", "head.bias"}
    replies = [Store(tmp_path / "state" / site).latest().tensors for site in make_sites()]
    for name, tensor in mean.items():
        trained = [first[name] + reply[f"reply/model/{name}"] for reply in replies]
        expected = sum(share * head for share, head in zip(shares, trained, strict=True))
        torch.testing.assert_close(tensor, expected, atol=1e-6, rtol=1e-5)
    assert all(name.startswith("model/head.") for reply in replies for name in select(reply, "reply/"))


def test_a_body_changes_by_its_own_training_alone(tmp_path):
    """It is not touched where its site is away, and in the first round it is that of local training."""
    for name in ("lg_fedavg", "local"):
        result = run(tmp_path / name, name=name, rounds=1)
        bodies = {site: select(models["personal"].tensors, "body.") for site, models in result.models.items()}
        if name == "lg_fedavg":
            ours = bodies
    assert all(tensors_equal(ours[site], bodies[site]) for site in make_sites())
    later = run(tmp_path / "away", absent=lambda site, step: site == "site-2" and step == 2)
    assert tensors_equal(select(later.models["site-2"]["personal"].tensors, "body."), ours["site-2"])
    assert not tensors_equal(select(later.models["site-1"]["personal"].tensors, "body."), ours["site-1"])
    heads = [select(models["personal"].tensors, "head.") for models in later.models.values()]
    assert tensors_equal(heads[0], heads[1])
    assert later.outcome.models == {}
