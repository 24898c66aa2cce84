"""Reference implementation of FedMD.

Sites train on public images and then on their own. In each round, they send logits of public images, take Adam steps
along the gradient of the mean absolute difference to the unweighted mean of all logits, and then train on their own
images.

Conventions: Logits without softmax and one epoch of the digest phase, as in the authors' code.

Deliberate differences of medfl: The trainings on images use the run's optimiser (Adam in the code) and end after a
number of epochs. Differences up to 1e-5 count as 0.

Source: Li and Wang, 2019, Algorithm 1.
"""

import torch
from reference_training import (
    LABELS,
    LR,
    ROUNDS,
    assert_close,
    batches,
    images_of,
    initial_model,
    network_from,
    run_method,
)
from torch.nn import functional as F

from medfl.testing.cohort import make_data

RATE = 1e-3
PUBLIC, CLASSES = make_data(12, "public").batch(torch.arange(12))


def sgd(tensors, images, targets, drawn):
    model = network_from(tensors)
    for rows in drawn:
        gradients = torch.autograd.grad(F.cross_entropy(model(images[rows]), targets[rows]), list(model.parameters()))
        with torch.no_grad():
            for p, gradient in zip(model.parameters(), gradients, strict=True):
                p -= LR * gradient
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def digested(tensors, mean):
    """Return the model after one Adam step on all public images; a first step is rate g / (|g| + 1e-8)."""
    model = network_from(tensors)
    gap = model(PUBLIC) - mean
    assert gap.abs().min() > 1e-4, "no difference is near what counts as none"
    gradients = torch.autograd.grad(gap.abs().mean(), list(model.parameters()))
    return {
        name: (p - RATE * gradient / (gradient.abs() + 1e-8)).detach()
        for (name, p), gradient in zip(model.named_parameters(), gradients, strict=True)
    }


def test_three_rounds_equal_the_reference_implementation(tmp_path):
    every = torch.arange(12)
    models = {}
    for site in LABELS:
        begun = sgd(initial_model(norm=False), PUBLIC, CLASSES, [every] * 3)
        models[site] = sgd(begun, *images_of(site), batches(site, 1, phase="private", norm=False))
    for round_ in range(1, ROUNDS + 1):
        with torch.no_grad():
            mean = sum(network_from(model)(PUBLIC) for model in models.values()) / len(models)
        for site in LABELS:
            digest = digested(models[site], mean)
            models[site] = sgd(digest, *images_of(site), batches(site, round_, norm=False))
    result = run_method(tmp_path, "fedmd", {"public_epochs": 3, "private_epochs": 2, "digest_lr": RATE}, norm=False)
    for site, tensors in models.items():
        assert_close(result.models[site]["personal"].tensors, tensors)
