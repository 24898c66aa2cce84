"""Tests of pretrained weights from a local file: torchvision's features, the same start for all methods, refusals."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch
from refusals import refused
from resnet_toys import numbers
from torch import nn
from torchvision_toys import features, shapes, tensors, write

from medfl.errors import SettingsError, StoreError
from medfl.networks.norms import norm_names
from medfl.networks.pretrained import load_pretrained, read_weights
from medfl.networks.resnet import ResNet
from medfl.objectives import Multiclass
from medfl.plugins import load_plugins
from medfl.task import Task
from medfl.testing.cohort import CLASSES, Case, make_task

PUBLISHED = {18: 11_689_512, 50: 25_557_032}
"""Numbers of parameters in torchvision's documentation."""


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
    model = load_pretrained(net(depth, head_share=0.5), write(tmp_path / "w.safetensors", file_tensors)).double().eval()
    exact = {name: tensor.double() for name, tensor in file_tensors.items()}
    images = numbers(2, 3, 50, 41).double()
    expected = features(exact, depth, images)
    assert expected.std() > 1e-3
    assert torch.allclose(model.body(images), expected, rtol=1e-9, atol=1e-9)


def task_with(path: Path | None, **options) -> Task:
    builds = {"a": lambda: net(stem_kernel=3, **options), "b": lambda: net(stem_kernel=3, **options)}
    base = make_task()
    return Task(builds, "a", base.loss, base.optimizer, Multiclass(CLASSES), base.metrics, weights=read_weights(path))


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
            if name.startswith("fc.") or name.endswith("num_batches_tracked"):
                assert torch.equal(tensor, drawn[name]), name
            elif name in file_tensors:
                assert torch.equal(tensor, file_tensors[name]), name
            else:
                assert not tensor.any(), f"{name} is a bias that torchvision does not have"
        start["conv1.weight"].zero_()  # whoever changes initial tensors changes his own
    assert all(map(torch.equal, with_file.initial(0, "b").values(), without.initial(0, "b").values()))


def test_a_network_of_half_precision_weights(tmp_path):
    half = {n: t.bfloat16() if t.is_floating_point() else t for n, t in tensors(10).items()}
    model = load_pretrained(net(), write(tmp_path / "w.safetensors", half))
    assert model.conv1.weight.dtype == torch.float32
    assert torch.equal(model.conv1.weight, half["conv1.weight"].float())


def test_without_a_file_a_network_stays_as_it_is():
    model = net()
    before = model.conv1.weight.clone()
    assert load_pretrained(model, None) is model
    assert torch.equal(model.conv1.weight, before)
    assert read_weights(None) is None


def gray(task: Task) -> Task:
    """Return the task with a network for the cohort's one-channel images."""
    body = nn.Conv2d(1, 3, 1)
    return dataclasses.replace(task, networks={"a": lambda: _Coloured(body)})


class _Coloured(ResNet):
    """Network that repeats one-channel images to three channels."""

    def __init__(self, _: nn.Module) -> None:
        super().__init__(10, 3, CLASSES, width=4, norm="batch", stem_kernel=3, stem_pool=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images.expand(-1, 3, -1, -1))


def test_a_run_starts_from_the_file_keeps_its_statistics_frozen_and_knows_it(tmp_path, file, caplog):
    case, run = Case(load_plugins(), "fedavg"), {"rounds": 1, "epochs": 1, "norm_sync": "frozen"}
    result = case.run(tmp_path / "run", task=gray(task_with(file)), **run)
    model, file_tensors = result.outcome.models["global"].tensors, tensors(10, kernel=3)
    frozen = {name for name in norm_names(gray(task_with(file)).build()) if "running" in name}
    assert frozen
    assert all(torch.equal(model[name], file_tensors[name]) for name in frozen)
    assert not torch.equal(model["conv1.weight"], file_tensors["conv1.weight"])
    assert torch.allclose(model["conv1.weight"], file_tensors["conv1.weight"], atol=0.5)
    identity = json.loads((tmp_path / "run" / "run.json").read_text())["identity"]
    assert identity["task"]["weights"] == read_weights(file).sha256
    other = write(tmp_path / "other.safetensors", tensors(10, kernel=3, seed=1))
    for weights in (other, None):
        now = None if weights is None else read_weights(weights).sha256
        with refused(StoreError, "other_run", setting="task.weights", expected=read_weights(file).sha256, found=now):
            case.run(tmp_path / "run", task=gray(task_with(weights)), **run)


def test_a_run_whose_weights_do_not_fit_leaves_its_folder_free(tmp_path, file):
    task = dataclasses.replace(gray(task_with(None)), weights=read_weights(write(tmp_path / "w", tensors(10))))
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
            "conv1.weight is (4, 3, 7, 7) in the file and (4, 3, 3, 3) here. Set stem_kernel to 7,",
        ),
        (10, {"width": 8}, "wrong_shape", "conv1.weight is (4, 3, 7, 7) in the file and (8, 3, 7, 7) here"),
        (10, {"width": 8}, "wrong_shape", "more. Set width to 4, or set no weights."),
        (10, {"spatial_dims": 3}, "wrong_shape", "weights of 2-D images need spatial_dims 2."),
        (18, {}, "wrong_tensor_names", "the file lacks layer1.1.conv1.weight, layer1.1.bn1.weight"),
        (18, {}, "wrong_tensor_names", "more. Choose the network of the file with network_name."),
        (10, {"norm": "group"}, "missing_batch_norm", "Set norm to 'batch'"),
        (10, {"norm": ["group", {"num_groups": 2}]}, "missing_batch_norm", "Set norm to 'batch'"),
        (10, {"norm": "instance"}, "missing_batch_norm", "Set norm to 'batch'"),
    ],
    ids=str,
)
def test_a_file_that_does_not_fit_is_refused_with_the_option_to_set(tmp_path, depth, changes, code, message):
    path = write(tmp_path / "w.safetensors", tensors(10))
    with refused(SettingsError, code, path=str(path), network="mine") as caught:
        read_weights(path).body_of(net(depth, **changes), "mine")
    assert message in str(caught.value)
    assert str(caught.value).startswith("The weights in 'w.safetensors' don't fit network 'mine': ")


def test_images_of_one_channel_do_not_fit_imagenets_weights(tmp_path):
    path = write(tmp_path / "w.safetensors", tensors(10))
    with refused(SettingsError, "wrong_shape", path=str(path), names=["conv1.weight"]) as caught:
        load_pretrained(ResNet(10, 1, 5, width=4), path)
    assert "Set in_channels to 3 (images of 3 channels), or" in str(caught.value)


def test_a_file_of_a_deeper_network_and_one_with_broken_numbers_are_refused(tmp_path):
    with refused(SettingsError, "wrong_tensor_names", missing=[]) as caught:
        load_pretrained(net(10), write(tmp_path / "w.safetensors", tensors(18)))
    assert caught.value.fields["unknown"][0] == "layer1.1.bn1.bias"
    broken = tensors(10)
    broken["bn1.running_var"][1] = torch.nan
    with refused(SettingsError, "not_finite", names=["bn1.running_var"]):
        load_pretrained(net(10), write(tmp_path / "w.safetensors", broken))


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_is_never_opened_and_the_message_says_how_to_convert_it(tmp_path, zipped):
    path = tmp_path / "resnet.pth"
    torch.save(tensors(10), path, _use_new_zipfile_serialization=zipped)
    with refused(SettingsError, "unsupported_file", path=str(path), expected="safetensors", found="pickle") as caught:
        load_pretrained(net(), path)
    assert "save_file" in str(caught.value)


def test_a_file_that_is_missing_damaged_or_changed_is_refused(tmp_path, file):
    with refused(
        SettingsError, "unreadable_file", path=str(tmp_path / "absent.safetensors"), reason="No such file or directory"
    ):
        read_weights(tmp_path / "absent.safetensors")
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(file.read_bytes()[:-9])
    with refused(SettingsError, "damaged_file", path=str(cut)):
        load_pretrained(net(), cut)
    weights = read_weights(file)
    file.write_bytes(file.read_bytes() + b" ")
    with refused(SettingsError, "changed_file", path=str(file)):
        weights.body_of(net(stem_kernel=3), "mine")
