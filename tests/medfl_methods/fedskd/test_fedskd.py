"""FedSKD's loss at one site: which model gets which gradients, and which weights change (O-SK-6)."""

import dataclasses

import pytest
import torch
from peer_toys import (
    REGIONS,
    REGISTRY,
    Dropping,
)
from refusals import refused

from medfl.contract import Site, State
from medfl.errors import SettingsError
from medfl.settings import Settings
from medfl.testing.cohort import make_data, make_task
from medfl.toolkit.fit import Fit
from medfl.toolkit.model_transfer import ModelInTransit
from medfl.training.loop import Batch
from medfl_methods.fedskd.regions import region_weights
from medfl_methods.fedskd.similarity import region_similarity_loss
from medfl_methods.fedskd.stages import RegionGrids, stages_loss

ALL = ("batch", "pixel", "region")


def make_method(**args):
    return REGISTRY.make_method("fedskd", args)


def begin(method, own="plain", visiting="norm", **settings):
    """Return a fit with a visiting model before the first loss, and a batch."""
    task = dataclasses.replace(make_task(own), regions=REGIONS)
    site = Site("here", 1, State(), task, Settings(rounds=1, **settings), train=make_data(8, "here"))
    fit = Fit(site, task.load(task.initial(1, own), own).train(), {})
    fit.extra["visiting_model"] = ModelInTransit("there", visiting, task.initial(2, visiting))
    method.before_fit(fit)
    return fit, Batch(*site.train.batch(torch.arange(8)), torch.arange(8))


def gradients(loss, model):
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    slopes = torch.autograd.grad(loss, list(parameters.values()), retain_graph=True, allow_unused=True)
    return {name: None if g is None else g.clone() for name, g in zip(parameters, slopes, strict=True)}


def visiting_of(fit):
    return fit.extra["pair"].visiting.model


@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_the_visiting_models_error_teaches_only_the_visiting_model(gamma):
    method = make_method(gamma=gamma)
    fit, batch = begin(method)
    ce = fit.site.task.loss(fit.extra["pair"].visiting(batch.images), batch.targets)
    assert set(gradients(ce, fit.model).values()) == {None}
    assert set(gradients(fit.task_loss(batch), visiting_of(fit)).values()) == {None}


@pytest.mark.parametrize(("detach", "own_taught", "visiting_taught"), [("none", 1, 1), ("ktm", 1, 0), ("dam", 0, 1)])
@pytest.mark.parametrize("form", ALL)
def test_the_similarity_loss_teaches_both_unless_it_is_detached(form, detach, own_taught, visiting_taught):
    method = make_method(skd=(form,), skd_detach=detach, gamma=10.0)
    fit, batch = begin(method)
    total = method.loss(fit, batch)
    ce_own = fit.task_loss(batch)
    ce_visiting = fit.site.task.loss(visiting_of(fit)(batch.images), batch.targets)
    for model, ce, taught in ((fit.model, ce_own, own_taught), (visiting_of(fit), ce_visiting, visiting_taught)):
        whole, alone = gradients(total, model), gradients(ce, model)
        same = [torch.allclose(whole[name], alone[name], atol=1e-7) for name in whole if name.startswith("body.0")]
        assert all(same) != bool(taught), (form, detach)


def test_the_loss_is_both_errors_and_gamma_times_the_similarity():
    method = make_method(gamma=3.0, skd=ALL)
    fit, batch = begin(method)
    total = method.loss(fit, batch)
    pair = fit.extra["pair"]
    alike = method.similarity(pair.own_features, pair.visiting_features, RegionGrids(REGIONS, "soft"))
    ce = fit.task_loss(batch) + fit.site.task.loss(visiting_of(fit)(batch.images), batch.targets)
    torch.testing.assert_close(total, ce + 3.0 * alike)
    assert 0 < float(alike.detach()) <= 3 * 4


def test_class_weights_are_those_of_the_host_for_both_models():
    """Compute equation 1 by hand: sum of w_y times the error, over the sum of w_y, with w_c = n / (K n_c)."""
    method = make_method(gamma=0.0)
    fit, batch = begin(method)
    labels = torch.tensor([0, 0, 0, 0, 0, 0, 1, 2])
    fit.site.task = fit.site.task.with_class_weights(labels)
    batch = dataclasses.replace(batch, targets=labels)
    weights = torch.tensor([8 / 18, 8 / 3, 8 / 3])[labels]
    expected = 0.0
    for model in (fit.model, visiting_of(fit)):
        errors = -model(batch.images).log_softmax(1)[torch.arange(8), labels]
        expected = expected + (weights * errors).sum() / weights.sum()
    torch.testing.assert_close(method.loss(fit, batch), expected)


@pytest.mark.parametrize("frozen", [True, False])
def test_sk_6_only_the_visiting_models_head_stays(frozen):
    """Gradients pass through the frozen head, so the body before it is trained."""
    method = make_method(gamma=0.0, freeze_ktm_header=frozen)
    fit, batch = begin(method)
    before = {name: tensor.clone() for name, tensor in visiting_of(fit).state_dict().items()}
    method.loss(fit, batch).backward()
    method.after_batch(fit)
    after = visiting_of(fit).state_dict()
    moved = {name for name in after if not torch.equal(after[name], before[name])}
    heads = {"head.weight", "head.bias"}
    assert moved >= {"body.0.weight", "body.1.weight", "body.1.running_mean", "body.1.num_batches_tracked"}
    assert moved & heads == (set() if frozen else heads)


def test_the_visiting_model_steps_once_for_each_batch():
    """The gradient of the visiting model is the gradient of one batch, not a sum over batches."""
    method = make_method(gamma=0.0)
    fit, batch = begin(method)
    for _ in range(2):
        method.loss(fit, batch).backward()
        method.after_batch(fit)
        fit.count_step()  # the training loop does so after the optimiser's step
        assert all(parameter.grad is None for parameter in visiting_of(fit).parameters())


def test_a_long_gradient_of_the_visiting_model_is_scaled_down():
    method = make_method(gamma=0.0, gradient_clip=0.25)
    fit, batch = begin(method)
    before = [parameter.detach().clone() for parameter in visiting_of(fit).parameters()]
    method.loss(fit, batch).backward()
    method.after_batch(fit)
    after = visiting_of(fit).parameters()
    moved = sum((new - old).square().sum() for new, old in zip(after, before, strict=True)).sqrt()
    assert float(moved.detach()) == pytest.approx(0.1 * 0.25, rel=1e-4), "the first step of SGD at rate 0.1"


def test_the_visiting_model_leaves_the_global_stream_alone():
    """The visiting model's dropout has its own stream, which continues over batches and depends on site and round."""
    task = dataclasses.replace(make_task(), networks={"norm": Dropping})
    site = Site("here", 1, State(), task, Settings(rounds=1), train=make_data(8, "here"))
    method, images = make_method(gamma=0.0), make_data(8, "here").images

    def answers():
        fit = Fit(
            site,
            task.load(task.initial(1)).train(),
            {},
            {"visiting_model": ModelInTransit("t", "norm", task.initial(2))},
        )
        method.before_fit(fit)
        before = torch.get_rng_state()
        outputs = [fit.extra["pair"].visiting(images) for _ in range(2)]
        assert torch.equal(torch.get_rng_state(), before)
        return outputs

    first, second = answers()
    assert not torch.equal(first, second)
    torch.rand(3)
    assert all(torch.equal(*pair) for pair in zip((first, second), answers(), strict=True))


def test_frozen_norms_are_frozen_in_the_visiting_model_too():
    fit, batch = begin(make_method(gamma=0.0), norm_sync="frozen")
    before = visiting_of(fit).body[1].running_mean.clone()
    fit.extra["pair"].visiting(batch.images)
    assert torch.equal(visiting_of(fit).body[1].running_mean, before)


def test_a_visiting_model_with_batch_norm_sits_out_a_batch_of_one():
    method = make_method()
    fit, batch = begin(method, own="plain", visiting="norm")
    single = Batch(batch.images[:1], batch.targets[:1], batch.rows[:1])
    torch.testing.assert_close(method.loss(fit, single), fit.task_loss(single))
    other, _ = begin(method, own="plain", visiting="plain")
    assert float(method.loss(other, single).detach()) > float(other.task_loss(single).detach()), (
        "without, it takes part"
    )


def test_the_means_of_the_losses_are_noted():
    method = make_method()
    fit, batch = begin(method)
    noted = []
    for size in (5, 3):
        part = Batch(batch.images[:size], batch.targets[:size], batch.rows[:size])
        method.loss(fit, part)
        pair = fit.extra["pair"]
        alike = method.similarity(pair.own_features, pair.visiting_features, None)
        noted.append(float(alike.detach()))
    method.after_fit(fit)
    assert fit.log["similarity"] == pytest.approx((5 * noted[0] + 3 * noted[1]) / 8, rel=1e-5)
    assert fit.log["visiting_loss"] > 0
    assert pair.own_features == []
    fit.model(batch.images)
    assert pair.own_features == [], "nothing is watched any more"


def test_stages_without_space_are_compared_by_the_batch_form_only():
    method = make_method(skd=ALL)
    fit, batch = begin(method)
    method.loss(fit, batch)
    own, visiting = fit.extra["pair"].own_features, fit.extra["pair"].visiting_features
    assert [feature.dim() for feature in own] == [4, 2]

    def value(form, numbers):
        alone = make_method(skd=(form,))
        return alone.similarity([own[n] for n in numbers], [visiting[n] for n in numbers], RegionGrids(REGIONS, "soft"))

    expected = (value("batch", [0]) + value("batch", [1])) / 2 + value("pixel", [0]) + value("region", [0])
    torch.testing.assert_close(method.similarity(own, visiting, RegionGrids(REGIONS, "soft")), expected)


@pytest.mark.parametrize("layers", [(1,), (2,), (2, 1)])
def test_layers_chooses_stages(layers):
    method = make_method(skd=("batch",), layers=layers)
    fit, batch = begin(method)
    method.loss(fit, batch)
    assert [feature.dim() for feature in fit.extra["pair"].own_features] == [{1: 4, 2: 2}[n] for n in layers]


def test_regions_that_moved_with_the_images_win_over_the_tasks():
    method = make_method(skd=("region",), gamma=1.0)
    fit, batch = begin(method, visiting="plain")
    plain = method.loss(fit, batch)
    same = method.loss(fit, dataclasses.replace(batch, regions=REGIONS.expand(8, 6, 6)))
    torch.testing.assert_close(same, plain)
    turned = method.loss(fit, dataclasses.replace(batch, regions=REGIONS.T.expand(8, 6, 6)))
    assert abs(float((turned - plain).detach())) > 1e-4


@pytest.mark.parametrize("mode", ["soft", "nearest"])
def test_maps_of_unlike_sizes_take_the_regions_of_the_images(mode):
    """Maps of different sizes use weights on the images' grid. Maps of the same size use weights on their own grid."""
    rng = torch.Generator().manual_seed(0)
    small, large, other = (torch.randn(4, 3, n, n, generator=rng) for n in (3, 6, 3))
    loss = stages_loss([small], [large], ["region"], RegionGrids(REGIONS, mode))
    torch.testing.assert_close(loss, region_similarity_loss(small, large, region_weights(REGIONS, (6, 6))))
    loss = stages_loss([small], [other], ["region"], RegionGrids(REGIONS, mode))
    torch.testing.assert_close(loss, region_similarity_loss(small, other, region_weights(REGIONS, (3, 3), mode)))


@pytest.mark.parametrize(("layers", "form"), [((2,), "pixel"), ((1, 2), "region"), ((2,), "region")])
def test_a_named_stage_without_space_is_refused(layers, form):
    method = make_method(skd=("batch", form), layers=layers)
    fit, batch = begin(method)
    with refused(SettingsError, "stage_not_supported", kind=form, stages=[2]):
        method.loss(fit, batch)
