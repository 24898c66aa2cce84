"""Tests of ResNet's gradients: no in-place operation, and correct per-sample gradients, also with Opacus."""

from __future__ import annotations

import pytest
import torch
from resnet_toys import backward_with_hooks, images, small, stage_outputs
from torch import nn

from medfl.networks.resnet import ResNet


def per_sample(model: nn.Module, batch: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
    """Compute each sample's gradients by one backward pass each, as a list of (B, *parameter)."""
    rows = []
    for image, label in zip(batch, labels, strict=True):
        loss = nn.functional.cross_entropy(model(image[None]), label[None])
        rows.append(torch.autograd.grad(loss, list(model.parameters())))
    return [torch.stack(gradients) for gradients in zip(*rows, strict=True)]


@pytest.mark.parametrize("depth", [10, 50])
def test_nothing_works_in_place(depth):
    model = small(depth)
    made: list[torch.Tensor] = []
    for module in model.modules():
        module.register_forward_hook(lambda module, args, output: made.append(output))
    model(images(2))
    assert len(made) > 30
    assert {output._version for output in made} == {0}, "what a layer gives is never overwritten"
    assert backward_with_hooks(small(depth)) == len(made)


@pytest.mark.parametrize("depth", [10, 50])
def test_gradients_are_right_where_a_feature_is_used_twice(depth):
    """A loss of the logits and all stages' outputs, as in FedSKD, is compared with finite differences in float64."""
    model = small(depth, act="gelu").double()
    batch = images(2, n=1).double().requires_grad_()

    def losses(batch: torch.Tensor) -> torch.Tensor:
        logits = model(batch)
        return torch.stack([logits.square().sum(), *(map_.square().mean() for map_ in stage_outputs(model, batch))])

    assert torch.autograd.gradcheck(losses, (batch,), fast_mode=True)


@pytest.mark.parametrize("width", [2, 4, 8])
def test_both_memory_layouts_give_the_same_logits_and_gradients(width):
    """For these widths, oneDNN's strided 1x1 convolution corrupts gradients and memory in channels-last layout."""
    torch.manual_seed(0)
    model, batch, results = ResNet(10, 2, 3, width=width, norm="group"), images(2), []
    for layout in (torch.contiguous_format, torch.channels_last):
        model.to(memory_format=layout).zero_grad()
        logits = model(batch.contiguous(memory_format=layout))
        logits.square().sum().backward()
        results.append([logits.detach(), *(parameter.grad.clone() for parameter in model.parameters())])
    for plain, last in zip(*results, strict=True):
        assert torch.allclose(plain, last, rtol=1e-3, atol=1e-4 * float(plain.abs().max()))


@pytest.mark.parametrize("spatial_dims", [2, 3])
@pytest.mark.parametrize("norm", ["group", ["instance", {"affine": True}]], ids=str)
def test_opacus_computes_gradients_of_each_sample(norm, spatial_dims):
    opacus = pytest.importorskip("opacus", reason="opacus is not installed")
    model = small(spatial_dims=spatial_dims, norm=norm).double().train()
    batch, labels = images(spatial_dims).double().requires_grad_(), torch.tensor([0, 1, 2])
    expected = per_sample(model, batch, labels)
    assert opacus.validators.ModuleValidator.validate(model, strict=False) == []
    wrapped = opacus.GradSampleModule(model, loss_reduction="sum")
    nn.functional.cross_entropy(wrapped(batch), labels, reduction="sum").backward()
    for (name, parameter), gradient in zip(wrapped.named_parameters(), expected, strict=True):
        assert torch.allclose(parameter.grad_sample, gradient, rtol=1e-9, atol=1e-11), name


def test_opacus_refuses_batch_norm():
    validators = pytest.importorskip("opacus.validators", reason="opacus is not installed")
    assert len(validators.ModuleValidator.validate(small(norm="batch").train(), strict=False)) == 1 + 4 * 2 + 3


@pytest.mark.parametrize("spatial_dims", [2, 3])
def test_torch_func_computes_gradients_of_each_sample(spatial_dims):
    model = small(spatial_dims=spatial_dims).double().train()
    batch, labels = images(spatial_dims).double(), torch.tensor([0, 1, 2])

    def loss(parameters: dict[str, torch.Tensor], image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        logits = torch.func.functional_call(model, parameters, (image[None],))
        return nn.functional.cross_entropy(logits, label[None])

    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(parameters, batch, labels)
    for (name, gradient), expected in zip(gradients.items(), per_sample(model, batch, labels), strict=True):
        assert torch.allclose(gradient, expected, rtol=1e-9, atol=1e-11), name
