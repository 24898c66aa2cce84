"""Reference implementation of FENDA-FL's rounds with an optional further loss term, for FENDA-FL and PerFCL."""

import torch
from reference_training import LR, REGISTRY, ROUNDS, SEED, SITES, SIZES, Net, average_models, batches, state_of, task_of
from torch import nn
from torch.nn import functional as F


class ReferenceTwoBodies(nn.Module):
    """Network with a personal body, a global body, and a head on their concatenated or summed features."""

    def __init__(self, join):
        super().__init__()
        self.own, self.body, self.join = Net().body, Net().body, join
        self.head = nn.Linear(12 if join == "concat" else 6, 3).double()

    def classify(self, own, common):
        return self.head(torch.cat([own, common], 1) if self.join == "concat" else own + common)


def two_bodies(tensors, join):
    model = ReferenceTwoBodies(join)
    model.load_state_dict(tensors)
    return model


def initial_tensors(name, args):
    """Return the initial_tensors tensors of a method with two bodies."""
    return REGISTRY.make_method(name, args).task_of(task_of()).initial(SEED)


def train_three_rounds(tensors, join, momentum, term_of):
    """Return each site's model after three rounds.

    Args:
        tensors: Initial tensors of all sites.
        join: ``concat`` or ``sum``.
        momentum: Momentum of SGD.
        term_of: Function that maps a site's last model (None in its first training) and the received tensors to a loss
            term, a function of the images and both features of a batch.
    """
    common = {name: tensor for name, tensor in tensors.items() if name.startswith("body.")}
    own = {}
    for round_ in range(1, ROUNDS + 1):
        for site in SIZES:
            model = two_bodies(own.get(site, tensors) | common, join)
            term = term_of(own.get(site), common)
            optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=momentum)
            for rows in batches(site, round_):
                images, labels = SITES[site].train.batch(rows)
                psi, phi = model.own(images), model.body(images)
                loss = F.cross_entropy(model.classify(psi, phi), labels) + term(images, psi, phi)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            own[site] = state_of(model)
        average = average_models(list(own.values()), list(SIZES.values()))
        common = {name: average[name] for name in common}
    return {site: model | common for site, model in own.items()}
