"""FedMD by Li and Wang, 2019, Algorithm 1: sites train on public images and then on their own; in each round they send
logits of public images, and take Adam steps along the gradient of the mean absolute difference to the plain mean of
all, before they train on their own images.

Conventions: logits before any softmax, one epoch of the digest, as in the authors' code. Where ours differs on purpose:
the trainings on images have the run's optimiser (the code has Adam) and end after a number of epochs; differences up to
1e-5 count as none.
"""

import torch
from judging import LABELS, LR, ROUNDS, agree, batches, images_of, network, run, start
from torch.nn import functional as F

from medfl.testing.cohort import make_data

RATE = 1e-3
PUBLIC, CLASSES = make_data(12, "public").batch(torch.arange(12))


def sgd(tensors, images, targets, drawn):
    model = network(tensors)
    for rows in drawn:
        gradients = torch.autograd.grad(F.cross_entropy(model(images[rows]), targets[rows]), list(model.parameters()))
        with torch.no_grad():
            for p, gradient in zip(model.parameters(), gradients, strict=True):
                p -= LR * gradient
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def digested(tensors, mean):
    """One step of Adam on all public images at once: its first step is rate g / (|g| + 1e-8)."""
    model = network(tensors)
    gap = model(PUBLIC) - mean
    assert gap.abs().min() > 1e-4, "no difference is near what counts as none"
    gradients = torch.autograd.grad(gap.abs().mean(), list(model.parameters()))
    return {
        name: (p - RATE * gradient / (gradient.abs() + 1e-8)).detach()
        for (name, p), gradient in zip(model.named_parameters(), gradients, strict=True)
    }


def test_three_rounds_are_those_of_the_loop(tmp_path):
    every = torch.arange(12)
    models = {}
    for site in LABELS:
        begun = sgd(start(norm=False), PUBLIC, CLASSES, [every] * 3)
        models[site] = sgd(begun, *images_of(site), batches(site, 1, phase="private", norm=False))
    for round_ in range(1, ROUNDS + 1):
        with torch.no_grad():
            mean = sum(network(model)(PUBLIC) for model in models.values()) / len(models)
        for site in LABELS:
            digest = digested(models[site], mean)
            models[site] = sgd(digest, *images_of(site), batches(site, round_, norm=False))
    result = run(tmp_path, "fedmd", {"public_epochs": 3, "private_epochs": 2, "digest_lr": RATE}, norm=False)
    for site, tensors in models.items():
        agree(result.models[site]["personal"].tensors, tensors)
