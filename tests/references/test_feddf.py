"""Reference implementation of FedDF.

The server starts at the weighted mean of the sites' models and takes Adam steps along the gradient of KL(p || q) on
public images. q is the prediction of the server's model. p is the prediction of all sites' models: the softmax of their
mean logits (AVGLOGITS), or the mean probabilities (``avg_probs`` in the code).

Conventions: as in the authors' code: temperature 1, gradients clipped to 5, and a learning rate that falls to 0 along a
cosine. The network has no batch norm; medfl would keep it in evaluation mode.

Source: Lin, Kong, Stich, Jaggi, NeurIPS 2020, Algorithms 1 and 3.
"""

import math

import pytest
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

STEPS, RATE = 4, 1e-3
PUBLIC = make_data(12, "public").batch(torch.arange(12))[0]


def sgd(tensors, site, round_):
    model, (images, targets) = network_from(tensors), images_of(site)
    for rows in batches(site, round_, norm=False):
        gradients = torch.autograd.grad(F.cross_entropy(model(images[rows]), targets[rows]), list(model.parameters()))
        with torch.no_grad():
            for p, gradient in zip(model.parameters(), gradients, strict=True):
                p -= LR * gradient
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def distilled(tensors, p):
    """Return the model after Adam steps by its formulas, on all public images at once."""
    model = network_from(tensors)
    first, second = ([torch.zeros_like(w) for w in model.parameters()] for _ in range(2))
    for step in range(STEPS):
        rate = RATE * (1 + math.cos(math.pi * step / STEPS)) / 2
        loss = (p * (p.log() - model(PUBLIC).log_softmax(1))).sum(1).mean()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
        with torch.no_grad():
            for place, (w, gradient) in enumerate(zip(model.parameters(), gradients, strict=True)):
                clipped = gradient * min(1.0, 5 / norm.item())
                first[place] = 0.9 * first[place] + 0.1 * clipped
                second[place] = 0.999 * second[place] + 0.001 * clipped.square()
                way = (first[place] / (1 - 0.9 ** (step + 1))) / (
                    (second[place] / (1 - 0.999 ** (step + 1))).sqrt() + 1e-8
                )
                w -= rate * way
    return {name: w.detach().clone() for name, w in model.named_parameters()}


@pytest.mark.parametrize("ensemble", ["avg_logits", "avg_probs"])
def test_three_rounds_equal_the_reference_implementation(tmp_path, ensemble):
    common, total = initial_model(norm=False), sum(len(labels) for labels in LABELS.values())
    for round_ in range(1, ROUNDS + 1):
        ends = {site: sgd(common, site, round_) for site in LABELS}
        mean = {name: sum(len(LABELS[site]) / total * end[name] for site, end in ends.items()) for name in common}
        with torch.no_grad():
            answers = [network_from(end)(PUBLIC) for end in ends.values()]
        logits, probabilities = torch.stack(answers).mean(0).softmax(1), torch.stack(answers).softmax(2).mean(0)
        common = distilled(mean, logits if ensemble == "avg_logits" else probabilities)
    args = {"ensemble": ensemble, "distil_steps": STEPS, "distil_lr": RATE}
    assert_close(run_method(tmp_path, "feddf", args, norm=False).outcome.models["global"].tensors, common)
