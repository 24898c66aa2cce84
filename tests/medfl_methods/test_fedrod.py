"""FedRoD: its two losses by hand, and which part learns from which."""

import dataclasses

import pytest
import torch
from torch import nn

from medfl.contract import Site, State
from medfl.data.pooled import TensorData
from medfl.settings import Settings
from medfl.testing.cohort import make_task
from medfl.toolkit.fit import Fit
from medfl.training.loop import Batch
from medfl_methods.fedrod import FedRoD


class Given(nn.Module):
    """Puts out its three inputs."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Flatten(), nn.Linear(3, 3)
        nn.init.eye_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, images):
        return self.head(self.body(images))


def losses(z, own, counts, gamma=1.0):
    """The loss of one image of class 0 with these logits, and its gradient by the common head's bias."""
    task = dataclasses.replace(make_task(), networks={"given": Given}, network="given")
    labels = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))
    site = Site("a", 1, State(), task, Settings(rounds=1), train=TensorData(torch.zeros(len(labels), 1, 1, 3), labels))
    fit, method = Fit(site, Given(), {}), FedRoD(gamma=gamma)
    method.before_fit(fit)
    with torch.no_grad():
        fit.extra["own"].bias.copy_(torch.tensor(own))
    loss = method.loss(fit, Batch(torch.tensor([[[z]]]), torch.tensor([0]), torch.tensor([0])))
    loss.backward()
    return loss.item(), fit.model.head.bias.grad, fit.extra["own"].bias.grad


def test_both_losses_have_the_values_of_the_formulas():
    plain = losses([2.0, 0.0, 1.0], [0.0, 0.0, 0.0], [10, 0, 5], gamma=0.0)[0]
    assert plain == pytest.approx(2 * 0.4076059644, abs=1e-6)
    loss, common, own = losses([2.0, 0.0, 1.0], [0.0, 0.5, 0.0], [10, 0, 5])
    assert loss == pytest.approx(0.1688476235 + 0.4643687841, abs=1e-6)
    assert common[1] == 0  # the class that the site lacks has left the common model's softmax,
    assert own[1] > 0  # but not that of the personal one
    softmax = torch.tensor([2.0, 0.5, 1.0]).softmax(0)
    torch.testing.assert_close(own, softmax - torch.tensor([1.0, 0.0, 0.0]))


def test_at_a_site_of_one_class_the_common_model_learns_nothing():
    loss, common, _ = losses([2.0, 0.0, 1.0], [0.0, 0.0, 0.0], [4, 0, 0])
    assert loss == pytest.approx(0.4076059644, abs=1e-6)
    assert not common.any()
