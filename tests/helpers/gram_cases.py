"""The similarity loss by its equations in float64, features of several kinds, and the accuracy that is promised."""

import math

import pytest
import torch

FORMS = ["small", "tiles", "columns"]
EACH_FORM = pytest.mark.parametrize("form", FORMS)


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


def relative(computed, right):
    return ((computed.double() - right).norm() / right.norm()).item()


def check(computed, right, x, y):
    """The accuracy that is promised: relative above a loss of 1e-3, absolute below."""
    loss = right[0].item()
    assert abs(computed[0].item() - loss) <= 1e-6 + 1e-5 * loss
    assert computed[0].item() >= 0
    for gradient, truth, features_ in zip(computed[1:], right[1:], (x, y), strict=True):
        if loss > 1e-3:
            assert relative(gradient, truth) < 1e-5
        # of features of Frobenius norm 1 the gradient is this much larger, so the bound is the strictest meaning
        error = (gradient.double() - truth).norm() * features_.double().norm()
        assert loss > 1e-3 or error < 1e-8 * math.sqrt(gradient.numel())
