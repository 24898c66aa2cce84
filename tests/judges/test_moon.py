"""MOON by Li, He, Song, CVPR 2021, Algorithm 1 and equation 3: a site adds mu times the mean of
-log(e^{cos(z, g)/tau} / (e^{cos(z, g)/tau} + e^{cos(z, p)/tau})), with z, g, p the features by the model in training,
the received one and the one that the site trained last.

Convention: the paper's, with means weighted by size, and the body's features without a projection head. Where ours
differs on purpose: models that stay are in evaluation mode, and in a site's first training there is no term, where the
authors' code takes the initial model as the previous one, whose contrast is ln 2 at first.
"""

import pytest
import torch
from judging import LABELS, LR, ROUNDS, agree, batches, images_of, initial, network, run
from torch.nn import functional as F

MU, TAU, EPOCHS = 2.0, 0.4, 2


def cosine(left, right):
    return (left * right).sum(1) / (left.norm(dim=1) * right.norm(dim=1))


@pytest.mark.parametrize("away", [None, ("site-2", 2)])
def test_it_is_the_loop_of_the_paper(tmp_path, away):
    w, previous = initial(), {}
    for round_ in range(1, ROUNDS + 1):
        ends = {}
        for site in LABELS:
            if (site, round_) == away:
                continue
            images, labels = images_of(site)
            model, received = network(w), network(w)
            old = network(previous[site]) if site in previous else None
            for rows in batches(site, round_, EPOCHS):
                x, y = images[rows], labels[rows]
                loss = F.cross_entropy(model(x), y)
                if old is not None:
                    z, g, p = model.body(x), received.body(x).detach(), old.body(x).detach()
                    near, far = (torch.exp(cosine(z, other) / TAU) for other in (g, p))
                    loss = loss - MU * torch.log(near / (near + far)).mean()
                grads = torch.autograd.grad(loss, list(model.parameters()))
                with torch.no_grad():
                    for parameter, grad in zip(model.parameters(), grads, strict=True):
                        parameter -= LR * grad
            ends[site] = previous[site] = {n: t.detach().clone() for n, t in model.state_dict().items()}
        total = sum(len(LABELS[site]) for site in ends)
        w = {name: sum(len(LABELS[site]) * end[name] for site, end in ends.items()) / total for name in w}
    result = run(tmp_path, "moon", {"mu": MU, "tau": TAU, "proj_dim": 0}, epochs=EPOCHS, away=away)
    agree(result.outcome.models["global"].tensors, w)
