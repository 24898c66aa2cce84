"""Tests of networks for vectors: outputs, body and head, invalid arguments."""

import io

import pytest
import torch
from refusals import refused
from torch import nn

from medfl.errors import SettingsError
from medfl.networks.norms import has_batch_norm, norm_names
from medfl.networks.parts import feature_count, head_names, names_without_head, replace_head
from medfl.networks.vectors import MLP, Linear
from medfl.toolkit.feature_hooks import check_comparable_stages


def test_a_linear_layer_is_all_head():
    model, samples = Linear(13), torch.randn(4, 13)
    assert model(samples).shape == (4, 1)
    assert torch.equal(model(samples), samples @ model.head.weight.T + model.head.bias)
    assert list(model.state_dict()) == head_names(model, "linear") == ["head.weight", "head.bias"]
    assert names_without_head(model, list(model.state_dict())) == []
    assert feature_count(model, "linear") == 13


@pytest.mark.parametrize("widths", [(5,), (8, 4), (6, 6, 6)])
def test_layers_with_relu_between_them(widths):
    model, samples = MLP(7, 3, widths), torch.randn(5, 7)
    x = samples
    for stage in model.feature_layers:
        x = torch.relu(x @ stage.fc.weight.T + stage.fc.bias)
    assert torch.allclose(model(samples), x @ model.head.weight.T + model.head.bias, atol=1e-6)
    assert torch.equal(model.head(model.body(samples)), model(samples))
    sizes = [7, *widths, 3]
    assert sum(p.numel() for p in model.parameters()) == sum((a + 1) * b for a, b in zip(sizes, sizes[1:]))
    assert feature_count(model, "mlp") == widths[-1]
    assert head_names(model, "mlp") == ["head.weight", "head.bias"]
    assert all(name.startswith("body.stage") for name in names_without_head(model, list(model.state_dict())))


def test_options():
    samples = torch.randn(6, 4)
    assert len(norm_names(MLP(4, norm="layer"), ("layer",))) == 4
    assert has_batch_norm(MLP(4, norm="batch"))
    assert not has_batch_norm(MLP(4))
    dropped = MLP(4, dropout=0.5)
    assert not torch.equal(dropped.train()(samples), dropped(samples))
    assert torch.equal(dropped.eval()(samples), dropped(samples))
    wide, narrow = MLP(4, widths=(16, 8)), MLP(4, widths=(5, 3))
    check_comparable_stages({"wide": wide, "narrow": narrow}, None)
    with refused(SettingsError, "unlike_stage_counts", counts={"wide": 2, "deep": 3}):
        check_comparable_stages({"wide": wide, "deep": MLP(4, widths=(8, 8, 8))}, None)


def test_another_head_takes_the_place_of_its_own():
    model = replace_head(MLP(4, 2, (6,)), nn.Linear(6, 5))
    assert model(torch.randn(3, 4)).shape == (3, 5)


@pytest.mark.parametrize("model", [Linear(4, 2), MLP(4, 2, norm="layer", dropout=0.1)])
def test_scripted_it_gives_the_same(model):
    samples, file = torch.randn(3, 4), io.BytesIO()
    torch.jit.save(torch.jit.script(model.eval()), file)
    file.seek(0)
    assert torch.equal(torch.jit.load(file)(samples), model(samples))


@pytest.mark.parametrize("model", [Linear(4, 2), MLP(4, 2, norm="layer")])
def test_opacus_takes_them(model):
    opacus = pytest.importorskip("opacus", reason="opacus is not installed")
    assert opacus.validators.ModuleValidator.validate(model.train(), strict=False) == []


@pytest.mark.parametrize(
    ("build", "code", "fields"),
    [
        (lambda: Linear(0), "setting_out_of_range", {"network": "Linear", "setting": "in_features", "found": 0}),
        (lambda: Linear(3, 0), "setting_out_of_range", {"network": "Linear", "setting": "out_features", "found": 0}),
        (lambda: MLP(3, widths=()), "setting_out_of_range", {"network": "MLP", "setting": "widths", "minimum": 1}),
        (lambda: MLP(3, widths=(4, 0)), "setting_out_of_range", {"network": "MLP", "setting": "widths", "found": 0}),
        (
            lambda: MLP(3, norm="group"),
            "unknown_choice",
            {"what": "norm", "choice": "group", "known": ["none", "batch", "layer"]},
        ),
        (lambda: MLP(3, dropout=1.0), "setting_out_of_range", {"setting": "dropout", "found": 1.0}),
    ],
)
def test_impossible_arguments_are_named(build, code, fields):
    with refused(SettingsError, code, **fields):
        build()
