"""Networks that take an image and features of its table row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from quick_settings import QUICK
from refusals import refused
from torch import nn
from torch.nn import functional as F
from toys import PAIR

from medfl.data.arrays import append_features
from medfl.data.pooled import TensorData
from medfl.engine.runs.simulation import SimulationResult
from medfl.engine.site import Splits
from medfl.errors import SettingsError
from medfl.networks.convnet import ConvNet
from medfl.networks.image_table import ImageTableNetwork, with_table_features
from medfl.networks.parts import feature_count, features_and_logits
from medfl.networks.resnet import ResNet
from medfl.networks.transfer.start import Start
from medfl.plugins import load_plugins
from medfl.task import ImageScale, Task
from medfl.testing.cohort import Case, make_data, make_sites, make_task, scores

REGISTRY = load_plugins()
COUNT = 2


def convnet() -> ConvNet:
    return ConvNet(in_channels=1, num_classes=3, size=12, channels=(4,), dense=5)


def cases(count: int = 4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(count, 1, 12, 12, generator=generator)
    table = torch.randn(count, COUNT, generator=generator)
    return images, table, append_features(images, table)


def test_logits_are_a_linear_function_of_image_features_and_table_features() -> None:
    image_network = convnet().eval()
    body = image_network.body
    network = ImageTableNetwork(image_network, COUNT, 3, "convnet").eval()
    images, table, both = cases()
    assert both.shape == (4, 1 + COUNT, 12, 12)
    expected = F.linear(torch.cat([body(images), table], dim=1), network.head.weight, network.head.bias)
    torch.testing.assert_close(network(both), expected, rtol=0, atol=0)
    assert feature_count(network, "convnet") == 5 + COUNT
    features, logits = features_and_logits(network, both)
    assert torch.equal(features[:, -COUNT:], table)
    assert torch.equal(logits, network(both))


def test_without_weights_for_the_table_it_is_the_image_network() -> None:
    torch.manual_seed(0)
    whole, image_network = convnet().eval(), convnet().eval()
    image_network.load_state_dict(whole.state_dict())
    network = ImageTableNetwork(image_network, COUNT, 3, "convnet").eval()
    with torch.no_grad():
        network.head.weight.zero_()
        network.head.weight[:, :5] = whole.head.weight
        network.head.bias.copy_(whole.head.bias)
    images, _, both = cases()
    torch.testing.assert_close(network(both), whole(images))


def test_volumes_have_table_features_too() -> None:
    network = ImageTableNetwork(ResNet(in_channels=1, spatial_dims=3, width=2, size=16), COUNT, 2, "resnet10").eval()
    table = torch.randn(2, COUNT)
    volumes = append_features(torch.randn(2, 1, 16, 16, 16), table)
    assert torch.equal(network.body(volumes)[:, -COUNT:], table)


def test_weights_of_the_image_network_are_loaded_without_its_classifier() -> None:
    trained = convnet()
    start = Start("file", "weights", "0", trained.state_dict(), allows_missing_head=True)
    network = ImageTableNetwork(convnet(), COUNT, 3, "convnet")
    head = network.head.weight.clone()
    start.load_into(network, "convnet")
    assert torch.equal(network.body.image.body.dense.fc.weight, trained.body.dense.fc.weight)
    assert torch.equal(network.head.weight, head)


def test_weights_of_its_own_are_loaded_whole() -> None:
    trained = ImageTableNetwork(convnet(), COUNT, 3, "convnet")
    network = ImageTableNetwork(convnet(), COUNT, 3, "convnet")
    Start("file", "weights", "0", trained.state_dict()).load_into(network, "convnet")
    assert all(torch.equal(value, trained.state_dict()[name]) for name, value in network.state_dict().items())


def test_stages_are_those_of_the_image_network_and_the_network_can_be_scripted() -> None:
    network = ImageTableNetwork(ResNet(in_channels=1, width=2, size=16), COUNT, 2, "resnet10").eval()
    assert network.feature_layers == network.body.image.feature_layers
    both = append_features(torch.randn(2, 1, 16, 16), torch.randn(2, COUNT))
    torch.testing.assert_close(torch.jit.script(network)(both), network(both))


def test_a_network_without_a_head_is_refused() -> None:
    with refused(SettingsError, "missing_head"):
        ImageTableNetwork(nn.Conv2d(1, 2, 3), COUNT, 2, "convolution")


def test_without_table_features_the_networks_are_unchanged() -> None:
    networks = {"convnet": convnet}
    assert with_table_features(networks, 0, 3) == networks


# ---- methods


def with_table(data: TensorData) -> TensorData:
    """Return images with two features, which give the class away: whether it is the first, and the second."""
    images, labels = data.batch(torch.arange(len(data)))
    return TensorData(append_features(images, F.one_hot(labels, 3)[:, :COUNT].float()), labels)


def table_task() -> Task:
    task = make_task("plain")
    networks = with_table_features(task.networks, COUNT, 3)
    return replace(task, networks=networks, scale=ImageScale((1 + COUNT, 6, 6), (0.5, 0, 0), (0.5, 1, 1), COUNT))


def run(case: Case, folder: Path, **settings: int) -> SimulationResult:
    sites = {
        name: Splits(with_table(site.train), with_table(site.val), with_table(site.test))
        for name, site in make_sites(PAIR).items()
    }
    server_test, public = with_table(make_data(10, "global")), with_table(make_data(12, "public"))
    return case.run(folder, task=table_task(), sites=sites, server_test=server_test, public=public, **settings)


@pytest.mark.parametrize("name", sorted(REGISTRY.methods))
def test_every_method_trains_on_images_with_a_table_or_says_why_not(tmp_path: Path, name: str) -> None:
    case = Case(REGISTRY, name, dict(QUICK.get(name, {})))
    if name in ("fedfed", "fedkf", "fedtpf"):
        with refused(SettingsError, "unmet_need", method=name, need="images_of_one_shape"):
            run(case, tmp_path, rounds=1)
        return
    result = run(case, tmp_path, rounds=2, steps=1)
    assert result.outcome.status == "finished"


def test_the_table_is_used(tmp_path: Path) -> None:
    run(Case(REGISTRY, "fedavg"), tmp_path, rounds=30, steps=3)
    rows = [line for line in scores(tmp_path) if line.startswith("30,") and ",test," in line and ",accuracy," in line]
    assert [float(line.rpartition(",")[2]) for line in rows] == [1.0, 1.0, 1.0]
