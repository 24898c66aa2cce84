"""Tests of the Fisher information by per-sample gradients (O-PF-3), and of its mask (O-PF-4)."""

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from torch import nn
from torch.nn import functional as F

import medfl.toolkit.fisher as module
from medfl.networks.convnet import ConvNet
from medfl.testing.cohort import SmallNet, make_data
from medfl.toolkit.fisher import fisher, split_mask
from medfl.utils.wire import tensors_equal


def linear(inputs=4, classes=3):
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes)).double()


def vectors(n=9, inputs=4, classes=3):
    rng = torch.Generator().manual_seed(0)
    return torch.randn(n, inputs, generator=rng).double(), torch.randint(classes, (n,), generator=rng)


def loop(model, names, images, labels, batch_size=1):
    """Compute the weighted mean of squared gradients of batches by one backward pass each."""
    model = copy.deepcopy(model).eval()
    parts = {name: p for name, p in model.named_parameters() if name in names}
    information = {name: torch.zeros_like(p) for name, p in parts.items()}
    for x, y in zip(images.split(batch_size), labels.split(batch_size), strict=True):
        gradients = torch.autograd.grad(F.cross_entropy(model(x), y), list(parts.values()))
        for name, gradient in zip(parts, gradients, strict=True):
            information[name] += len(y) * gradient**2 / len(labels)
    return information


# ---- closed forms


def test_softmax_regression():
    """The gradient of a sample is (p - onehot) x, so F_W = mean (p - onehot)^2 x^2 and F_b = mean (p - onehot)^2."""
    model, (images, labels) = linear(), vectors()
    off = (model(images).softmax(1) - F.one_hot(labels, 3)).detach() ** 2
    information = fisher(model, ["1.weight", "1.bias"], images, labels)
    torch.testing.assert_close(information["1.weight"], torch.einsum("nc,nd->cd", off, images**2) / 9)
    torch.testing.assert_close(information["1.bias"], off.mean(0))


@pytest.mark.parametrize(
    ("labels", "batch_size", "expected"),
    [([0, 1], 2, 0.0), ([0, 1], 1, 0.25), ([0, 0, 0, 1], 4, 1 / 16), ([0, 0, 0, 1], 2, 1 / 8), ([1, 1, 1], 3, 0.25)],
)
def test_pf_3_in_a_batch_signs_cancel(labels, batch_size, expected):
    """The gradient of each sample is +-1/2 for zero weights and x = 1; its square is 1/4."""
    model, images, labels = linear(1, 2), torch.ones(len(labels), 1).double(), torch.tensor(labels)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    own = fisher(model, ["1.weight"], images, labels)["1.weight"]
    batches = fisher(model, ["1.weight"], images, labels, "per_batch", batch_size)["1.weight"]
    torch.testing.assert_close(own, torch.full((2, 1), 0.25).double())
    torch.testing.assert_close(batches, torch.full((2, 1), expected).double())


def test_a_short_last_batch_weighs_by_its_images():
    model, (images, labels) = linear(), vectors(7)
    information = fisher(model, ["1.weight"], images, labels, "per_batch", 4)
    torch.testing.assert_close(information, loop(model, ["1.weight"], images, labels, 4))


# ---- against single backward passes


class Group(SmallNet):
    """Network with group norm."""

    def __init__(self):
        super().__init__(norm=False)
        self.body.insert(1, nn.GroupNorm(2, 6))


@pytest.mark.parametrize(
    "build",
    [SmallNet, Group, lambda: ConvNet(1, 3, size=6, channels=(3,), dense=5, dropout=0.5)],
    ids=["batch norm", "group norm", "dropout"],
)
@pytest.mark.parametrize(("estimator", "size"), [("per_sample", 1), ("per_batch", 3)])
def test_it_is_a_loop_over_single_images(build, estimator, size):
    torch.manual_seed(0)
    model, data = build(), make_data(8, "some")
    with torch.no_grad():
        model.train()(data.images)  # running statistics that are not the first ones
    names = [name for name, _ in model.named_parameters() if not name.startswith("head")]
    information = fisher(model.train(), names, data.images, data.class_labels, estimator, size)
    expected = loop(model, names, data.images, data.class_labels, size)
    assert information.keys() == expected.keys()
    for name in names:
        torch.testing.assert_close(information[name], expected[name], atol=1e-7, rtol=1e-4)
        assert information[name].min() >= 0
    assert max(values.max() for values in information.values()) > 1e-4


@pytest.mark.parametrize("numbers", [1, 100, 10**9])
@pytest.mark.parametrize("batch_size", [1, 4, 64])
def test_the_size_of_a_chunk_does_not_matter(monkeypatch, numbers, batch_size):
    model, (images, labels) = linear(), vectors()
    expected = loop(model, ["1.weight"], images, labels)
    monkeypatch.setattr(module, "MAX_GRADIENT_ENTRIES", numbers)
    torch.testing.assert_close(fisher(model, ["1.weight"], images, labels, batch_size=batch_size), expected)


def test_no_more_images_than_a_batch_are_computed_at_once(monkeypatch):
    """Activations need more memory than gradients if there are few parameters and large images."""
    sizes = []

    def watched(function, in_dims):
        def mapped(parameters, images, labels):
            sizes.append(len(images))
            return torch.func.vmap(function, in_dims)(parameters, images, labels)

        return mapped

    monkeypatch.setattr(module, "vmap", watched)
    model, (images, labels) = linear(), vectors()
    fisher(model, ["1.weight"], images, labels, batch_size=4)
    assert sizes == [4, 4, 1]


# ---- what must stay as it was


@pytest.mark.parametrize("estimator", ["per_sample", "per_batch"])
def test_the_model_is_left_as_it_was(estimator):
    model, data = SmallNet(), make_data(6, "some")
    model.train()
    model.body[1].eval()  # frozen, as some methods want it
    model.head.bias.requires_grad_(False)
    model.head.weight.grad = torch.ones_like(model.head.weight)
    before = copy.deepcopy(model)
    rng = torch.get_rng_state()
    fisher(model, ["body.0.weight"], data.images, data.class_labels, estimator, 2)
    assert tensors_equal(model.state_dict(), before.state_dict())
    assert [part.training for part in model.modules()] == [part.training for part in before.modules()]
    assert [name for name, p in model.named_parameters() if not p.requires_grad] == ["head.bias"]
    assert [name for name, p in model.named_parameters() if p.grad is not None] == ["head.weight"]
    assert torch.equal(model.head.weight.grad, torch.ones_like(model.head.weight))
    assert torch.equal(torch.get_rng_state(), rng)


def test_the_mode_comes_back_after_an_error():
    model = SmallNet().train()
    with pytest.raises(RuntimeError):
        fisher(model, ["body.0.weight"], torch.zeros(2, 5, 6, 6), torch.tensor([0, 1]))
    assert all(part.training for part in model.modules())


def test_a_network_that_is_sure_has_no_information():
    model, (images, labels) = linear(), vectors()
    with torch.no_grad():
        model[1].weight.zero_()
        model[1].bias.copy_(torch.tensor([500.0, 0, 0]))
    information = fisher(model, ["1.weight", "1.bias"], images, torch.zeros_like(labels))
    assert all(float(values.max()) == 0 for values in information.values())


# ---- the mask


def test_pf_4_the_share_is_of_all_parameters_together():
    information = {"b": torch.tensor([[4.0, 1.0], [0.0, 9.0]]), "a": torch.tensor([2.0])}
    personal, shared = split_mask(information, 0.4)
    assert personal["b"].tolist() == [[True, False], [False, True]]
    assert personal["a"].tolist() == [False]
    assert shared["a"].tolist() == [True]


def test_pf_4_of_equal_values_as_many_as_the_share_asks_for():
    information = {"a": torch.tensor([0.0, 5.0, 5.0, 5.0]), "b": torch.zeros(4)}
    personal, shared = split_mask(information, 0.25)
    assert (personal["a"].tolist(), personal["b"].tolist()) == ([False, True, True, False], [False] * 4)
    for name in information:
        assert torch.equal(personal[name].int() + shared[name].int(), torch.ones(4, dtype=torch.int32))


def test_pf_4_of_many_equal_values_the_first_are_personal():
    personal, _ = split_mask({"b": torch.zeros(30, 100), "a": torch.zeros(2000)}, 0.5)
    assert int(personal["a"].sum()) == 2000
    assert personal["b"].flatten().tolist() == [True] * 500 + [False] * 2500


@given(
    values=some.lists(some.sampled_from([0.0, 0.5, 1.0, 7.0]), min_size=1, max_size=40),
    share=some.floats(0, 1),
    cut=some.integers(0, 40),
)
def test_pf_4_each_coordinate_is_exactly_one_of_both(values, share, cut):
    values = torch.tensor(values)
    information = {"x": values[:cut], "y": values[cut:].reshape(-1, 1)}
    personal, shared = split_mask(information, share)
    for name, part in information.items():
        assert personal[name].shape == shared[name].shape == part.shape
        assert bool((personal[name] ^ shared[name]).all())
    mine = torch.cat([personal[name].flatten() for name in ("x", "y")])
    assert int(mine.sum()) == min(math.ceil(share * len(values) - 1e-9), len(values))
    if mine.any() and not mine.all():
        assert values[mine].min() >= values[~mine].max()


@pytest.mark.parametrize(("share", "expected"), [(0.0, 0), (0.1, 1), (0.2, 2), (0.3, 3), (0.7, 7), (1.0, 10)])
def test_shares_that_floating_point_can_not_hold(share, expected):
    personal, _ = split_mask({"a": torch.rand(10)}, share)
    assert int(personal["a"].sum()) == expected
