"""FedDF by Lin, Kong, Stich, Jaggi, NeurIPS 2020, Algorithms 1 and 3: the server starts at the weighted mean of the
sites' models, and takes Adam steps along the gradient of KL(p || q) on public images, q of the server's model and p of
all sites' models: of the mean of their logits (AVGLOGITS), or as ``avg_probs`` in the code.

Conventions: temperature 1, gradients clipped to 5, a cosine to 0 over the steps, as in the authors' code. Where ours
differs on purpose: none here; batch norm, of which there is none, would be in evaluation mode.
"""

import math

import pytest
import torch
from judging import LABELS, LR, ROUNDS, agree, batches, images_of, network, run, start
from torch.nn import functional as F

from medfl.testing.cohort import make_data

STEPS, RATE = 4, 1e-3
PUBLIC = make_data(12, "public").batch(torch.arange(12))[0]


def sgd(tensors, site, round_):
    model, (images, targets) = network(tensors), images_of(site)
    for rows in batches(site, round_, norm=False):
        gradients = torch.autograd.grad(F.cross_entropy(model(images[rows]), targets[rows]), list(model.parameters()))
        with torch.no_grad():
            for p, gradient in zip(model.parameters(), gradients, strict=True):
                p -= LR * gradient
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def distilled(tensors, p):
    """Adam by its formulas, on all public images at once."""
    model = network(tensors)
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
def test_three_rounds_are_those_of_the_loop(tmp_path, ensemble):
    common, total = start(norm=False), sum(len(labels) for labels in LABELS.values())
    for round_ in range(1, ROUNDS + 1):
        ends = {site: sgd(common, site, round_) for site in LABELS}
        mean = {name: sum(len(LABELS[site]) / total * end[name] for site, end in ends.items()) for name in common}
        with torch.no_grad():
            answers = [network(end)(PUBLIC) for end in ends.values()]
        logits, probabilities = torch.stack(answers).mean(0).softmax(1), torch.stack(answers).softmax(2).mean(0)
        common = distilled(mean, logits if ensemble == "avg_logits" else probabilities)
    args = {"ensemble": ensemble, "distil_steps": STEPS, "distil_lr": RATE}
    agree(run(tmp_path, "feddf", args, norm=False).outcome.models["global"].tensors, common)
