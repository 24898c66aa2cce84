"""The similarity loss against its definition, computed directly in float64 (A row of S has the norm sqrt(n))."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from medfl.errors import ContractError, SettingsError
from medfl.losses.gram import choose_form, gram_loss
from medfl.losses.regions import region_weights
from medfl.losses.similarity import (
    batch_similarity_loss,
    pixel_similarity_loss,
    region_similarity_loss,
    similarity_loss,
)

FORMS = ("small", "tiles", "columns")


def direct(h: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """(1 / n^2) ||S(H) - S(K)||_F^2 of rows (n, p), from whole n x n matrices."""
    n = len(h)
    one, other = (F.normalize(z @ z.T, dim=1, eps=1e-300) * math.sqrt(n) for z in (h.double(), k.double()))
    return (one - other).square().sum() / n**2


def rows(n: int, p: int, seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(n, p, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def maps(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# ---- the forms


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("n", "p", "q"), [(1, 3, 3), (5, 3, 7), (40, 6, 6), (90, 17, 12), (600, 9, 5)])
def test_each_form_gives_the_value_and_the_gradient_of_the_definition(form, n, p, q):
    h, k = rows(n, p, 1).requires_grad_(), rows(n, q, 2).requires_grad_()
    expected = direct(h, k)
    wanted = torch.autograd.grad(expected, (h, k))
    found = gram_loss(h.T, k.T, form)
    got = torch.autograd.grad(found, (h, k))
    assert found.item() == pytest.approx(expected.item(), abs=1e-12, rel=1e-10)
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_the_numeric_gradient_agrees(form):
    h, k = rows(6, 4, 3).T.contiguous().requires_grad_(), rows(6, 3, 4).T.contiguous().requires_grad_()
    assert torch.autograd.gradcheck(lambda x, y: gram_loss(x, y, form), (h, k))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [1.0, 1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize(("n", "p"), [(60, 8), (200, 30)])
def test_single_precision_keeps_its_promises_also_where_models_are_close(form, size, n, p):
    """Value within 1e-6 + 1e-5 relative; gradient within 1e-5 relative above 1e-3, 1e-8 sqrt(elements) below."""
    h = rows(n, p, 5, torch.float32)
    k = h + size * rows(n, p, 6, torch.float32)
    x, y = (z.T.contiguous().requires_grad_() for z in (h, k))
    found = gram_loss(x, y, form)
    got = torch.autograd.grad(found, (x, y))
    a, b = (z.double().requires_grad_() for z in (h, k))
    expected = direct(a, b)
    wanted = torch.autograd.grad(expected, (a, b))
    assert found.item() >= 0
    assert abs(found.item() - expected.item()) <= 1e-6 + 1e-5 * expected.item()
    for one, other in zip(got, wanted, strict=True):
        error = (one.T.double() - other).norm().item()
        bound = 1e-5 * other.norm().item() if expected.item() > 1e-3 else 1e-8 * math.sqrt(one.numel())
        assert error <= bound


@pytest.mark.parametrize("form", FORMS)
def test_equal_models_have_no_loss_and_no_gradient(form):
    h = rows(50, 7, 7, torch.float32).T.contiguous()
    x, y = h.clone().requires_grad_(), h.clone().requires_grad_()
    found = gram_loss(x, y, form)
    found.backward()
    assert found.item() == 0.0
    assert x.grad.abs().max() < 1e-7
    assert y.grad.abs().max() < 1e-7


@pytest.mark.parametrize("form", FORMS)
def test_zero_rows_count_one_where_one_model_has_them_and_have_no_gradient(form):
    h, k = rows(12, 5, 8), rows(12, 4, 9)
    h[[2, 3]], k[[3, 7]] = 0.0, 0.0
    x, y = (z.T.contiguous().requires_grad_() for z in (h, k))
    found = gram_loss(x, y, form)
    found.backward()
    assert found.item() == pytest.approx(direct(h, k).item(), rel=1e-10)
    assert torch.isfinite(x.grad).all()
    assert (x.grad[:, [2, 3]] == 0).all()
    assert (y.grad[:, [3, 7]] == 0).all()
    assert (gram_loss(torch.zeros(3, 4), torch.zeros(2, 4), form)).item() == 0.0
    assert gram_loss(torch.zeros(3, 4), torch.ones(2, 4), form).item() == pytest.approx(1.0)


@pytest.mark.parametrize("form", FORMS)
def test_only_one_of_the_models_may_want_a_gradient(form):
    x, y = rows(20, 4, 10).T.contiguous().requires_grad_(), rows(20, 4, 11).T.contiguous()
    gram_loss(x, y, form).backward()
    assert x.grad is not None
    assert y.grad is None


def test_the_form_follows_the_shape():
    assert choose_form(8, 100_000) == "small"
    assert choose_form(13_824, 512) == "columns"
    assert choose_form(1_728, 2_048) == "tiles"


# ---- maps (O-SK-2, O-SK-4)


def test_o_sk_2_pixel():
    a, b = torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([[[[1.0, -1.0]]]])
    assert pixel_similarity_loss(a, b).item() == pytest.approx(2.0)
    assert pixel_similarity_loss(a, b, "hw_times").item() == pytest.approx(2.0), "h w^2 = (h w)^2 for a row"
    upright = [x.transpose(2, 3) for x in (a, b)]
    assert pixel_similarity_loss(*upright, "hw_times").item() == pytest.approx(4.0), "it depends on the orientation"
    two, constant = torch.eye(2).reshape(1, 2, 1, 2), torch.ones(1, 1, 1, 2)
    assert pixel_similarity_loss(two, constant).item() == pytest.approx(0.5857864376)


@pytest.mark.parametrize("dims", [2, 3])
def test_the_forms_are_those_of_the_definition(dims):
    a, b = maps(4, 6, *(3, 2, 5)[:dims]), maps(4, 5, *(3, 2, 5)[:dims], seed=1)
    assert batch_similarity_loss(a, b).item() == pytest.approx(direct(a.flatten(1), b.flatten(1)).item(), rel=1e-9)
    pixels = [x.flatten(2).permute(2, 0, 1).flatten(1) for x in (a, b)]
    assert pixel_similarity_loss(a, b).item() == pytest.approx(direct(*pixels).item(), rel=1e-9)
    labels = torch.arange(a[0, 0].numel()).reshape(a.shape[2:]) % 3
    weights = region_weights(labels, a.shape[2:])
    means = [torch.stack([x[..., labels == code].mean(-1).flatten() for code in (1, 2)]) for x in (a, b)]
    assert region_similarity_loss(a, b, weights.double()).item() == pytest.approx(direct(*means).item(), rel=1e-6)
    total = similarity_loss([a, a], [b, a], ("batch", "pixel", "region"), weights)
    parts = batch_similarity_loss(a, b) + pixel_similarity_loss(a, b) + region_similarity_loss(a, b, weights)
    assert total.item() == pytest.approx(parts.item() / 2, rel=1e-6)


LOSSES = (batch_similarity_loss, pixel_similarity_loss)


@pytest.mark.parametrize("loss", LOSSES)
def test_o_sk_4_invariances(loss):
    a, b = maps(5, 6, 4, 3), maps(5, 3, 4, 3, seed=1)
    value = loss(a, b).item()
    order = torch.tensor([3, 0, 4, 1, 2])
    mixing = torch.linalg.qr(maps(6, 6, seed=2))[0]
    assert loss(a[order], b[order]).item() == pytest.approx(value)
    assert loss(7.5 * a, 0.01 * b).item() == pytest.approx(value)
    assert loss(torch.einsum("bchw,dc->bdhw", a, mixing), b).item() == pytest.approx(value)
    assert loss(b, a).item() == pytest.approx(value)
    assert loss(a, a).item() == pytest.approx(0.0, abs=1e-12)
    assert 0 < value <= 4
    assert loss(a.relu(), b.relu()).item() <= 2


def test_o_sk_4_sizes_that_differ_are_resized():
    small = [maps(2, 3, 6, 6, seed=seed) for seed in range(20)]
    own = [pixel_similarity_loss(x, F.interpolate(x, (8, 8), mode="bilinear")).item() for x in small]
    other = [pixel_similarity_loss(x, maps(2, 3, 8, 8, seed=100 + n)).item() for n, x in enumerate(small)]
    assert all(math.isfinite(value) for value in own)
    assert sum(own) * 4 < sum(other)


# ---- regions and refusals


def test_a_small_region_survives_at_feature_resolution_when_soft_and_not_when_nearest():
    labels = torch.zeros(8, 8, dtype=torch.int64)
    labels[:, 4:], labels[1, 1] = 1, 2
    soft = region_weights(labels, (2, 2))
    assert soft.shape[-3:] == (2, 2, 2)
    assert soft.flatten(-2).sum(-1).gt(0).all()
    features = maps(2, 3, 2, 2)
    found = region_similarity_loss(features, maps(2, 3, 2, 2, seed=1), soft)
    assert math.isfinite(found.item())


def test_what_cannot_be_compared_is_refused():
    a = maps(2, 3, 4, 4)
    with pytest.raises(SettingsError, match="expected regions for the region loss, got none"):
        region_similarity_loss(a, a, None)
    with pytest.raises((SettingsError, ContractError), match="2.*1|1.*2"):
        similarity_loss([a, a], [a], ("batch",))
    with pytest.raises(ContractError):
        batch_similarity_loss(a, a[:1])
    with pytest.raises(SettingsError, match="got 'hw'"):
        pixel_similarity_loss(a, a, "hw")
