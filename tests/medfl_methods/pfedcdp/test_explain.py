"""SHAP values of images: exact for linear models, class-balanced samples, and the tensors for the report."""

import sys

import numpy as np
import pytest
import torch
from refusals import refused
from torch import nn

from medfl.data.pooled import TensorData
from medfl.errors import SettingsError
from medfl.testing.cohort import SmallNet, make_data
from medfl_methods.pfedcdp.explanations import (
    MAX_BACKGROUND_IMAGES,
    Explanations,
    balanced_rows,
    explain_models,
    import_shap,
)

pytest.importorskip("shap")


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


class Linear(nn.Module):
    """Linear model w x + b of two channels of 3 x 4 pixels."""

    def __init__(self, seed=0):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 2, 3, 4, generator=rng(seed)))

    def forward(self, images):
        return torch.einsum("kcij,ncij->nk", self.weight, images) + torch.arange(3.0)


class Colours(TensorData):
    def __init__(self, n, seed=5, alike=False):
        images = torch.randn(n, 2, 3, 4, generator=rng(seed))
        super().__init__(images[:1].repeat(n, 1, 1, 1) if alike else images, torch.arange(n) % 3)


def test_values_of_a_linear_model_are_exact_against_one_background(monkeypatch):
    """The values are w (x - background) for the logit of the image's label, summed over the channels."""
    data = Colours(9)
    background = torch.randn(2, 3, 4, generator=rng(9))
    batch = data.batch

    def first_then_background(rows):
        images, labels = batch(rows)
        return (images if len(rows) == 6 else background[None]), labels

    monkeypatch.setattr(data, "batch", first_then_background)
    model = Linear()
    explained = explain_models({"it": model}, data, 2, rng())
    apart = explained.images - background
    expected = (model.weight[explained.labels] * apart).sum(1).detach()
    assert explained.maps["it"].shape == (6, 3, 4)
    torch.testing.assert_close(explained.maps["it"], expected, atol=1e-5, rtol=1e-4)
    whole = model(explained.images) - model(
        background[None]
    )  # efficiency: the values sum to the difference from the background
    torch.testing.assert_close(explained.maps["it"].sum((1, 2)), whole[torch.arange(6), explained.labels].detach())


class Blind(nn.Module):
    """Model that uses only the upper half of the image, with batch norm, ReLU and dropout."""

    def __init__(self):
        super().__init__()
        self.inner, self.drop = SmallNet(), nn.Dropout(0.5)

    def forward(self, images):
        upper = images * (torch.arange(6)[:, None] < 3)
        return self.inner(self.drop(upper))


def test_pixels_that_a_model_does_not_see_have_no_values():
    torch.manual_seed(0)
    model, data = Blind().train(), make_data(30, "public")
    explained = explain_models({"it": model}, data, 2, rng())
    assert not any(module.training for module in model.modules())
    assert explained.maps["it"][:, 3:].abs().max() == 0
    assert explained.maps["it"][:, :3].abs().mean() > 1e-4


def test_the_same_stream_gives_the_same_values_whatever_numpy_has_drawn():
    models, data = {"a": Linear(1), "b": SmallLike()}, Colours(30)
    first = explain_models(models, data, 2, rng(4))
    np.random.rand(3)  # noqa: NPY002
    two = explain_models(models, data, 2, rng(4))
    other = explain_models(models, data, 2, rng(5))
    assert all(torch.equal(first.maps[name], two.maps[name]) for name in models)
    assert torch.equal(first.images, two.images)
    assert not torch.equal(first.images, other.images)
    alone = explain_models({"b": models["b"]}, data, 2, rng(4))
    assert torch.equal(alone.maps["b"], first.maps["b"])


class SmallLike(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.layers = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3))

    def forward(self, images):
        return self.layers(images)


def test_no_more_than_a_few_images_are_the_background(monkeypatch):
    data, sizes = Colours(MAX_BACKGROUND_IMAGES + 30), []
    batch = data.batch
    monkeypatch.setattr(data, "batch", lambda rows: sizes.append(len(rows)) or batch(rows))
    explain_models({"it": Linear()}, data, 1, rng())
    assert sizes == [3, MAX_BACKGROUND_IMAGES]


# ---- sampled images


def test_as_many_images_of_each_class_or_all_there_are():
    labels = torch.tensor([2, 0, 0, 2, 0, 5, 0, 2])
    rows = balanced_rows(labels, 2, rng())
    assert labels[rows].tolist() == [0, 0, 2, 2, 5]
    assert len(set(rows.tolist())) == 5
    drawn = {tuple(balanced_rows(labels, 2, rng(seed)).tolist()) for seed in range(20)}
    assert len(drawn) > 5


def test_what_the_report_gets():
    explained = Explanations(
        torch.zeros(2, 1, 2, 2), torch.tensor([0, 1]), {"a": -torch.ones(2, 2, 2), "b": torch.zeros(2, 2, 2)}
    )
    assert explained.mean_size == 0.5
    assert set(explained.tensors()) == {"explained/images", "explained/labels", "explained/maps/a", "explained/maps/b"}


def test_without_shap(monkeypatch):
    monkeypatch.setitem(sys.modules, "shap", None)
    with refused(SettingsError, "missing_package", package="shap", extra="explain") as caught:
        import_shap()
    assert "`pip install 'medfl-monai[explain]'`" in str(caught.value)
    with refused(SettingsError, "missing_package", package="shap", extra="explain"):
        explain_models({"it": Linear()}, Colours(6), 1, rng())
