"""Tests of tasks: optimisers for other networks, and initial tensors."""

from dataclasses import replace

import pytest
import torch
from refusals import refused
from torch import nn

from medfl.errors import SettingsError
from medfl.objectives import Multiclass
from medfl.task import Task, optimizer_factory, suits_channels_last
from medfl.testing.cohort import SmallNet, make_task
from medfl.utils.wire import tensors_equal


def parameters():
    return [nn.Parameter(torch.ones(2))]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.SGD, {"lr": 0.03, "momentum": 0.8, "nesterov": True, "weight_decay": 1e-4}),
        (torch.optim.Adam, {"lr": 0.02, "betas": (0.7, 0.95), "eps": 1e-5, "amsgrad": True}),
        (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.3}),
        (torch.optim.RMSprop, {"lr": 0.01, "alpha": 0.9}),
    ],
)
def test_the_class_and_every_option_are_carried(kind, options):
    old, mine = kind(parameters(), **options), parameters()
    new = optimizer_factory(old)(mine)
    assert type(new) is kind
    assert new is not old
    assert new.param_groups[0]["params"][0] is mine[0]
    assert new.defaults == old.defaults
    assert {name: new.param_groups[0][name] for name in options} == options


def test_the_new_optimiser_steps_as_the_old_one():
    left, right = parameters(), parameters()
    old = torch.optim.AdamW(left, lr=0.1, weight_decay=0.2)
    new = optimizer_factory(old)(right)
    for optimizer, values in ((old, left), (new, right)):
        for _ in range(3):
            optimizer.zero_grad()
            (values[0] ** 2).sum().backward()
            optimizer.step()
    assert torch.equal(left[0], right[0])


def test_options_of_the_group_win_over_defaults():
    old = torch.optim.SGD([{"params": parameters(), "lr": 0.5}], lr=0.1, momentum=0.9)
    group = optimizer_factory(old)(parameters()).param_groups[0]
    assert (group["lr"], group["momentum"]) == (0.5, 0.9)


def test_several_groups_are_refused():
    groups = [{"params": parameters(), "lr": 0.1}, {"params": parameters(), "lr": 0.2}]
    with refused(SettingsError, "several_parameter_groups", expected=1, found=2):
        optimizer_factory(torch.optim.SGD(groups))


def test_a_generator_of_parameters_will_do():
    model = nn.Linear(2, 2)
    new = optimizer_factory(torch.optim.SGD(parameters(), lr=0.1))(p for p in model.parameters() if p.requires_grad)
    assert len(new.param_groups[0]["params"]) == 2


# ---- initial tensors


def test_initial_tensors_are_a_function_of_seed_network_and_owner():
    task = make_task()
    start = task.initial(3)
    torch.manual_seed(99)
    assert tensors_equal(start, task.initial(3))
    assert tensors_equal(start, task.initial(3, "norm"))
    for other in (task.initial(4), task.initial(3, owner="site-1"), task.initial(3, owner="site-2")):
        assert not tensors_equal(start, other)
        assert start.keys() == other.keys()
    same_shapes = make_task().networks | {"again": SmallNet}
    task = type(task)(same_shapes, "norm", task.loss, task.optimizer, Multiclass(3))
    assert not tensors_equal(task.initial(3, "again"), start)


def test_initial_and_load_leave_the_global_generator_alone():
    task = make_task()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    task.load(task.initial(1))
    assert torch.equal(torch.rand(3), expected)


def test_initial_tensors_are_no_one_elses():
    task = make_task()
    start = task.initial(1)
    start["head.weight"].zero_()
    assert task.initial(1)["head.weight"].abs().sum() > 0
    assert all(not tensor.requires_grad and tensor.is_contiguous() for tensor in start.values())


def test_a_loaded_network_has_the_tensors_and_does_not_share_them():
    task = make_task()
    start = task.initial(1)
    model = task.load(start)
    assert tensors_equal(dict(model.state_dict()), start)
    with torch.no_grad():
        model.head.weight.zero_()
    assert start["head.weight"].abs().sum() > 0
    assert model.body[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_an_unknown_network_is_named():
    with refused(SettingsError, "unknown_choice", what="network", choice="nrom"):
        make_task().build("nrom")


@pytest.mark.parametrize(
    ("network", "suits"),
    [
        (nn.Conv2d(3, 4, 3, stride=2), True),
        (nn.Conv2d(4, 4, 1, stride=2), False),
        (nn.Conv2d(4, 4, 1), True),
        (nn.Conv2d(64, 64, 1, stride=2), True),
        (nn.Conv3d(4, 4, 3), False),
    ],
)
def test_channels_last_is_for_2d_networks_without_the_layer_that_corrupts_memory(network, suits):
    assert suits_channels_last(network) == suits


def test_loading_draws_no_parameters_but_other_tensors():
    """A random fill of a parameter is skipped because the tensor is overwritten; a fixed random tensor is drawn."""

    class Projection(nn.Linear):
        def __init__(self):
            super().__init__(3, 2)
            nn.init.normal_(self.weight)
            self.fixed = torch.empty(100).uniform_(1, 2)

    task = replace(make_task(), networks={"tiny": Projection})
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    tensors = {"weight": torch.full((2, 3), 7.0), "bias": torch.zeros(2)}
    model = task.load(tensors, "tiny")
    assert torch.equal(torch.random.get_rng_state(), before)
    assert tensors_equal(model.state_dict(), tensors)
    assert bool(((model.fixed >= 1) & (model.fixed <= 2)).all())
    assert not torch.equal(task.build("tiny").weight, task.build("tiny").weight), "elsewhere parameters are drawn"


def test_frozen_tensors_are_drawn_although_the_first_network_is_loaded():
    fresh, other = (make_task().with_training_of("head") for _ in range(2))
    start = other.initial(1)
    images = torch.rand(4, 1, 6, 6)
    assert torch.equal(fresh.load(start).eval()(images), other.load(start).eval()(images))
    assert tensors_equal(fresh.frozen(), other.frozen())


@pytest.mark.parametrize("stride", [1, 2])
def test_a_loaded_network_has_the_layout_that_suits_it(stride):
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1, stride=stride))
    task = Task({"it": lambda: network}, "it", nn.CrossEntropyLoss(), torch.optim.SGD, Multiclass(2))
    weight = task.load(network.state_dict())[0].weight
    assert weight.is_contiguous(memory_format=torch.channels_last) == (stride == 1)
