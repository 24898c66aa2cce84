"""Tests that a saved optimiser continues with the same bits as one that never stopped."""

import pytest
import torch
from refusals import refused

from medfl.errors import SettingsError
from medfl.testing.cohort import SmallNet
from medfl.training.optimizer_state import read_state, split_optimizer_state, write_state
from medfl.utils import wire
from medfl.utils.wire import tensors_equal

KINDS = {
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
}
IMAGES = torch.randn(4, 5, 1, 6, 6, generator=torch.Generator().manual_seed(3))


def network():
    """Return a network in channels-last layout, as 2-D networks are trained."""
    torch.manual_seed(0)
    return SmallNet().to(memory_format=torch.channels_last)


def step(model, optimizer, images):
    optimizer.zero_grad()
    model(images).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("kind", KINDS)
def test_it_continues_with_the_same_bits(kind):
    whole = network()
    optimizer = KINDS[kind](whole.parameters())
    for images in IMAGES:
        step(whole, optimizer, images)
    parts, state = network(), {}
    for images in IMAGES:  # a new network and a new optimiser for each step, all through bytes
        model = network()
        model.load_state_dict(parts.state_dict())
        optimizer = KINDS[kind](model.parameters())
        write_state(optimizer, model, state)
        step(model, optimizer, images)
        state, _ = wire.decode(wire.encode(read_state(optimizer, model), {}))
        parts = model
    assert tensors_equal(parts.state_dict(), whole.state_dict())
    if kind == "adam":
        assert set(state) >= {"head.weight/step", "head.weight/exp_avg", "body.0.bias/max_exp_avg_sq"}
        assert state["head.weight/step"] == 4
    assert bool(state) == (kind != "sgd")


def test_options_come_from_the_new_optimiser():
    model = network()
    old, new = (torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9) for lr in (0.1, 0.7))
    step(model, old, IMAGES[0])
    write_state(new, model, read_state(old, model))
    assert new.param_groups[0]["lr"] == 0.7


def test_what_is_read_shares_no_memory():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step(model, optimizer, IMAGES[0])
    state = read_state(optimizer, model)
    before = {name: tensor.clone() for name, tensor in state.items()}
    step(model, optimizer, IMAGES[1])
    assert tensors_equal(state, before)


def test_parameters_that_are_not_in_training_have_none():
    model = network()
    model.head.requires_grad_(False)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
    step(model, optimizer, IMAGES[0])
    state = read_state(optimizer, model)
    assert state
    assert not any(name.startswith("head") for name in state)
    whole = torch.optim.Adam(network().parameters())
    with refused(SettingsError, "unknown_parameter", parameter="body.9.weight"):
        write_state(whole, network(), {"body.9.weight/exp_avg": torch.zeros(1)})


def test_an_optimiser_that_keeps_more_than_tensors_is_refused():
    class Counting(torch.optim.SGD):
        def step(self, closure=None):
            super().step()
            for parameter in self.param_groups[0]["params"]:
                self.state[parameter]["calls"] = 1

    model = network()
    optimizer = Counting(model.parameters(), lr=0.1)
    step(model, optimizer, IMAGES[0])
    with refused(SettingsError, "unsupported_optimizer_state", optimizer="Counting", key="calls", found="int"):
        read_state(optimizer, model)


def test_a_model_and_its_optimiser_come_apart():
    kept = {"body.weight": torch.zeros(1), "optimizer/body.weight/step": torch.ones(())}
    model, state = split_optimizer_state(kept)
    assert list(model) == ["body.weight"]
    assert list(state) == ["body.weight/step"]
