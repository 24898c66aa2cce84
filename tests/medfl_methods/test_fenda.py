"""FENDA-FL and PerFCL: which body is whose, how they are joined, and the contrasts."""

import dataclasses

import pytest
import torch
from monai.bundle import ConfigParser

from medfl.contract import Model
from medfl.engine.evaluation import predictor_of
from medfl.engine.store import Store
from medfl.plugins import load_plugins
from medfl.testing.cohort import Case, bits, make_site, make_sites, make_task, states
from medfl.toolkit.fit import Fit
from medfl.types import SERVER
from medfl.utils.wire import select, tensors_equal
from medfl_methods.fenda import Fenda
from medfl_methods.perfcl import PerFCL

REGISTRY = load_plugins()


def run(folder, args=None, name="fenda", **options):
    return Case(REGISTRY, name, args or {}).run(folder, **({"rounds": 2} | options))


# ---- FENDA-FL


@pytest.mark.parametrize("join", ["concat", "sum"])
def test_only_the_common_body_travels_and_is_the_mean(tmp_path, join):
    result = run(tmp_path, {"join": join}, rounds=1)
    first, held = Fenda(join=join).task_of(make_task()).initial(7), states(tmp_path)
    assert held[SERVER].keys() == {name for name in first if name.startswith("body.")}
    replies = [Store(tmp_path / "state" / site).latest().tensors for site in make_sites()]
    shares = [size / 42 for size in (21, 13, 8)]
    for name, tensor in held[SERVER].items():
        if tensor.is_floating_point():
            mean = sum(share * reply[f"reply/model/{name}"] for share, reply in zip(shares, replies, strict=True))
            torch.testing.assert_close(tensor, first[name] + mean, atol=1e-6, rtol=1e-5)
    assert all(name.startswith("model/body.") for reply in replies for name in select(reply, "reply/"))
    assert result.outcome.models == {}
    models = {site: kinds["personal"].tensors for site, kinds in result.models.items()}
    assert all(tensors_equal(select(tensors, "body."), select(held[SERVER], "body.")) for tensors in models.values())
    assert not tensors_equal(select(models["site-1"], "head."), select(models["site-2"], "head."))


@pytest.mark.parametrize("join", ["concat", "sum"])
def test_both_bodies_begin_unlike_and_the_common_one_as_in_other_methods(join):
    begun, plain = Fenda(join=join).task_of(make_task()).initial(7), make_task().initial(7)
    assert not torch.equal(begun["own.0.weight"], begun["body.0.weight"])
    assert tensors_equal(select(begun, "body."), select(plain, "body."))


class Ones:
    """Stands for weights in a file."""

    def body_of(self, model, network):
        return {name: torch.ones_like(t) for name, t in model.state_dict().items() if name.startswith("body.")}


def test_weights_of_a_file_go_into_both_bodies():
    task = Fenda().task_of(dataclasses.replace(make_task("plain"), weights=Ones()))
    begun = task.initial(7)
    assert all(bool((begun[name] == 1).all()) == name.startswith(("own.", "body.")) for name in begun)


def test_an_own_body_stays_while_its_site_is_away(tmp_path):
    first = run(tmp_path / "first", rounds=1).models["site-2"]["personal"].tensors
    later = run(tmp_path / "later", absent=lambda site, step: site == "site-2" and step == 2)
    tensors = later.models["site-2"]["personal"].tensors
    for part in ("own.", "head."):
        assert tensors_equal(select(tensors, part), select(first, part))
    assert not tensors_equal(select(tensors, "body."), select(first, "body."))


@pytest.mark.parametrize("join", ["concat", "sum"])
def test_the_network_that_is_taken_home_is_the_one_that_was_trained(join):
    method, task = Fenda(join=join), make_task("plain")
    model = Model("plain", method.task_of(task).initial(3))
    config = method.network_config(model, {"_target_": "medfl.testing.cohort.SmallNet", "norm": False})
    network = ConfigParser({"network_def": config}).get_parsed_content("network_def").eval()
    network.load_state_dict(model.tensors)
    images, _ = make_site(4, "x").train.batch(torch.arange(4))
    features = [network.own(images), network.body(images)]
    both = torch.cat(features, 1) if join == "concat" else sum(features)
    with torch.no_grad():
        torch.testing.assert_close(network(images), network.head(both))
        torch.testing.assert_close(network(images), predictor_of(method, task, model)(images))


def test_the_cosine_is_that_of_both_features():
    own, common = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[-3.0, 0.0], [1.0, 1.0]])
    fit = Fit(None, torch.nn.Identity(), {})
    assert Fenda(cosine=2.0).term(fit, None, own, common).item() == pytest.approx(2 * (1 + 0.5**0.5) / 2)
    assert Fenda().term(fit, None, own, common) == 0


# ---- PerFCL


def test_the_contrasts_have_the_values_of_the_formulas():
    """The received body is near the common one by .75 and near the own one by .1, and so on."""
    common, own = torch.tensor([[2.0, 0.0]], dtype=torch.float64), torch.tensor([[0.0, 2.0]], dtype=torch.float64)
    received = torch.tensor([[0.75, 0.1, (1 - 0.75**2 - 0.1**2) ** 0.5]], dtype=torch.float64)
    previous = torch.tensor([[0.3, (1 - 0.3**2) ** 0.5, 0.0]], dtype=torch.float64)
    before = torch.tensor([[(1 - 0.7**2) ** 0.5, 0.7, 0.0]], dtype=torch.float64)
    pad = lambda tensor: torch.nn.functional.pad(tensor, (0, 1))  # noqa: E731
    others = [lambda batch, tensor=tensor: tensor for tensor in (received, previous, before)]
    values = []
    for mu, gamma in ((1.0, 0.0), (0.0, 1.0), (2.0, 3.0)):
        fit = Fit(None, torch.nn.Identity(), {}, {"others": others})
        values.append(PerFCL(mu=mu, gamma=gamma).term(fit, None, pad(own), pad(common)).item())
    near, far = 0.3411538747, 0.2632824673
    assert values == pytest.approx([near, far, 2 * near + 3 * far], abs=1e-9)


def test_the_first_round_has_no_term_and_the_second_has(tmp_path):
    for rounds, alike in ((1, True), (2, False)):
        with_term = bits(run(tmp_path / f"{rounds}", name="perfcl", rounds=rounds))
        without = bits(run(tmp_path / f"{rounds} without", rounds=rounds))
        assert all(tensors_equal(with_term[name], without[name]) for name in without) == alike


def test_bodies_that_stay_do_not_move_the_statistics(tmp_path):
    """At learning rate 0 batch norm sees the same batches, whether or not there is a term."""
    still = dataclasses.replace(make_task(), optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0))
    ours, plain = (bits(run(tmp_path / name, name=name, task=still)) for name in ("perfcl", "fenda"))
    assert all(tensors_equal(ours[name], plain[name]) for name in plain)


def test_the_previous_body_is_that_of_the_last_participation(tmp_path):
    run(tmp_path, name="perfcl", absent=lambda site, step: site == "site-1" and step == 2)
    first, held = PerFCL().task_of(make_task()).initial(7), states(tmp_path)
    update = select(Store(tmp_path / "state" / "site-1").latest().tensors, "reply/model/")
    previous = select(held["site-1"], "kept/previous/")
    assert previous.keys() == update.keys()
    for name, tensor in previous.items():
        torch.testing.assert_close(tensor, first[name] + update[name])
