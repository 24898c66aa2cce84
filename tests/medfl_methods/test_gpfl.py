"""GPFL: its losses and conditions by hand, and what of its network stays at a site."""

import pytest
import torch
from monai.bundle import ConfigParser
from torch.nn import functional as F

from medfl.contract import Model, Site, State
from medfl.data.pooled import TensorData
from medfl.engine.evaluation import predictor_of
from medfl.engine.store import Store
from medfl.plugins import load_plugins
from medfl.settings import Settings
from medfl.testing.cohort import CLASSES, Case, SmallNet, make_site, make_sites, make_task, states
from medfl.toolkit.fit import Fit
from medfl.training.loop import Batch
from medfl.types import SERVER
from medfl.utils.wire import select, tensors_equal
from medfl_methods.gpfl import GPFL, ConditionedHead, angle_loss, conditioned, magnitude_loss

REGISTRY = load_plugins()
V = torch.tensor([[1.0, 0.0], [0.0, 2.0]])


def run(folder, args=None, name="gpfl", **options):
    return Case(REGISTRY, name, args or {}).run(folder, **({"rounds": 2} | options))


# ---- the terms


@pytest.mark.parametrize(("label", "loss"), [(0, 0.7981388694), (1, 0.5981388694)])
def test_the_angle_loss_is_the_cross_entropy_of_cosines(label, loss):
    assert angle_loss(torch.tensor([[3.0, 4.0]]), V, torch.tensor([label])).item() == pytest.approx(loss, abs=1e-6)


@pytest.mark.parametrize(("kind", "loss"), [("batch", 4.5825756950), ("mean_square", 10.5)])
def test_the_distance_is_of_the_batch_or_a_mean_of_squares(kind, loss):
    features, labels = torch.tensor([[3.0, 4.0], [1.0, 2.0]]), torch.tensor([0, 1])
    assert magnitude_loss(features, V[labels], kind).item() == pytest.approx(loss, abs=1e-6)


def fit_of(args=None, labels=(0, 1, 1, 1), network="plain"):
    """The begin of a training, and a batch of all images; embeddings are V, in the first two features."""
    task = GPFL(**(args or {})).task_of(make_task(network))
    images = torch.randn(len(labels), 1, 6, 6, generator=torch.Generator().manual_seed(1))
    data = TensorData(images, torch.tensor(labels))
    fit, method = Fit(Site("a", 1, State(), task, Settings(rounds=1), train=data), task.build(), {}), GPFL(**args or {})
    with torch.no_grad():
        fit.model.head.embeddings.copy_(F.pad(V, (0, 22, 0, 1)))
    method.before_fit(fit)
    return method, fit, Batch(images, torch.tensor(labels), torch.arange(len(labels)))


def test_conditions_are_means_of_the_received_embeddings():
    _, fit, _ = fit_of()
    assert fit.model.head.class_shares.tolist() == [0.25, 0.75, 0.0]
    assert fit.extra["own"][:2].tolist() == [0.25, 1.5]
    assert fit.extra["common"][:2].tolist() == pytest.approx([1 / 3, 2 / 3])
    two = ConditionedHead(2, 2, torch.nn.Identity())
    assert (two.class_shares @ V).tolist() == [0.5, 1.0]  # of a site that has not trained yet


def test_the_loss_is_the_sum_of_its_terms_and_the_embeddings_that_are_aimed_at_stay():
    method, fit, batch = fit_of({"lam": 0.3, "mu": 0.2})
    head = fit.model.head
    with torch.no_grad():
        head.embeddings += 1  # a step of the optimiser
        features = fit.model.body(batch.images)
        own, common = (head.valve(features, fit.extra[name]) for name in ("own", "common"))
        linear, relu, norm = head.scale
        scale = norm(relu(linear(fit.extra["own"])))
        linear, relu, norm = head.shift
        torch.testing.assert_close(own, ((scale + 1) * features + norm(relu(linear(fit.extra["own"])))).clamp(min=0))
        expected = F.cross_entropy(head.own(own), batch.targets)
        cosines = torch.stack([F.cosine_similarity(common, v.expand_as(common)) for v in head.embeddings], 1)
        expected = expected + F.cross_entropy(cosines, batch.targets)
        expected = expected + 0.3 * (common - F.pad(V, (0, 22))[batch.targets]).square().sum().sqrt()
        decayed = [head.embeddings, *head.scale.parameters(), *head.shift.parameters()]
        expected = expected + 0.1 * sum(p.square().sum() for p in decayed)
    torch.testing.assert_close(method.loss(fit, batch), expected)


# ---- a run


def test_all_but_the_own_head_travels_and_is_the_mean(tmp_path):
    result = run(tmp_path, rounds=1)
    first, held = GPFL().task_of(make_task()).initial(7), states(tmp_path)
    own = {"head.own.weight", "head.own.bias", "head.class_shares"}
    assert held[SERVER].keys() == first.keys() - own
    replies = [Store(tmp_path / "state" / site).latest().tensors for site in make_sites()]
    weights = [size / 42 for size in (21, 13, 8)]
    for name in ("head.embeddings", "head.scale.0.weight", "body.0.weight"):
        mean = sum(weight * reply[f"reply/model/{name}"] for weight, reply in zip(weights, replies, strict=True))
        torch.testing.assert_close(held[SERVER][name], first[name] + mean, atol=1e-6, rtol=1e-5)
    assert not [name for reply in replies for name in select(reply, "reply/model/") if name in own]
    assert result.outcome.models == {}
    for site, data in make_sites().items():
        model, labels = result.models[site]["personal"].tensors, data.train.class_labels
        torch.testing.assert_close(model["head.class_shares"], torch.bincount(labels, minlength=3) / len(labels))
        assert torch.equal(model["head.embeddings"], held[SERVER]["head.embeddings"])
    assert not tensors_equal(*(select(result.models[f"site-{n}"]["personal"].tensors, "head.own.") for n in (1, 2)))


def test_an_own_head_stays_while_its_site_is_away(tmp_path):
    first = run(tmp_path / "first", rounds=1).models["site-2"]["personal"].tensors
    later = run(tmp_path / "later", absent=lambda site, step: site == "site-2" and step == 2)
    tensors = later.models["site-2"]["personal"].tensors
    assert tensors_equal(select(tensors, "head.own."), select(first, "head.own."))
    assert not torch.equal(tensors["head.embeddings"], first["head.embeddings"])


def test_the_rest_of_a_network_begins_as_in_other_methods():
    begun, plain = GPFL().task_of(make_task()).initial(7), make_task().initial(7)
    assert tensors_equal(select(begun, "body."), select(plain, "body."))
    assert tensors_equal(select(begun, "head.own."), select(plain, "head."))


def test_the_network_that_is_taken_home_is_the_one_that_was_trained():
    method, task = GPFL(), make_task("plain")
    model = Model("plain", method.task_of(task).initial(3))
    config = method.network_config(model, {"_target_": "medfl.testing.cohort.SmallNet", "norm": False})
    network = ConfigParser({"network_def": config}).get_parsed_content("network_def").eval()
    network.load_state_dict(model.tensors)
    images, _ = make_site(4, "x").train.batch(torch.arange(4))
    with torch.no_grad():
        torch.testing.assert_close(network(images), predictor_of(method, task, model)(images))
        scripted = torch.jit.script(conditioned(SmallNet(norm=False), CLASSES).head)
    assert scripted(torch.zeros(2, 24)).shape == (2, CLASSES)
