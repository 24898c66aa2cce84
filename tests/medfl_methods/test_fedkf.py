"""FedKF: the generator's loss, the teacher of all sites, and what a generator leaves alone."""

import pytest
import torch
from torch.nn import functional as F

from medfl.networks.norms import evaluating
from medfl.testing.cohort import make_task
from medfl_methods.fedkf.generator import Generator, generator_loss, imbalance


def test_imbalance_is_0_for_all_classes_alike_and_1_for_a_single_class():
    assert float(imbalance(torch.full((5, 4), 0.25))) == pytest.approx(0, abs=1e-6)
    assert float(imbalance(torch.eye(4))) == pytest.approx(0, abs=1e-6), "each image sure, all classes alike"
    single = torch.tensor([[0.0, 1.0, 0.0]] * 3, requires_grad=True)
    value = imbalance(single)
    assert float(value.detach()) == 1.0  # 0 log 0 is 0


def test_the_generators_loss_is_that_of_the_formula():
    logits, features = torch.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, 0.0]]), torch.tensor([[1.0, -3.0], [0.0, 2.0]])
    p = logits.softmax(1).mean(0)
    expected = 1 + (p * p.log()).sum() / torch.tensor(3.0).log()
    expected = expected + 0.1 * F.cross_entropy(logits, torch.tensor([0, 1])) - 0.2 * 1.5
    torch.testing.assert_close(generator_loss(logits, features, 0.1, 0.2), expected)


@pytest.mark.parametrize("shape", [(1, 6, 6), (3, 9, 5), (1, 4, 5, 6)])
def test_images_have_the_shape_of_the_task(shape):
    images = Generator(shape, 7, 3)(torch.randn(2, 7))
    assert images.shape == (2, *shape)
    assert float(images.mean().detach()) == pytest.approx(0, abs=1e-5)
    assert Generator(shape, 7, 3)(torch.randn(1, 7)).shape == (1, *shape)


def test_modes_come_back_as_they_were():
    model = make_task().build().train()
    model.body[1].eval()
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert model.training
    assert not model.body[1].training
