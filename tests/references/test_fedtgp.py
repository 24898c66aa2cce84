"""Reference implementation of FedTGP.

Sites minimise CE + lam MSE(f, P_y) with the server's prototypes P, and send the mean features of their classes. The
server trains its prototype network to predict the class c of each by the logits -(||P_kc - P_c'|| + m for c' = c). The
margin m is the largest distance, over classes, of a class's mean prototype to the nearest other one, at most tau.

Conventions: as in the authors' code: embedding, linear layer, ReLU, linear layer; plain SGD with a new state in each
round, while the network continues; no distance in the first round. A site sends the mean features of its trained model
over all of its images. The run creates the initial prototype network.

Source: Zhang, Liu, Hua, Cao, AAAI 2024, equations 6 to 9.
"""

import pytest
import torch
from reference_training import (
    ROUNDS,
    SEED,
    SIZES,
    assert_close,
    frozen_model,
    images_of,
    initial_model,
    plain_sgd,
    run_method,
)
from torch import nn
from torch.nn import functional as F

from medfl.utils.rng import seeded_generators

EPOCHS, SERVER_LR = 30, 0.05


def server_network():
    """Return the initial embedding and both initial layers of the server."""
    with seeded_generators(SEED, "initial", "trainable prototypes"):
        return nn.Embedding(3, 6), nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))


def train_prototypes(sent, embedding, layers, tau):
    """Return the prototypes P (classes, d) and the margin without its upper limit."""
    rows, labels = torch.stack([mean for mean, _ in sent]), torch.tensor([label for _, label in sent])
    means = torch.stack([rows[labels == label].mean(0) for label in range(3)])
    gaps = [min(float((means[a] - means[b]).norm()) for b in range(3) if b != a) for a in range(3)]
    parameters = [*embedding.parameters(), *layers.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=SERVER_LR)
    for _ in range(EPOCHS):  # all prototypes are one batch
        prototypes = layers(embedding.weight)
        distances = (rows[:, None] - prototypes[None]).square().sum(2).sqrt()
        logits = -(distances + min(max(gaps), tau) * F.one_hot(labels, 3))
        optimizer.zero_grad()
        F.cross_entropy(logits, labels).backward()
        optimizer.step()
    return layers(embedding.weight).detach(), max(gaps)


@pytest.mark.parametrize(("lam", "tau", "momentum"), [(1.0, 100.0, 0.0), (3.0, 0.2, 0.9)])
def test_method_equals_the_reference_implementation(tmp_path, lam, tau, momentum):
    embedding, layers = server_network()
    models, prototypes = dict.fromkeys(SIZES, initial_model()), None
    for round_ in range(1, ROUNDS + 1):

        def term(features, logits, images, labels, prototypes=prototypes):
            return 0.0 if prototypes is None else lam * (features - prototypes[labels]).square().mean()

        sent = []
        for site in SIZES:
            models[site] = plain_sgd(models[site], site, round_, momentum, extra=term)
            images, labels = images_of(site)
            features = frozen_model(models[site]).body(images).float()
            sent += [(features[labels == label].mean(0), label) for label in sorted(set(labels.tolist()))]
        prototypes, gap = train_prototypes(sent, embedding, layers, tau)
        assert (gap > tau) == (tau < 1)
    args = {"lam": lam, "tau_margin": tau, "server_epochs": EPOCHS, "server_lr": SERVER_LR}
    result = run_method(tmp_path, "fedtgp", args, momentum)
    for site in SIZES:
        assert_close(result.models[site]["personal"].tensors, models[site])
