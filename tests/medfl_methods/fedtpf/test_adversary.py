"""Critic of a site: it learns to distinguish reconstructions from images, and its state can be stored."""

import math

import pytest
import torch
from refusals import refused

from medfl.contract import Site, State
from medfl.errors import SettingsError
from medfl.settings import Settings
from medfl.task import ImageScale
from medfl.testing.cohort import make_task
from medfl.utils.wire import select, tensors_equal
from medfl_methods.fedtpf.adversary import Adversary

IMAGES = torch.rand(8, 1, 6, 6, generator=torch.Generator().manual_seed(1))
DARK = IMAGES / 4


def site(task=None, round_=1, name="site-1"):
    return Site(name, round_, State(), task or make_task(), Settings(rounds=9, seed=7))


def make(kept=None, lr=1e-2, penalty=10.0, steps=1, of=None):
    return Adversary(of or site(), kept or {}, lr, penalty, steps, 2)


def learned(adversary, batches=1):
    for _ in range(batches):
        adversary.train_critic(IMAGES, DARK)
    return adversary


def test_it_learns_which_images_are_real():
    """E[D(fake)] - E[D(real)] decreases: images score higher, so the generator's loss -E[D(fake)] is positive."""
    adversary = make()

    def margin():
        with torch.no_grad():
            return float(adversary.generator_loss(DARK) - adversary.generator_loss(IMAGES))

    before = margin()
    learned(adversary, 30)
    assert margin() > max(before, 0) + 0.01


def test_its_mean_loss_is_that_of_its_scores():
    """With a learning rate near 0 both steps have the loss E[D(fake)] - E[D(real)] of the initial critic."""
    adversary = make(lr=1e-30, steps=2)
    with torch.no_grad():
        expected = adversary.generator_loss(IMAGES) - adversary.generator_loss(DARK)
    assert learned(adversary).mean_loss() == pytest.approx(float(expected), rel=1e-5)


def test_the_penalty_keeps_its_slope_near_one():
    """Compare the mean norm of the gradient by the image after training with a large factor and without penalty."""

    def slope(penalty):
        adversary = learned(make(penalty=penalty), 60)
        images = IMAGES.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(adversary.generator_loss(images) * len(images), images)
        return float(gradient.flatten(1).norm(dim=1).mean())

    assert abs(slope(100.0) - 1) < 0.35
    assert slope(0.0) > 2


def test_what_the_generator_pays_moves_the_images_and_not_the_critic():
    """The steps of the critic do not change the generator, because its images are detached."""
    adversary = learned(make())
    before = adversary.tensors()
    share = torch.tensor(0.5, requires_grad=True)
    adversary.train_critic(IMAGES, share * IMAGES)
    assert share.grad is None
    after = adversary.tensors()
    adversary.generator_loss(share * IMAGES).backward()
    assert share.grad is not None
    assert float(share.grad.abs()) > 0
    assert tensors_equal(adversary.tensors(), after)
    assert not tensors_equal(after, before)
    assert all(not parameter.requires_grad for parameter in adversary._model.parameters())
    adversary.train_critic(IMAGES, DARK)
    assert not tensors_equal(adversary.tensors(), after), "it goes on learning afterwards"


def test_it_continues_where_it_stopped():
    """Two rounds with stored model and Adam moments give another critic than two rounds from the initial state."""
    first = learned(make())
    kept = {name: tensor.clone() for name, tensor in first.tensors().items()}
    again = make(kept)
    assert tensors_equal(again.tensors(), kept)
    points = torch.get_rng_state()
    for adversary in (first, again):
        adversary._points = torch.Generator().manual_seed(5)
        learned(adversary)
    assert torch.equal(points, torch.get_rng_state()), "the global generator is left alone"
    assert tensors_equal(first.tensors(), again.tensors())
    forgetful = make({name: tensor for name, tensor in kept.items() if "optimizer" not in name})
    forgetful._points = torch.Generator().manual_seed(5)
    assert not tensors_equal(select(learned(forgetful).tensors(), "critic/"), select(again.tensors(), "critic/"))


def test_all_is_a_function_of_seed_site_and_round():
    """Sites start with the same critic and draw different points."""
    first = make().tensors()
    assert tensors_equal(first, make(of=site(name="site-2")).tensors())
    critics = [learned(make(of=site(**options))).tensors() for options in ({}, {}, {"name": "site-2"}, {"round_": 2})]
    assert tensors_equal(critics[0], critics[1])
    assert not tensors_equal(critics[0], critics[2])
    assert not tensors_equal(critics[0], critics[3])


def test_its_optimiser_is_that_of_a_wasserstein_critic():
    """Gulrajani et al. (2017) use Adam with betas 0 and 0.9."""
    assert make(lr=0.25)._optimizer.defaults["betas"] == (0.0, 0.9)
    assert make(lr=0.25)._optimizer.defaults["lr"] == 0.25


def test_more_steps_are_more_steps():
    repeated, three = learned(make(), 3).tensors(), learned(make(steps=3)).tensors()
    assert tensors_equal(repeated, three), "the same batch three times, points from one stream"


@pytest.mark.parametrize("shape", [(3, 9, 5), (1, 8, 8, 8)])
def test_any_image_has_a_critic(shape):
    task = make_task()
    task = type(task)(**{**vars(task), "scale": ImageScale(shape)})
    adversary = make(of=site(task))
    images = torch.rand(2, *shape)
    adversary.train_critic(images, images / 2)
    assert math.isfinite(float(adversary.generator_loss(images)))


def test_images_of_unknown_or_too_small_a_size_are_refused():
    task = make_task()
    for scale, code in ((None, "missing_scale"), (ImageScale((1, 3, 3)), "image_too_small")):
        with refused(SettingsError, code):
            make(of=site(type(task)(**{**vars(task), "scale": scale})))
