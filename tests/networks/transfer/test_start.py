"""Tests of weights from which a network starts: torchvision's features, the same start for all methods, refusals."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch
from refusals import refused
from resnet_toys import numbers
from torchvision_toys import features, shapes, tensors, write

from medfl.engine.runs.start_source import find_start
from medfl.errors import SettingsError, StoreError
from medfl.networks.norms import norm_names
from medfl.networks.resnet import ResNet
from medfl.networks.transfer.start import Start
from medfl.objectives import Multiclass
from medfl.plugins import load_plugins
from medfl.task import Task
from medfl.testing.cohort import CLASSES, Case, make_task

PUBLISHED = {18: 11_689_512, 50: 25_557_032}
"""Numbers of parameters in torchvision's documentation."""


REGISTRY = load_plugins()


def start_of(path: Path, *skip: str) -> Start:
    start = find_start(str(path), REGISTRY, skip or ("head",))
    assert start is not None
    return start


def load(model: ResNet, path: Path, *skip: str) -> ResNet:
    start_of(path, *skip).load_into(model, "mine")
    return model


def net(depth: int = 10, **changes) -> ResNet:
    options = {"width": 4, "norm": "batch", "stem_stride": 2}
    return ResNet(depth, 3, 5, **options | changes)


@pytest.mark.parametrize("depth", [18, 50])
def test_the_reference_has_torchvisions_number_of_parameters(depth):
    parameters = {n: s for n, s in shapes(depth).items() if "running" not in n and "tracked" not in n}
    assert sum(math.prod(shape) for shape in parameters.values()) == PUBLISHED[depth]


@pytest.mark.parametrize("depth", [18, 50])
def test_at_full_width_all_names_and_shapes_are_torchvisions_but_for_the_shortcuts_biases(depth):
    with torch.device("meta"):
        own = ResNet(depth, 3, 1000, stem_stride=2).state_dict()
    theirs = shapes(depth)
    assert {name: tuple(tensor.shape) for name, tensor in own.items() if name in theirs} == theirs
    assert {name.partition(".downsample.")[2] for name in own.keys() - theirs.keys()} == {"0.bias"}


@pytest.mark.parametrize("depth", [18, 50])
def test_the_body_computes_what_torchvisions_network_computes(tmp_path, depth):
    file_tensors = tensors(depth)
    model = load(net(depth, head_share=0.5), write(tmp_path / "w.safetensors", file_tensors)).double().eval()
    exact = {name: tensor.double() for name, tensor in file_tensors.items()}
    images = numbers(2, 3, 50, 41).double()
    expected = features(exact, depth, images)
    assert expected.std() > 1e-3
    assert torch.allclose(model.body(images), expected, rtol=1e-9, atol=1e-9)


def task_with(path: Path | None, **options) -> Task:
    builds = {"a": lambda: net(stem_kernel=3, **options), "b": lambda: net(stem_kernel=3, **options)}
    base = make_task()
    task = Task(builds, "a", base.loss, base.optimizer, Multiclass(CLASSES), base.metrics)
    return task if path is None else task.with_start(start_of(path))


@pytest.fixture
def file(tmp_path) -> Path:
    return write(tmp_path / "w.safetensors", tensors(10, kernel=3))


def test_initial_tensors_are_the_files_and_the_classifier_is_drawn_as_without(file):
    file_tensors = tensors(10, kernel=3)
    with_file, without = task_with(file), task_with(None)
    for seed, owner in ((0, ""), (1, ""), (0, "site-1")):
        start, drawn = with_file.initial(seed, owner=owner), without.initial(seed, owner=owner)
        assert list(start) == list(drawn)
        for name, tensor in start.items():
            if name.startswith("fc."):
                assert torch.equal(tensor, drawn[name]), name
            elif name in file_tensors:
                assert torch.equal(tensor, file_tensors[name]), name
            else:
                assert not tensor.any(), f"{name} is a bias that torchvision does not have"
        start["conv1.weight"].zero_()  # whoever changes initial tensors changes his own
    assert all(map(torch.equal, with_file.initial(0, "b").values(), without.initial(0, "b").values()))


def test_a_network_of_half_precision_weights(tmp_path):
    half = {n: t.bfloat16() if t.is_floating_point() else t for n, t in tensors(10).items()}
    model = load(net(), write(tmp_path / "w.safetensors", half))
    assert model.conv1.weight.dtype == torch.float32
    assert torch.equal(model.conv1.weight, half["conv1.weight"].float())


def gray(path: Path | None) -> Task:
    """Return a task with a network for the cohort's one-channel images, started from a file."""
    task = task_with(None).with_network("a", _Coloured)
    return task if path is None else task.with_start(start_of(path))


class _Coloured(ResNet):
    """Network that repeats one-channel images to three channels."""

    def __init__(self) -> None:
        super().__init__(10, 3, CLASSES, width=4, norm="batch", stem_kernel=3, stem_pool=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images.expand(-1, 3, -1, -1))


def test_a_run_starts_from_the_file_keeps_its_statistics_frozen_and_knows_it(tmp_path, file, caplog):
    case, run = Case(load_plugins(), "fedavg"), {"rounds": 1, "epochs": 1, "norm_sync": "frozen"}
    result = case.run(tmp_path / "run", task=gray(file), **run)
    model, file_tensors = result.outcome.models["global"].tensors, tensors(10, kernel=3)
    frozen = {name for name in norm_names(gray(file).build()) if "running" in name}
    assert frozen
    assert all(torch.equal(model[name], file_tensors[name]) for name in frozen)
    assert not torch.equal(model["conv1.weight"], file_tensors["conv1.weight"])
    assert torch.allclose(model["conv1.weight"], file_tensors["conv1.weight"], atol=0.5)
    identity = json.loads((tmp_path / "run" / "run.json").read_text())["identity"]
    assert identity["task"]["start"] == start_of(file).sha256
    assert identity["task"]["start_skip"] == ["head"]
    other = write(tmp_path / "other.safetensors", tensors(10, kernel=3, seed=1))
    for weights in (other, None):
        now = None if weights is None else start_of(weights).sha256
        with refused(StoreError, "other_run") as caught:
            case.run(tmp_path / "run", task=gray(weights), **run)
        assert caught.value.fields["found"] == now


def test_a_run_whose_weights_do_not_fit_leaves_its_folder_free(tmp_path, file):
    task = gray(write(tmp_path / "w.safetensors", tensors(10)))
    with refused(SettingsError, "wrong_shape", network="a", names=["conv1.weight"]):
        Case(load_plugins(), "local").run(tmp_path / "run", task=task, rounds=1)
    assert not (tmp_path / "run" / "run.json").exists()


# ---- refused


@pytest.mark.parametrize(
    ("depth", "changes", "code", "message"),
    [
        (
            10,
            {"stem_kernel": 3},
            "wrong_shape",
            "conv1.weight is (4, 3, 7, 7) in the weights and (4, 3, 3, 3) in the network. Set stem_kernel to 7,",
        ),
        (
            10,
            {"width": 8},
            "wrong_shape",
            "conv1.weight is (4, 3, 7, 7) in the weights and (8, 3, 7, 7) in the network",
        ),
        (10, {"width": 8}, "wrong_shape", "more. Set width to 4, or set start to 'none'."),
        (10, {"spatial_dims": 3}, "wrong_shape", "weights of 2-D images need spatial_dims 2."),
        (18, {}, "wrong_tensor_names", "they lack layer1.1.conv1.weight, layer1.1.bn1.weight"),
        (18, {}, "wrong_tensor_names", "more. Choose the network of the weights (network_name)"),
        (10, {"norm": "group"}, "missing_batch_norm", "Set norm to 'batch'"),
        (10, {"norm": ["group", {"num_groups": 2}]}, "missing_batch_norm", "Set norm to 'batch'"),
        (10, {"norm": "instance"}, "missing_batch_norm", "Set norm to 'batch'"),
        (50, {"norm": "group"}, "wrong_tensor_names", "Choose the network of the weights (network_name)"),
    ],
    ids=str,
)
def test_a_file_that_does_not_fit_is_refused_with_the_option_to_set(tmp_path, depth, changes, code, message):
    path = write(tmp_path / "w.safetensors", tensors(10))
    with refused(SettingsError, code, source="w.safetensors", network="mine") as caught:
        load(net(depth, **changes), path)
    assert message in str(caught.value)


def test_images_of_one_channel_do_not_fit_imagenets_weights(tmp_path):
    path = write(tmp_path / "w.safetensors", tensors(10))
    with refused(SettingsError, "wrong_shape", names=["conv1.weight"]) as caught:
        load(ResNet(10, 1, 5, width=4), path)
    assert "Set in_channels to 3 (images of 3 channels), or" in str(caught.value)


def test_a_file_of_a_deeper_network_and_one_with_broken_numbers_are_refused(tmp_path):
    with refused(SettingsError, "wrong_tensor_names", missing=[]) as caught:
        load(net(10), write(tmp_path / "w.safetensors", tensors(18)))
    assert caught.value.fields["unknown"][0] == "layer1.1.bn1.bias"
    broken = tensors(10)
    broken["bn1.running_var"][1] = torch.nan
    with refused(SettingsError, "not_finite", names=["bn1.running_var"]):
        load(net(10), write(tmp_path / "w.safetensors", broken))


def test_the_head_of_other_classes_is_named_by_the_user_and_no_other_way(tmp_path):
    path = write(tmp_path / "w.safetensors", tensors(10))
    with refused(SettingsError, "wrong_shape", names=["fc.weight", "fc.bias"]) as caught:
        load(net(10), path, "layer1")
    assert "--start-skip layer1,head" in str(caught.value)
    five = tensors(10) | {"fc.weight": torch.full((5, 32), 0.5), "fc.bias": torch.ones(5)}
    model = net(10)
    start = find_start(str(write(tmp_path / "five.safetensors", five)), REGISTRY)
    start.load_into(model, "mine")
    assert torch.equal(model.fc.weight, five["fc.weight"])


def test_skipped_tensors_stay_as_drawn_and_a_skipped_name_must_exist(tmp_path):
    file_tensors = tensors(10)
    path = write(tmp_path / "w.safetensors", file_tensors)
    model, drawn = net(10), None
    drawn = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    load(model, path, "head", "layer4", "conv1.weight")
    for name, tensor in model.state_dict().items():
        skipped = name.startswith(("fc.", "layer4.")) or name == "conv1.weight"
        source = drawn if skipped or name not in file_tensors else file_tensors
        if name in drawn and not name.endswith("downsample.0.bias"):
            assert torch.equal(tensor, source[name]), name
    with refused(SettingsError, "unknown_choice", what="start_skip", choice="layer"):
        load(net(10), path, "head", "layer")


def test_a_file_without_a_head_is_refused_unless_it_is_known_to_have_none(tmp_path):
    body = {name: tensor for name, tensor in tensors(10).items() if not name.startswith("fc.")}
    start = find_start(str(write(tmp_path / "w.safetensors", body)), REGISTRY)
    with refused(SettingsError, "wrong_tensor_names", missing=["fc.weight", "fc.bias"], unknown=[]) as caught:
        start.load_into(net(10), "mine")
    assert "--start-skip head." in str(caught.value)
    model = net(10)
    drawn = model.fc.weight.clone()
    dataclasses.replace(start, allows_missing_head=True).load_into(model, "mine")
    assert torch.equal(model.fc.weight, drawn)
    assert torch.equal(model.conv1.weight, body["conv1.weight"])


def test_enclosing_prefixes_of_training_programs_are_removed(tmp_path):
    wrapped = {f"model.{name}": tensor for name, tensor in tensors(10).items()}
    model = load(net(10), write(tmp_path / "w.safetensors", wrapped))
    assert torch.equal(model.conv1.weight, tensors(10)["conv1.weight"])


def test_a_prefix_that_only_some_names_have_is_part_of_their_names(tmp_path):
    mixed = {f"model.{n}" if n == "conv1.weight" else n: tensor for n, tensor in tensors(10).items()}
    with refused(SettingsError, "wrong_tensor_names", missing=["conv1.weight"], unknown=["model.conv1.weight"]):
        load(net(10), write(tmp_path / "w.safetensors", mixed))
