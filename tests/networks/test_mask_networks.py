"""Tests of segmentation networks: MONAI's outputs and names, heads, and comparable stages."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from monai.networks import nets
from refusals import refused
from torch import nn

from medfl.errors import SettingsError
from medfl.networks import swinunetr
from medfl.networks.dynunet import DynUNet
from medfl.networks.parts import head_names, names_without_head, replace_head
from medfl.networks.segresnet import SegResNet
from medfl.networks.swinunetr import SwinUNETR
from medfl.networks.unet import UNet
from medfl.toolkit.feature_hooks import FeatureHooks, check_comparable_stages, network_stages

SMALL: dict[str, dict[str, Any]] = {
    "UNet": {"channels": (4, 8, 12)},
    "DynUNet": {"filters": (4, 6, 8)},
    "SegResNet": {"blocks_down": (1, 1, 2), "blocks_up": (1, 1)},
}
"""Options of small networks with three levels."""

KINDS: dict[str, type[nn.Module]] = {"UNet": UNet, "DynUNet": DynUNet, "SegResNet": SegResNet}


def small(name: str, spatial_dims: int = 2, **changes: Any) -> nn.Module:
    options = {"in_channels": 2, "out_channels": 3, "spatial_dims": spatial_dims}
    return KINDS[name](**options | SMALL[name] | changes)


def monai(name: str, spatial_dims: int) -> nn.Module:
    common: dict[str, Any] = {"spatial_dims": spatial_dims, "in_channels": 2, "out_channels": 3}
    if name == "UNet":
        return nets.UNet(**common, channels=(4, 8, 12), strides=(2, 2), num_res_units=2)
    if name == "DynUNet":
        strides = (1, 2, 2)
        kernels = {"kernel_size": (3, 3, 3), "strides": strides, "upsample_kernel_size": strides[1:]}
        return nets.DynUNet(**common, **kernels, filters=(4, 6, 8))
    return nets.SegResNet(**common, **SMALL[name], upsample_mode="deconv")


def images(spatial_dims: int, edge: int = 16) -> torch.Tensor:
    return torch.randn(2, 2, *[edge] * spatial_dims, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("spatial_dims", [2, 3])
@pytest.mark.parametrize("name", SMALL)
def test_it_is_monais_network(name, spatial_dims):
    torch.manual_seed(1)
    ours = small(name, spatial_dims)
    torch.manual_seed(1)
    theirs = monai(name, spatial_dims)
    batch = images(spatial_dims)
    assert torch.allclose(ours(batch), theirs(batch), atol=1e-6), "the same initial tensors from the same seed"
    assert ours(batch).shape == (2, 3, *batch.shape[2:])
    if name == "DynUNet":
        extra = ours.load_state_dict({k: v + 0.1 for k, v in theirs.state_dict().items()}, strict=False)
        assert not extra.missing_keys
        theirs.load_state_dict(ours.state_dict(), strict=False)
    else:
        assert list(ours.state_dict()) == list(theirs.state_dict())
        theirs.load_state_dict({k: v + 0.1 for k, v in ours.state_dict().items()})
        ours.load_state_dict(theirs.state_dict())
    assert torch.allclose(ours.eval()(batch), theirs.eval()(batch), atol=1e-5)


@pytest.mark.parametrize("name", SMALL)
def test_each_tensor_has_one_name(name):
    model = small(name)
    assert len({tensor.data_ptr() for tensor in model.state_dict().values()}) == len(model.state_dict())


@pytest.mark.parametrize(
    ("name", "head"),
    [("UNet", "model.2."), ("DynUNet", "output_block."), ("SegResNet", "conv_final.2.")],
)
def test_the_head_is_the_last_layer(name, head):
    model, batch = small(name), images(2)
    names = head_names(model, name)
    assert names
    assert all(tensor.startswith(head) for tensor in names)
    body = names_without_head(model, list(model.state_dict()))
    assert sorted(names + body) == sorted(model.state_dict())
    assert not any(tensor.startswith(head) for tensor in body)
    other = small(name, out_channels=5)
    shapes = {name: tensor.shape for name, tensor in other.state_dict().items()}
    assert all(shapes[tensor] == model.state_dict()[tensor].shape for tensor in body), "the body knows no classes"
    assert replace_head(model, other.head)(batch).shape == (2, 5, 16, 16)
    assert head_names(model, name) == names


def test_a_plain_unets_head_is_a_transposed_convolution():
    model = small("UNet", num_res_units=0)
    assert [type(part) for part in model.head] == [nn.ConvTranspose2d]
    assert model(images(2)).shape == (2, 3, 16, 16)


@pytest.mark.parametrize("name", SMALL)
def test_stages_are_maps_from_the_image_to_the_bottom(name):
    model = small(name, 3)
    hooks = FeatureHooks(network_stages(model, name))
    model(images(3)).sum().backward()
    edges = [features.shape[2:] for features in hooks.features]
    assert [tuple(edge) for edge in edges] == [(e, e, e) for e in ((8, 4, 4) if name == "UNet" else (16, 8, 4))]
    assert all(features.requires_grad for features in hooks.features)


@pytest.mark.parametrize(
    ("name", "wider"),
    [("UNet", {"channels": (6, 8, 10)}), ("DynUNet", {"filters": (5, 7, 9)}), ("SegResNet", {"init_filters": 16})],
)
def test_networks_of_other_widths_can_be_compared(name, wider):
    check_comparable_stages({"a": small(name), "b": small(name, **wider)}, None)
    assert small(name, **wider)(images(2)).shape == (2, 3, 16, 16)
    deeper = UNet(channels=(2, 2, 2, 2), spatial_dims=2)
    with refused(SettingsError, "unlike_stage_counts", counts={"a": 3, "b": 4}):
        check_comparable_stages({"a": small(name), "b": deeper}, None)


@pytest.mark.parametrize("name", SMALL)
def test_no_activation_works_in_place(name):
    assert not any(module.inplace for module in small(name).modules() if hasattr(module, "inplace"))


@pytest.mark.parametrize("name", ["UNet", "DynUNet"])
def test_hooks_on_every_layer_see_a_gradient(name):
    model, seen = small(name), []
    for part, module in model.named_modules():
        module.register_full_backward_hook(lambda module, before, after, part=part: seen.append(part))
    model(images(2).requires_grad_()).sum().backward()
    assert set(seen) == {part for part, _ in model.named_modules()}


@pytest.mark.parametrize("name", ["UNet", "DynUNet"])
def test_scripted_it_gives_the_same(name):
    model, batch, file = small(name).eval(), images(2), io.BytesIO()
    torch.jit.save(torch.jit.script(model), file)
    file.seek(0)
    assert torch.allclose(torch.jit.load(file)(batch), model(batch), atol=1e-6)


@pytest.mark.parametrize("name", SMALL)
def test_images_that_do_not_fit_are_refused(name):
    assert small(name, size=16)(images(2)).isfinite().all()
    assert small(name, size=[16, 24])
    with refused(SettingsError, "edges_not_multiples", network=name, expected=[4, 4], found=[16, 18]):
        small(name, size=[16, 18])
    with refused(SettingsError, "wrong_edge_count", network=name, expected=2, found=[16, 16, 16]):
        small(name, size=[16, 16, 16])
    instance = {"norm": "instance"}
    with refused(SettingsError, "single_voxel_bottom", network=name, found=[4, 4]):
        small(name, size=4, **instance)
    assert small(name, size=8, **instance)(images(2, 8)).isfinite().all()


@pytest.mark.parametrize(
    ("build", "network", "reason"),
    [
        (lambda: UNet(channels=(4,)), "UNet", "the length of `channels`"),
        (lambda: UNet(norm="groop"), "UNet", "GROOP"),
        (lambda: DynUNet(filters=(4, 8)), "DynUNet", "strides"),
        (lambda: SegResNet(init_filters=12), "SegResNet", "divisible"),
        (lambda: SegResNet(upsample_mode="up"), "SegResNet", "'up'"),
    ],
)
def test_impossible_options_are_named(build, network, reason):
    with refused(SettingsError, "network_not_buildable", network=network) as caught:
        build()
    assert reason in caught.value.fields["reason"], "MONAI's own words"


def test_unequal_levels_are_named():
    with refused(SettingsError, "wrong_level_count", network="SegResNet", blocks_up=1, blocks_down=4):
        SegResNet(blocks_up=(1,))


def test_the_transformer_needs_einops(monkeypatch):
    monkeypatch.setattr(swinunetr, "find_spec", lambda name: None)
    with refused(SettingsError, "missing_package", package="einops", extra="swin") as caught:
        SwinUNETR()
    assert "medfl-monai[swin]" in str(caught.value)


def test_the_transformer_is_monais():
    pytest.importorskip("einops", reason="einops is not installed")
    options: dict[str, Any] = {"in_channels": 2, "out_channels": 3, "feature_size": 12, "depths": (1, 1, 1, 1)}
    torch.manual_seed(1)
    ours = SwinUNETR(**options, spatial_dims=2, size=64)
    torch.manual_seed(1)
    theirs = nets.SwinUNETR(**options, spatial_dims=2)
    batch = images(2, 64)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    hooks = FeatureHooks(network_stages(ours, "swinunetr"))
    assert torch.allclose(ours(batch), theirs(batch), atol=1e-5)
    assert [tuple(features.shape[1:]) for features in hooks.features] == [
        (12, 64, 64),
        (12, 32, 32),
        (24, 16, 16),
        (48, 8, 8),
        (192, 2, 2),
    ]
    assert all(name.startswith("out.") for name in head_names(ours, "swinunetr"))
    with refused(SettingsError, "edges_not_multiples", network="SwinUNETR", expected=[32, 32], found=[48, 48]):
        SwinUNETR(**options, spatial_dims=2, size=48)
    with refused(SettingsError, "network_not_buildable", network="SwinUNETR") as caught:
        SwinUNETR(feature_size=10)
    assert "divisible by 12" in caught.value.fields["reason"]
