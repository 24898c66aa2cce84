"""The forms of the similarity loss against the equations in float64: value, gradient, zero rows, closeness, choice."""

import itertools
import math

import pytest
import torch

from medfl.losses import gram, tiles
from medfl.losses.gram import choose_form, gram_loss

FORMS = ["small", "tiles", "columns"]
EACH_FORM = pytest.mark.parametrize("form", FORMS)


@pytest.fixture(autouse=True)
def _several_tiles(monkeypatch):
    """Tiles and chunks so small that few rows make several of them, the last one smaller."""
    monkeypatch.setattr(tiles, "TILE", 48)
    monkeypatch.setattr("medfl.losses.columns.CHUNK_ELEMENTS", 64 * 24)
    monkeypatch.setattr("medfl.losses.small.CHUNK", 10)


def direct(x, y):
    """The equations in float64, by autograd. A zero row is a constant, its similarity 0."""

    def similarity(h):
        nonzero = (h != 0).any(1, keepdim=True)
        h = torch.where(nonzero, h, 0.0)
        products = h @ h.T
        return products / torch.where(nonzero, products.norm(dim=1, keepdim=True), 1.0) * len(h) ** 0.5

    return (similarity(x.T) - similarity(y.T)).square().sum() / x.shape[1] ** 2


def gradients(loss, x, y):
    x, y = x.detach().clone().requires_grad_(), y.detach().clone().requires_grad_()
    value = loss(x, y)
    return value.detach(), *torch.autograd.grad(value, (x, y))


def expected(x, y):
    return gradients(direct, x.double(), y.double())


def features(kind, n, k, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    if kind == "normal":
        return normal(k, n)
    if kind == "relu":
        return normal(k, n).relu()
    mean = torch.rand(k, 1, generator=torch.Generator().manual_seed(99))
    return (mean + 0.5 * normal(k, n)).relu()  # much in common: all similarities near 1


KINDS = ["normal", "relu", "common"]


def relative(found, right):
    return ((found.double() - right).norm() / right.norm()).item()


def check(found, right, x, y):
    """The accuracy that is promised: relative above a loss of 1e-3, absolute below."""
    loss = right[0].item()
    assert abs(found[0].item() - loss) <= 1e-6 + 1e-5 * loss
    assert found[0].item() >= 0
    for gradient, truth, features_ in zip(found[1:], right[1:], (x, y), strict=True):
        if loss > 1e-3:
            assert relative(gradient, truth) < 1e-5
        # of features of Frobenius norm 1 the gradient is this much larger, so the bound is the strictest meaning
        error = (gradient.double() - truth).norm() * features_.double().norm()
        assert loss > 1e-3 or error < 1e-8 * math.sqrt(gradient.numel())


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
    for _ in range(3):  # the loss goes with the square of the noise
        noise = noise * (loss / direct(x.double(), (x + noise).double())).sqrt().float()
    y = x + noise
    right = expected(x, y)
    assert right[0].item() == pytest.approx(loss, rel=0.2)
    found = gradients(lambda a, b: gram_loss(a, b, form), x, y)
    check(found, right, x, y)
    assert found[0].item() == pytest.approx(right[0].item(), rel=1e-2, abs=1e-12)


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
        value, *found = gradients(lambda a, b: gram_loss(a, b, "columns"), x, y)
        assert value.item() == pytest.approx(right[0].item(), rel=1e-4)
        assert all(relative(f, r) < 1e-5 for f, r in zip(found, right[1:], strict=True))


@EACH_FORM
def test_equal_models_have_loss_0_and_gradient_0_exactly(form):
    for kind, factor in itertools.product(KINDS, (1.0, 2.0)):
        x = features(kind, 150, 24)
        x[:, 7] = 0
        value, gx, gy = gradients(lambda a, b: gram_loss(a, b, form), x, factor * x)
        assert value.item() == 0
        assert torch.count_nonzero(gx) == 0
        assert torch.count_nonzero(gy) == 0


@EACH_FORM
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zero_rows_have_no_similarity_and_no_gradient(form, dtype):
    x, y = features("relu", 150, 24).to(dtype), features("relu", 150, 19, seed=1).to(dtype)
    x[:, [3, 40, 41]], y[:, [41, 99]] = 0, 0
    right = expected(x, y)
    found = gradients(lambda a, b: gram_loss(a, b, form), x, y)
    check(found, right, x, y)
    assert torch.count_nonzero(found[1][:, [3, 40, 41]]) == 0
    assert torch.count_nonzero(found[2][:, [41, 99]]) == 0
    assert torch.count_nonzero(found[1][:, 99]) > 0
    assert relative(found[2][:, 3], right[2][:, 3]) < 1e-5


@EACH_FORM
def test_a_row_that_is_zero_in_one_model_only_counts_as_one(form):
    x = features("relu", 80, 24)
    y = x.clone()
    y[:, :5] = 0
    others = direct(x[:, 5:].double(), y[:, 5:].double()).item()
    assert others == pytest.approx(0, abs=1e-15)
    assert gram_loss(x, y, form).item() == pytest.approx(direct(x.double(), y.double()).item(), rel=1e-5)
    assert gram_loss(x, torch.zeros_like(x), form).item() == 1
    assert gram_loss(torch.zeros_like(x), torch.zeros_like(x), form).item() == 0


@EACH_FORM
def test_models_of_zeros_have_finite_gradients(form):
    x, zero = features("relu", 80, 24), torch.zeros(24, 80)
    for a, b in ((x, zero), (zero, x), (zero, zero)):
        _, ga, gb = gradients(lambda p, q: gram_loss(p, q, form), a, b)
        assert torch.count_nonzero(ga) == 0
        assert torch.count_nonzero(gb) == 0


@EACH_FORM
def test_rows_of_very_unlike_length(form):
    """Where a row is far shorter in one model, its gradient there is far larger than all others."""
    x, noise = features("normal", 300, 24), features("normal", 300, 24, seed=1)
    y = x + 0.1 * noise
    y[:, 5] *= 1e-3
    x[:, 9] *= 1e-2
    check(gradients(lambda a, b: gram_loss(a, b, form), x, y), expected(x, y), x, y)
    lengths = torch.exp(features("normal", 1, 300, seed=2)).T
    y = noise * lengths
    check(gradients(lambda a, b: gram_loss(a, b, form), x, y), expected(x, y), x, y)


@EACH_FORM
@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_scale_is_no_matter_even_where_squares_of_squares_overflow(form, scale):
    x, y = features("relu", 80, 24), features("relu", 80, 24, seed=1)
    plain, scaled = (gradients(lambda a, b: gram_loss(a, b, form), factor * x, y) for factor in (1.0, scale))
    assert scaled[0].item() == pytest.approx(plain[0].item(), rel=1e-5)
    assert relative(scaled[1] * scale, plain[1].double()) < 1e-5
    assert relative(scaled[2], plain[2].double()) < 1e-5


@EACH_FORM
@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)])
def test_autograd_s_own_check(form, wanted, monkeypatch):
    monkeypatch.setattr(tiles, "TILE", 8)
    x, y = features("normal", 20, 4).double(), features("normal", 20, 3, seed=1).double()
    x.requires_grad_(wanted[0])
    y.requires_grad_(wanted[1])
    assert torch.autograd.gradcheck(lambda a, b: gram_loss(a, b, form), (x, y), rtol=1e-6, atol=1e-9)


@EACH_FORM
def test_autograd_s_own_check_at_a_nearly_equal_model(form, monkeypatch):
    monkeypatch.setattr(tiles, "TILE", 8)
    x = features("normal", 20, 3).double()
    y = x + 1e-3 * features("normal", 20, 3, seed=1).double()
    inputs = (x.requires_grad_(), y.requires_grad_())
    assert torch.autograd.gradcheck(lambda a, b: gram_loss(a, b, form), inputs, eps=1e-7, rtol=1e-4, atol=1e-8)


@EACH_FORM
@pytest.mark.parametrize(("n", "k", "other"), [(1, 3, 2), (2, 1, 1), (5, 3, 7), (150, 24, 19), (600, 9, 5)])
def test_float64_agrees_with_the_direct_form_to_1e_10(form, n, k, other):
    x, y = features("normal", n, k).double(), features("normal", n, other, seed=1).double()
    found, right = gradients(lambda a, b: gram_loss(a, b, form), x, y), expected(x, y)
    assert found[0].item() == pytest.approx(right[0].item(), rel=1e-10, abs=1e-12)
    for gradient, truth in zip(found[1:], right[1:], strict=True):
        torch.testing.assert_close(gradient, truth, rtol=1e-10, atol=1e-10 * truth.norm().item() + 1e-12)


@EACH_FORM
def test_one_gradient_is_the_same_as_one_of_two(form):
    x, y = features("relu", 80, 24), features("relu", 80, 24, seed=1)
    _, gx, gy = gradients(lambda a, b: gram_loss(a, b, form), x, y)
    (only_x,) = torch.autograd.grad(gram_loss(x.requires_grad_(), y, form), x)
    (only_y,) = torch.autograd.grad(gram_loss(x.detach(), y.requires_grad_(), form), y)
    assert torch.equal(only_x, gx)
    assert torch.equal(only_y, gy)
    with torch.no_grad():
        assert not gram_loss(x, y, form).requires_grad


@EACH_FORM
def test_gradients_scale_with_what_comes_back(form):
    x, y = features("relu", 80, 24), features("relu", 80, 24, seed=1)
    _, once, _ = gradients(lambda a, b: gram_loss(a, b, form), x, y)
    _, thrice, _ = gradients(lambda a, b: 3 * gram_loss(a, b, form), x, y)
    assert torch.allclose(thrice, 3 * once, rtol=1e-6)


@EACH_FORM
def test_nan_and_infinity_show(form):
    for bad in (float("nan"), float("inf")):
        x, y = features("relu", 80, 24), features("relu", 80, 24, seed=1)
        x[3, 3] = bad
        assert gram_loss(x, y, form).isnan()


@EACH_FORM
def test_any_memory_layout_serves(form):
    x, y = features("relu", 80, 24), features("relu", 80, 24, seed=1)
    plain = gradients(lambda a, b: gram_loss(a, b, form), x, y)
    other = gradients(lambda a, b: gram_loss(a.T, b.T, form), x.T.contiguous(), y.T.contiguous())
    assert other[0].item() == pytest.approx(plain[0].item(), rel=1e-6)
    assert relative(other[1].T, plain[1].double()) < 1e-6
    assert relative(other[2].T, plain[2].double()) < 1e-6


def test_tiles_made_again_give_the_bits_of_tiles_that_were_kept(monkeypatch):
    x, y = features("relu", 80, 24), features("relu", 80, 24, seed=1)
    kept = gradients(lambda a, b: gram_loss(a, b, "tiles"), x, y)
    monkeypatch.setattr(tiles, "KEPT_BYTES", 0)
    again = gradients(lambda a, b: gram_loss(a, b, "tiles"), x, y)
    assert all(torch.equal(a, b) for a, b in zip(kept, again, strict=True))


def test_the_form_goes_with_the_size():
    assert choose_form(8, 884_736) == "small"
    assert choose_form(116, 512) == "small"
    assert choose_form(1728, 1024) == "tiles"
    assert choose_form(13_824, 512) == "columns"
    assert choose_form(13_824, 8192) == "tiles"
    wide = [n for n in range(512, 8192, 64) if choose_form(n, 512) == "columns"]
    assert wide == list(range(wide[0], 8192, 64))


def test_auto_takes_the_form_that_was_chosen(monkeypatch):
    x, y = features("relu", 700, 24), features("relu", 700, 24, seed=1)
    assert torch.equal(gram_loss(x, y), gram_loss(x, y, "columns"))
    monkeypatch.setattr(gram, "choose_form", lambda *sizes: "tiles")
    assert torch.equal(gram_loss(x, y), gram_loss(x, y, "tiles"))
