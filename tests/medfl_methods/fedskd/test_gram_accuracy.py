"""Algorithms of the similarity loss against its equations in float64, for different, close and unusual models."""

import pytest
import torch
from gram_cases import EACH_FORM, KINDS, check, direct, expected, features, gradients, relative

from medfl_methods.fedskd.gram import gram_loss


@EACH_FORM
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "k", "other"), [(150, 24, 24), (150, 24, 19), (40, 70, 66), (400, 5, 3)])
def test_unlike_models(form, kind, n, k, other):
    x, y = features(kind, n, k), features(kind, n, other, seed=1)
    check(gradients(lambda a, b: gram_loss(a, b, form), x, y), expected(x, y), x, y)


@EACH_FORM
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", [1e-2, 1.5e-3, 1e-4, 1e-6, 1e-8])
def test_nearly_equal_models(form, kind, loss):
    x, noise = features(kind, 300, 24), features("normal", 300, 24, seed=1)
    for _ in range(3):  # the loss is proportional to the square of the noise
        noise = noise * (loss / direct(x.double(), (x + noise).double())).sqrt().float()
    y = x + noise
    right = expected(x, y)
    assert right[0].item() == pytest.approx(loss, rel=0.2)
    computed = gradients(lambda a, b: gram_loss(a, b, form), x, y)
    check(computed, right, x, y)
    assert computed[0].item() == pytest.approx(right[0].item(), rel=1e-2, abs=1e-12)


@EACH_FORM
@pytest.mark.parametrize("kind", KINDS)
def test_nearly_equal_models_whose_channels_are_in_another_order(form, kind):
    x = features(kind, 300, 24)
    y = (x + 0.1 * features("normal", 300, 24, seed=1)).flip(0)
    check(gradients(lambda a, b: gram_loss(a, b, form), x, y), expected(x, y), x, y)


@pytest.mark.parametrize("kind", KINDS)
def test_the_k_x_k_form_keeps_its_accuracy_at_any_closeness(kind):
    x = features(kind, 300, 24)
    for scale in (1e-2, 1e-3, 1e-4):
        y = x + scale * features("normal", 300, 24, seed=1)
        right = expected(x, y)
        value, *slopes = gradients(lambda a, b: gram_loss(a, b, "columns"), x, y)
        assert value.item() == pytest.approx(right[0].item(), rel=1e-4)
        assert all(relative(f, r) < 1e-5 for f, r in zip(slopes, right[1:], strict=True))


@EACH_FORM
def test_rows_of_very_unlike_length(form):
    """If a row is far shorter in one model, its gradient there is far larger than all other gradients."""
    x, noise = features("normal", 300, 24), features("normal", 300, 24, seed=1)
    y = x + 0.1 * noise
    y[:, 5] *= 1e-3
    x[:, 9] *= 1e-2
    check(gradients(lambda a, b: gram_loss(a, b, form), x, y), expected(x, y), x, y)
    lengths = torch.exp(features("normal", 1, 300, seed=2)).T
    y = noise * lengths
    check(gradients(lambda a, b: gram_loss(a, b, form), x, y), expected(x, y), x, y)


def test_rows_of_half_a_million_features_keep_the_accuracy(monkeypatch):
    monkeypatch.setattr("medfl_methods.fedskd.similarity_nxn.MAX_PRODUCT_ELEMENTS", 4096)
    x, y = features("common", 4, 500_000), features("common", 4, 500_000, seed=1)
    y[:, 2] += x[:, 0]
    computed, right = gradients(gram_loss, x, y), expected(x, y)
    assert right[0].item() > 1e-3
    check(computed, right, x, y)


@EACH_FORM
@pytest.mark.parametrize(("n", "k", "other"), [(1, 3, 2), (2, 1, 1), (5, 3, 7), (150, 24, 19), (600, 9, 5)])
def test_float64_agrees_with_the_direct_form_to_1e_10(form, n, k, other):
    x, y = features("normal", n, k).double(), features("normal", n, other, seed=1).double()
    computed, right = gradients(lambda a, b: gram_loss(a, b, form), x, y), expected(x, y)
    assert computed[0].item() == pytest.approx(right[0].item(), rel=1e-10, abs=1e-12)
    for gradient, truth in zip(computed[1:], right[1:], strict=True):
        torch.testing.assert_close(gradient, truth, rtol=1e-10, atol=1e-10 * truth.norm().item() + 1e-12)
