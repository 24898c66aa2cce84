"""FedTGP by Zhang, Liu, Hua, Cao, AAAI 2024, equations 6 to 9: sites learn by CE + lam MSE(f, P_y) to the server's
prototypes P and send the mean features of their classes; the server trains its network of prototypes to tell the class
c of each by -(||P_kc - P_c'|| + m for c' = c) as logits. The margin m is the largest over classes of the distance of a
class's mean prototype to the nearest other one, at most tau.

Convention: the authors' code: embedding, linear layer, ReLU, linear layer; plain SGD, which starts anew in each round
while the network goes on; no distance in the first round. A site sends the mean features of its trained model over all
of its images. What the server's network begins with is the run's.
"""

import pytest
import torch
from judging import ROUNDS, SEED, SIZES, agree, frozen, images_of, plain_sgd, run, start
from torch import nn
from torch.nn import functional as F

from medfl.utils.rng import pinned

EPOCHS, SERVER_LR = 30, 0.05


def server_network():
    """The embedding and both layers as the server begins with them."""
    with pinned(SEED, "initial", "trainable prototypes"):
        return nn.Embedding(3, 6), nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))


def train_prototypes(sent, embedding, layers, tau):
    """P (classes, d), and how far the margin would be without its limit."""
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
def test_it_is_the_loop_of_the_paper(tmp_path, lam, tau, momentum):
    embedding, layers = server_network()
    models, prototypes = dict.fromkeys(SIZES, start()), None
    for round_ in range(1, ROUNDS + 1):

        def term(features, logits, images, labels, prototypes=prototypes):
            return 0.0 if prototypes is None else lam * (features - prototypes[labels]).square().mean()

        sent = []
        for site in SIZES:
            models[site] = plain_sgd(models[site], site, round_, momentum, extra=term)
            images, labels = images_of(site)
            features = frozen(models[site]).body(images).float()
            sent += [(features[labels == label].mean(0), label) for label in sorted(set(labels.tolist()))]
        prototypes, gap = train_prototypes(sent, embedding, layers, tau)
        assert (gap > tau) == (tau < 1)
    args = {"lam": lam, "tau_margin": tau, "server_epochs": EPOCHS, "server_lr": SERVER_LR}
    result = run(tmp_path, "fedtgp", args, momentum)
    for site in SIZES:
        agree(result.models[site]["personal"].tensors, models[site])
