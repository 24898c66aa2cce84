"""Supervised contrastive loss (O-PF-7): closed forms, a naive reference, invariances, gradients."""

import math

import pytest
import torch

from medfl_methods.pfedcdp.supcon import supcon


def naive(embeddings, labels, tau):
    """Compute each anchor's loss by two loops over the definition; None without a positive."""
    unit = [row / row.norm() for row in embeddings]
    losses = []
    for i, anchor in enumerate(unit):
        others = [a for a in range(len(unit)) if a != i]
        positives = [j for j in others if labels[j] == labels[i]]
        below = sum(math.exp(float(anchor @ unit[a]) / tau) for a in others)
        logs = [math.log(math.exp(float(anchor @ unit[j]) / tau) / below) for j in positives]
        losses.append(-sum(logs) / len(positives) if positives else None)
    return losses


def random_case(n=14, d=5, classes=3, seed=0):
    rng = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(n, d, generator=rng, dtype=torch.float64)
    return embeddings, torch.randint(classes, (n,), generator=rng)


def test_two_classes_that_are_wholly_apart():
    """Each anchor has its twin at similarity 1 and two others at 0: log(1 + 2 exp(-1 / tau))."""
    embeddings, labels = torch.eye(2, dtype=torch.float64).repeat_interleave(2, 0), torch.tensor([0, 0, 1, 1])
    for tau in (0.1, 0.5, 1.0, 4.0):
        expected = math.log1p(2 * math.exp(-1 / tau))
        assert supcon(embeddings, labels, tau).item() == pytest.approx(expected, rel=1e-12)


def test_opposite_classes():
    """The others have similarity -1: log(1 + 2 exp(-2 / tau))."""
    embeddings = torch.tensor([[3.0], [1.0], [-2.0], [-5.0]], dtype=torch.float64)
    loss = supcon(embeddings, torch.tensor([4, 4, 1, 1]), 0.7)
    assert loss.item() == pytest.approx(math.log1p(2 * math.exp(-2 / 0.7)), rel=1e-12)


@pytest.mark.parametrize("labels", [[0, 0, 0, 1, 1], [2, 2, 2, 2, 2]])
def test_where_all_embeddings_are_one_it_is_the_logarithm_of_the_others(labels):
    embeddings = torch.tensor([[1.0, 2.0]], dtype=torch.float64).repeat(5, 1)
    assert supcon(embeddings, torch.tensor(labels), 0.1).item() == pytest.approx(math.log(4), rel=1e-12)


def test_a_pair_alone_costs_nothing():
    embeddings, _ = random_case(2)
    assert supcon(embeddings, torch.tensor([1, 1])).item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("tau", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_against_two_loops(tau, seed):
    embeddings, labels = random_case(seed=seed)
    each = [value for value in naive(embeddings, labels, tau) if value is not None]
    assert supcon(embeddings, labels, tau).item() == pytest.approx(sum(each) / len(each), rel=1e-10)
    assert supcon(embeddings, labels, tau, "sum").item() == pytest.approx(sum(each), rel=1e-10)


def test_the_sum_is_outside_of_the_logarithm():
    """The logarithm of the mean gives a smaller loss (Jensen's inequality); both agree for a single positive."""
    embeddings, labels = random_case(classes=2)
    unit = embeddings / embeddings.norm(dim=1, keepdim=True)
    weights = (unit @ unit.T).exp().fill_diagonal_(0)
    same = (labels[:, None] == labels).double().fill_diagonal_(0)
    inside = -((weights * same).sum(1) / same.sum(1) / weights.sum(1)).log().mean()
    assert supcon(embeddings, labels, 1.0) > inside + 1e-3


def test_two_views_of_an_image_are_positives_of_each_other():
    """If no other image has its class, the only positive of an image is its other view."""
    embeddings, _ = random_case(8)
    labels = torch.arange(4).repeat(2)
    unit = embeddings / embeddings.norm(dim=1, keepdim=True)
    sims = (unit @ unit.T / 0.5).fill_diagonal_(-torch.inf)
    expected = torch.nn.functional.cross_entropy(sims, torch.arange(8).roll(4))  # NT-Xent of SimCLR
    assert supcon(embeddings, labels, 0.5).item() == pytest.approx(expected.item(), rel=1e-12)


def test_anchors_without_a_positive_are_negatives_only():
    embeddings, _ = random_case(5)
    labels = torch.tensor([0, 0, 1, 2, 2])
    each = naive(embeddings, labels, 0.1)
    assert each[2] is None
    expected = sum(value for value in each if value is not None) / 4
    assert supcon(embeddings, labels).item() == pytest.approx(expected, rel=1e-10)
    alone = torch.cat([embeddings[:2], embeddings[3:]])
    assert supcon(alone, labels[[0, 1, 3, 4]]).item() < expected


@pytest.mark.parametrize("n", [1, 3])
def test_without_any_positive_it_is_zero_with_a_zero_gradient(n):
    embeddings = random_case(n)[0].requires_grad_()
    value = supcon(embeddings, torch.arange(n))
    value.backward()
    assert value.item() == 0
    assert torch.equal(embeddings.grad, torch.zeros_like(embeddings))


def test_norms_rotations_permutations_and_names_of_classes_do_not_matter():
    embeddings, labels = random_case()
    expected = supcon(embeddings, labels).item()
    rng = torch.Generator().manual_seed(3)
    lengths = torch.rand(14, 1, generator=rng, dtype=torch.float64) * 100 + 0.01
    turn, _ = torch.linalg.qr(torch.randn(5, 5, generator=rng, dtype=torch.float64))
    order = torch.randperm(14, generator=rng)
    for changed, named in [
        (embeddings * lengths, labels),
        (embeddings @ turn, labels),
        (embeddings[order], labels[order]),
        (embeddings, torch.tensor([9, 4, 7])[labels]),
    ]:
        assert supcon(changed, named).item() == pytest.approx(expected, rel=1e-10)
    assert supcon(embeddings, labels[order]).item() != pytest.approx(expected, rel=1e-3)


def test_gradients():
    embeddings, labels = random_case(8)
    labels[0] = 9  # an anchor without a positive
    embeddings.requires_grad_()
    assert torch.autograd.gradcheck(lambda e: supcon(e, labels, 0.5), (embeddings,))
    supcon(embeddings, labels, 0.5).backward()
    along = (embeddings.grad * embeddings).sum(1)  # norms have no effect: gradient is orthogonal
    assert along.abs().max() < 1e-12
    assert embeddings.grad.norm() > 0.01


def test_a_tiny_temperature_stays_finite():
    embeddings, labels = random_case()
    embeddings = embeddings.float().requires_grad_()
    value = supcon(embeddings, labels, 1e-3)
    value.backward()
    assert math.isfinite(value.item())
    assert embeddings.grad.isfinite().all()
