"""Bundles for blood cells and skin lesions: options of the network, and weights from a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from inference_file import numbers
from monai.bundle import ConfigParser, verify_net_in_out
from monai.bundle import run as monai_run
from torch import nn
from torchvision_toys import tensors, write

from medfl.networks.heads import TwoLayerHead
from medfl.networks.resnet import ResNet
from medfl.records.run_file import RunFile, SettingOrigin
from medfl.testing.synthetic import make_cohort
from medfl.utils.files import sha256_of
from medfl.workflow import FederatedWorkflow

BUNDLES = Path(__file__).parents[2] / "bundles"
NAMES = ("bloodcell_classification", "skinlesion_classification")
TINY = {"network_name": "resnet10", "width": 4, "batch_size": 16}
PAPERS = {"norm": "batch", "head_share": 0.5}


@dataclass(frozen=True)
class Made:
    """Bundle, its data, weights, and a run that started from them with frozen batch norm."""

    bundle: Path
    place: Path

    @property
    def home(self) -> Path:
        return self.place / "run" / "sites" / "site-01"

    def config(self, name: str, root: Path | None = None) -> str:
        return str((root or self.home) / "configs" / name)


@pytest.fixture(scope="module", params=NAMES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    federation = Made(BUNDLES / request.param, tmp_path_factory.mktemp(request.param))
    make_cohort(federation.place / "data", sites=2, images_per_site=20, classes=4, size=16, seed=1)
    write(federation.place / "w.safetensors", tensors(10, kernel=3))
    workflow = FederatedWorkflow(
        [federation.config(name, federation.bundle) for name in ("train.json", "federate.json")],
        logging_file=False,
        bundle_root=str(federation.bundle),
        dataset_dir=str(federation.place / "data"),
        output_dir=str(federation.place / "run"),
        rounds=1,
        epochs=1,
        norm_sync="frozen",
        start=str(federation.place / "w.safetensors"),
        start_skip="head",
        **TINY,
        **PAPERS,
    )
    workflow.initialize()
    workflow.run()
    return federation


def test_the_federation_began_from_the_file_and_kept_its_statistics(made: Made) -> None:
    state = torch.load(made.home / "models" / "model.pt", weights_only=True)
    file_tensors = tensors(10, kernel=3)
    statistics = [name for name in file_tensors if "running" in name]
    assert len(statistics) == 2 * 12
    assert all(torch.equal(state[name], file_tensors[name]) for name in statistics)
    assert 0 < (state["conv1.weight"] - file_tensors["conv1.weight"]).abs().max() < 0.1
    assert state["fc.hidden.weight"].shape == (16, 32)
    run = RunFile.read(made.place / "run" / "run.json")
    assert run.provenance.settings["start"] == SettingOrigin(value="w.safetensors", origin="command line")
    assert run.identity.task.start == run.provenance.start.sha256 == sha256_of(made.place / "w.safetensors")


def test_an_exported_bundle_knows_its_network_and_needs_no_file(made: Made) -> None:
    settled = json.loads(Path(made.config("train.json")).read_text())
    assert (settled["norm"], settled["head_share"], settled["width"]) == ("batch", 0.5, 4)
    assert (settled["stem_kernel"], settled["stem_stride"], settled["stem_pool"]) == (3, 1, False)
    for config in ("train.json", "inference.json"):
        verify_net_in_out("network_def", made.config("metadata.json"), config_file=made.config(config), device="cpu")


def test_its_inference_gives_the_predictions_of_the_federation(made: Made, tmp_path: Path) -> None:
    data = str(made.place / "data" / "site-01")
    options = {"bundle_root": str(made.home), "dataset_dir": data, "output_dir": str(tmp_path)}
    monai_run(config_file=made.config("inference.json"), **options)
    predicted = numbers(tmp_path / "predictions.csv")
    expected = np.loadtxt(made.home / "predictions.csv", delimiter=",", skiprows=1, usecols=range(2, 6))
    np.testing.assert_allclose(predicted, expected, atol=1e-5)


def parsed(bundle: Path, **options: Any) -> ConfigParser:
    parser = ConfigParser()
    parser.read_config(str(bundle / "configs" / "train.json"))
    parser.update(options)
    return parser


def test_one_site_trains_with_plain_monai(made: Made, tmp_path: Path) -> None:
    options = {"bundle_root": str(made.bundle), "dataset_dir": str(made.place / "data"), "ckpt_dir": str(tmp_path)}
    options |= TINY | PAPERS | {"num_classes": 4, "size": 16}
    network = parsed(made.bundle, **options).get_parsed_content("network")
    assert network.conv1.weight.shape == tensors(10, kernel=3)["conv1.weight"].shape
    monai_run(config_file=made.config("train.json", made.bundle), max_epochs=1, **options)
    state = torch.load(tmp_path / "model_final.pt", weights_only=True)
    assert state["conv1.weight"].shape == network.conv1.weight.shape


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"network_name": "resnet18"}, lambda net: features(net) == 512 and strides(net) == (2, 2)),
        ({"network_name": "resnet50"}, lambda net: features(net) == 2048 and net.conv1.kernel_size == (7, 7)),
        ({"network_name": "resnet10"}, lambda net: features(net) == 128 and net.head.out.in_features == int(0.7 * 128)),
        ({"head_share": None}, lambda net: isinstance(net.fc, nn.Linear)),
        ({"size": 28}, lambda net: strides(net) == (1, 1) and net.conv1.kernel_size == (3, 3)),
        ({"size": [28, 200], "stem_kernel": 7}, lambda net: strides(net) == (1, 1) and net.conv1.kernel_size == (7, 7)),
        ({}, lambda net: {m.num_groups for m in net.modules() if isinstance(m, nn.GroupNorm)} == {2}),
        ({}, lambda net: net.dropout.p == 0.1),
        ({"head_share": 0.4}, lambda net: isinstance(net.head, TwoLayerHead) and net.head.out.in_features == 204),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_the_options_of_the_network(name: str, options: dict[str, Any], expected: Callable[[ResNet], bool]) -> None:
    parser = parsed(BUNDLES / name, **options)
    with torch.device("meta"):
        assert expected(parser.get_parsed_content("network_def"))


def features(network: ResNet) -> int:
    return network.head.hidden.in_features  # type: ignore[return-value, union-attr]


def strides(network: ResNet) -> tuple[int, int]:
    """Return the strides of the stem's convolution and of its pooling."""
    return network.conv1.stride[0], getattr(network.maxpool, "stride", 1)


def configs(first: str, other: str, config: str) -> list[Any]:
    return [json.loads((BUNDLES / name / "configs" / config).read_text()) for name in (first, other)]


@pytest.mark.parametrize("name", NAMES)
def test_they_differ_from_the_bundle_for_dermoscopy_only_where_they_must(name: str) -> None:
    for config in ("train.json", "federate.json", "evaluate.json", "inference.json"):
        first, other = configs("dermoscopy_classification", name, config)
        unlike = {key for key in first.keys() | other.keys() if first.get(key) != other.get(key)}
        assert unlike <= OWN, (config, unlike - OWN)


def test_they_differ_from_each_other_only_in_data_and_augmentation() -> None:
    for config in ("train.json", "federate.json", "inference.json"):
        first, other = configs(*NAMES, config)
        unlike = {key for key in first.keys() | other.keys() if first.get(key) != other.get(key)}
        assert unlike <= {"num_classes", "batch_size", "augmentation"}, config


OWN = {
    *("num_classes", "mean", "std", "batch_size", "metrics", "networks", "network_name", "width", "norm"),
    *("edge", "stem_kernel", "stem_stride", "stem_pool", "head_share", "head_dropout", "head_activation", "dropout"),
    *("optimizer", "augmentation", "shift", "task", "network", "imports", "rounds", "epochs", "federation"),
}
"""Ids whose values may differ between the bundles."""
