"""Tests of ConvNet: PFedCDP's networks at all sizes, per-sample gradients, and invalid arguments."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from refusals import refused
from resnet_toys import numbers
from torch import nn
from torch.func import functional_call, grad, vmap

from medfl.errors import SettingsError
from medfl.networks.convnet import ConvNet
from medfl.networks.norms import has_batch_norm, norm_names
from medfl.objectives import Multiclass
from medfl.plugins import load_plugins
from medfl.task import Task
from medfl.testing.cohort import CLASSES, Case, make_task
from medfl.types import Meta

CLUSTERS: dict[str, dict[str, Any]] = {
    "A": {"channels": (32, 64), "dense": 128},
    "B": {"channels": (16, 32), "dense": 64, "dropout": 0.5},
    "C": {"channels": (8, 16), "dense": 32},
    "student": {"channels": (16, 32), "dense": 64, "dropout": 0.5},
}
"""Widths in the paper."""


def counted(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def expected(channels: tuple[int, int], dense: int, positions: int, images: int = 1, classes: int = 2) -> int:
    first, second = channels
    convolutions = (9 * images + 1) * first + (9 * first + 1) * second
    return convolutions + (second * positions + 1) * dense + (dense + 1) * classes


@pytest.mark.parametrize("cluster", sorted(CLUSTERS))
@pytest.mark.parametrize(
    ("size", "positions"), [(28, 5 * 5), (63, 14 * 14), (64, 1), (224, 1), ([28, 20], 5 * 3), ([28, 64], 1)]
)
def test_parameters_in_closed_form(cluster, size, positions):
    """28 - 2 = 26, halved 13, - 2 = 11, halved 5: each map has 25 positions. From 64 pixels on, they are averaged."""
    options = CLUSTERS[cluster]
    model = ConvNet(1, 2, size, **options).eval()
    assert counted(model) == expected(options["channels"], options["dense"], positions)
    edges = [size, size] if isinstance(size, int) else size
    images = numbers(2, 1, *edges)
    features = model.body(images)
    assert features.shape == (2, options["dense"])
    assert torch.equal(model.head(features), model(images))
    assert model(images).shape == (2, 2)


def test_known_numbers():
    assert counted(ConvNet(1, 2, 28, **CLUSTERS["A"])) == 224_002
    assert counted(ConvNet(3, 9, 28, **CLUSTERS["A"])) == 224_002 + 2 * 9 * 32 + 7 * 129
    flat = ConvNet(1, 2, 224, **CLUSTERS["A"], pooling="flatten")
    assert flat.body.dense.fc.weight.numel() == 54 * 54 * 64 * 128 == 23_887_872, "the 24 million of the card"
    assert ConvNet(1, 2, 28, pooling="average").body.dense.fc.in_features == 64


def test_the_names_lead_to_body_and_head():
    names = list(ConvNet(norm="group", dropout=0.5).state_dict())
    layers = ["stage1.conv", "stage1.norm", "stage2.conv", "stage2.norm", "dense.fc"]
    paths = [*(f"body.{layer}" for layer in layers), "head"]
    assert names == [f"{path}.{part}" for path in paths for part in ("weight", "bias")]
    assert [name for name in ConvNet().state_dict() if "norm" in name] == []
    assert isinstance(ConvNet().head, nn.Linear)


@pytest.mark.parametrize("size", [28, 64])
def test_it_is_the_textbooks_network(size):
    """It equals convolution, ReLU, pooling, twice, then the maps or their means, a dense layer and a classifier."""
    model, images = ConvNet(1, 2, size).eval(), numbers(3, 1, size, size)
    x = images
    for stage in model.feature_layers[:2]:
        x = nn.functional.max_pool2d(torch.relu(nn.functional.conv2d(x, stage.conv.weight, stage.conv.bias)), 2)
    x = x.flatten(1) if size < 64 else x.mean((2, 3))
    fc = model.body.dense.fc
    logits = model.head(torch.relu(x @ fc.weight.T + fc.bias))
    assert torch.allclose(model(images), logits, rtol=1e-5, atol=1e-6)


def test_dropout_is_there_in_training_only():
    model, images = ConvNet(dropout=0.5), numbers(4, 1, 28, 28)
    features = model.train().body(images)
    assert not torch.equal(features, model.body(images))
    assert torch.equal(model.eval().body(images), model.body(images))
    assert not any(isinstance(part, nn.Dropout) for part in ConvNet().modules())


def per_sample_loop(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
    rows = []
    for image, label in zip(images, labels, strict=True):
        loss = nn.functional.cross_entropy(model(image[None]), label[None])
        rows.append(torch.autograd.grad(loss, list(model.parameters())))
    names = [name for name, _ in model.named_parameters()]
    return {name: torch.stack(gradients) for name, gradients in zip(names, zip(*rows, strict=True), strict=True)}


@pytest.mark.parametrize("norm", ["none", "group"])
@pytest.mark.parametrize("size", [28, 64])
def test_torch_func_gives_the_gradients_of_each_sample(size, norm):
    model = ConvNet(1, 3, size, **CLUSTERS["B"], norm=norm).double().eval()
    images, labels = numbers(3, 1, size, size).double(), torch.tensor([0, 1, 2])

    def loss(parameters: dict[str, torch.Tensor], image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(functional_call(model, parameters, (image[None],)), label[None])

    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    gradients = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, images, labels)
    for name, expected in per_sample_loop(model, images, labels).items():
        assert torch.allclose(gradients[name], expected, rtol=1e-9, atol=1e-12), name


@pytest.mark.parametrize("norm", ["none", "group"])
@pytest.mark.parametrize("size", [28, 64])
def test_opacus_computes_the_gradients_of_each_sample(size, norm):
    opacus = pytest.importorskip("opacus", reason="opacus is not installed")
    model = ConvNet(1, 3, size, **CLUSTERS["C"], norm=norm).double().train()
    images, labels = numbers(3, 1, size, size).double().requires_grad_(), torch.tensor([0, 1, 2])
    expected = per_sample_loop(model, images, labels)
    assert opacus.validators.ModuleValidator.validate(model, strict=False) == []
    wrapped = opacus.GradSampleModule(model, loss_reduction="sum")
    nn.functional.cross_entropy(wrapped(images), labels, reduction="sum").backward()
    for (name, parameter), gradient in zip(wrapped.named_parameters(), expected.values(), strict=True):
        assert torch.allclose(parameter.grad_sample, gradient, rtol=1e-9, atol=1e-12), name


def test_norms_are_of_the_kind_that_is_named():
    grouped, batched = ConvNet(norm="group"), ConvNet(norm="batch")
    assert not has_batch_norm(grouped)
    assert len(norm_names(grouped, ("group",))) == 2 * 2
    assert [stage.norm.num_groups for stage in grouped.feature_layers[:2]] == [16, 32]
    assert has_batch_norm(batched)


@pytest.mark.parametrize(("size", "norm"), [(28, "group"), (64, "none")])
def test_scripted_it_gives_the_same_logits(size, norm):
    model, images = ConvNet(1, 2, size, **CLUSTERS["B"], norm=norm).eval(), numbers(2, 1, size, size)
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(model), file)
    file.seek(0)
    again = torch.jit.load(file)
    assert torch.equal(again(images), model(images))
    assert list(again.state_dict()) == list(model.state_dict())


def test_volumes_and_more_stages():
    model = ConvNet(1, 2, 24, 3, channels=(4, 8, 16), dense=8, padding=1)
    assert model(numbers(2, 1, 24, 24, 24)).shape == (2, 2)
    assert model.body.dense.fc.in_features == 16 * 3**3
    assert len(model.feature_layers) == 4


@pytest.mark.parametrize(
    ("options", "least"), [({}, 10), ({"channels": (4, 4, 4)}, 22), ({"padding": 1}, 4), ({"kernel": 1}, 4)], ids=str
)
def test_the_smallest_image_trains_and_a_smaller_one_is_refused(options, least):
    assert ConvNet(size=least, **options)(numbers(2, 1, least, least)).isfinite().all()
    with refused(
        SettingsError, "setting_out_of_range", network="ConvNet", setting="size", minimum=least, found=least - 1
    ):
        ConvNet(size=least - 1, **options)


@pytest.mark.parametrize(
    ("change", "code", "fields"),
    [
        ({"in_channels": 0}, "setting_out_of_range", {"setting": "in_channels", "minimum": 1, "found": 0}),
        ({"num_classes": 1}, "setting_out_of_range", {"setting": "num_classes", "minimum": 2, "found": 1}),
        ({"channels": ()}, "setting_out_of_range", {"setting": "channels", "minimum": 1, "found": 0}),
        ({"channels": (8, 0)}, "setting_out_of_range", {"setting": "channels", "minimum": 1, "found": 0}),
        ({"dense": 0}, "setting_out_of_range", {"setting": "dense", "minimum": 1, "found": 0}),
        ({"kernel": 4}, "setting_out_of_range", {"kernel": 4, "padding": 0, "maximum": 2}),
        ({"padding": 2}, "setting_out_of_range", {"kernel": 3, "padding": 2, "maximum": 1}),
        ({"dropout": 1.0}, "setting_out_of_range", {"setting": "dropout", "found": 1.0}),
        (
            {"norm": "groop"},
            "unknown_choice",
            {"what": "norm", "choice": "groop", "known": ["none", "group", "batch"]},
        ),
        (
            {"pooling": "max"},
            "unknown_choice",
            {"what": "pooling", "choice": "max", "known": ["auto", "flatten", "average"]},
        ),
        ({"spatial_dims": 1}, "setting_out_of_range", {"setting": "spatial_dims", "expected": [2, 3], "found": 1}),
        ({"size": [28, 28, 28]}, "wrong_edge_count", {"expected": 2, "found": [28, 28, 28]}),
    ],
    ids=str,
)
def test_impossible_arguments_are_named(change, code, fields):
    with refused(SettingsError, code, network="ConvNet", **fields):
        ConvNet(**change)


def test_sites_with_unlike_clusters_train_each_for_itself(tmp_path):
    base = make_task()
    build = {
        name: lambda options=options: ConvNet(1, CLASSES, 6, **options, padding=1) for name, options in CLUSTERS.items()
    }
    task = Task(build, "A", base.loss, base.optimizer, Multiclass(CLASSES), base.metrics)
    settings: Meta = {"rounds": 1, "epochs": 1, "networks_by_site": {"site-2": "B", "site-3": "C"}}
    result = Case(load_plugins(), "local").run(tmp_path, task=task, **settings)
    assert result.outcome.status == "finished"
