"""Algorithms of the similarity loss: zero rows, autograd, scale, memory layout, choice of the algorithm."""

import itertools

import pytest
import torch
from gram_cases import EACH_FORM, KINDS, check, direct, expected, features, gradients, relative

from medfl_methods.fedskd import gram
from medfl_methods.fedskd import similarity_nxn as tiles
from medfl_methods.fedskd.gram import choose_algorithm, gram_loss
from medfl_methods.fedskd.similarity_kxk import RowScale, row_terms


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
    computed = gradients(lambda a, b: gram_loss(a, b, form), x, y)
    check(computed, right, x, y)
    assert torch.count_nonzero(computed[1][:, [3, 40, 41]]) == 0
    assert torch.count_nonzero(computed[2][:, [41, 99]]) == 0
    assert torch.count_nonzero(computed[1][:, 99]) > 0
    assert relative(computed[2][:, 3], right[2][:, 3]) < 1e-5


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
    monkeypatch.setattr(tiles, "CPU_TILE_ROWS", 8)
    x, y = features("normal", 20, 4).double(), features("normal", 20, 3, seed=1).double()
    x.requires_grad_(wanted[0])
    y.requires_grad_(wanted[1])
    assert torch.autograd.gradcheck(lambda a, b: gram_loss(a, b, form), (x, y), rtol=1e-6, atol=1e-9)


@EACH_FORM
def test_autograd_s_own_check_at_a_nearly_equal_model(form, monkeypatch):
    monkeypatch.setattr(tiles, "CPU_TILE_ROWS", 8)
    x = features("normal", 20, 3).double()
    y = x + 1e-3 * features("normal", 20, 3, seed=1).double()
    inputs = (x.requires_grad_(), y.requires_grad_())
    assert torch.autograd.gradcheck(lambda a, b: gram_loss(a, b, form), inputs, eps=1e-7, rtol=1e-4, atol=1e-8)


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
def test_autocast_of_the_caller_changes_no_bit(form):
    x, y = features("relu", 80, 24), features("relu", 80, 24, seed=1)
    plain = gradients(lambda a, b: gram_loss(a, b, form), x, y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under = gradients(lambda a, b: gram_loss(a, b, form), x, y)
    assert all(torch.equal(a, b) for a, b in zip(plain, under, strict=True))


@EACH_FORM
def test_nan_and_infinity_show(form):
    for bad in (float("nan"), float("inf")):
        x, y = features("relu", 80, 24), features("relu", 80, 24, seed=1)
        x[3, 3] = bad
        assert gram_loss(x, y, form).isnan()


@EACH_FORM
def test_any_memory_layout_serves(form):
    x, y = features("relu", 80, 24), features("relu", 80, 24, seed=1)
    x[:, 5] = 0
    plain = gradients(lambda a, b: gram_loss(a, b, form), x, y)
    other = gradients(lambda a, b: gram_loss(a.T, b.T, form), x.T.contiguous(), y.T.contiguous())
    assert other[0].item() == pytest.approx(plain[0].item(), rel=1e-6)
    assert relative(other[1].T, plain[1].double()) < 1e-6
    assert relative(other[2].T, plain[2].double()) < 1e-6


def test_a_loss_is_never_negative_by_rounding():
    ones, none = torch.ones(1, dtype=torch.float64), RowScale(torch.ones(()), torch.ones(1))
    for excess in (0.0, 1e-9, 1e-7):  # by rounding, the projection of d on g is longer than d
        terms = row_terms(ones, ones, torch.full_like(ones, 1e-3 + excess), ones * 1e-6, none, none, torch.float32)
        assert terms.loss.item() >= 0


@EACH_FORM
def test_rows_too_short_for_single_precision_count_as_zero_rows(form):
    x, y = features("relu", 80, 24), features("relu", 80, 24, seed=1)
    short, gone = x.clone(), x.clone()
    short[:, 3], gone[:, 3] = 1e-30 * x[:, 3], 0
    computed, right = (gradients(lambda a, b: gram_loss(a, b, form), z, y) for z in (short, gone))
    assert computed[0].item() == pytest.approx(right[0].item(), rel=1e-6)
    assert torch.count_nonzero(computed[1][:, 3]) == 0
    assert relative(computed[1], right[1].double()) < 1e-6
    assert relative(computed[2], right[2].double()) < 1e-6


def test_tiles_made_again_give_the_bits_of_tiles_that_were_kept(monkeypatch):
    x, y = features("relu", 80, 24), features("relu", 80, 24, seed=1)
    kept = gradients(lambda a, b: gram_loss(a, b, "tiles"), x, y)
    monkeypatch.setattr(tiles, "MAX_STORED_GRAM_BYTES", 0)
    again = gradients(lambda a, b: gram_loss(a, b, "tiles"), x, y)
    assert all(torch.equal(a, b) for a, b in zip(kept, again, strict=True))


def test_the_form_goes_with_the_size():
    assert choose_algorithm(8, 884_736) == "small"
    assert choose_algorithm(116, 512) == "small"
    assert choose_algorithm(1728, 1024) == "tiles"
    assert choose_algorithm(13_824, 512) == "columns"
    assert choose_algorithm(13_824, 8192) == "tiles"
    wide = [n for n in range(512, 8192, 64) if choose_algorithm(n, 512) == "columns"]
    assert wide == list(range(wide[0], 8192, 64))


def test_auto_takes_the_form_that_was_chosen(monkeypatch):
    x, y = features("relu", 700, 24), features("relu", 700, 24, seed=1)
    assert torch.equal(gram_loss(x, y), gram_loss(x, y, "columns"))
    monkeypatch.setattr(gram, "choose_algorithm", lambda *sizes: "tiles")
    assert torch.equal(gram_loss(x, y), gram_loss(x, y, "tiles"))
