"""GPFL: its losses and conditions by hand, and what of its network stays at a site."""

import pytest
import torch
from torch.nn import functional as F

from medfl.contract import Site, State
from medfl.data.pooled import TensorData
from medfl.settings import Settings
from medfl.testing.cohort import make_task
from medfl.toolkit.fit import Fit
from medfl.training.loop import Batch
from medfl_methods.gpfl import GPFL, ConditionedHead, angle_loss, magnitude_loss

V = torch.tensor([[1.0, 0.0], [0.0, 2.0]])


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
