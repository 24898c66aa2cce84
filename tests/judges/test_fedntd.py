"""FedNTD by Lee, Jeong, Shin, Bae, Yun, NeurIPS 2022, equations 3 to 5: a site adds beta tau^2 KL(g || z) of the
softmax outputs of the received model and of the one in training over the classes that an image is not of.

Convention: the paper's and the authors' code's, mean over the images of a batch, means of models weighted by size. The
true class is left out by its place, not by a small logit.
"""

import pytest
import torch
from judging import LABELS, LR, ROUNDS, agree, batches, images_of, initial, network, run
from torch.nn import functional as F

BETA, EPOCHS = 1.5, 2


def others(logits, labels):
    """The logits (B, C - 1) of the classes that each image is not of."""
    return torch.stack([torch.cat([row[:y], row[y + 1 :]]) for row, y in zip(logits, labels.tolist(), strict=True)])


@pytest.mark.parametrize(("tau", "away"), [(1.0, None), (3.0, ("site-1", 2))])
def test_it_is_the_loop_of_the_paper(tmp_path, tau, away):
    w = initial()
    for round_ in range(1, ROUNDS + 1):
        ends = {}
        for site in (site for site in LABELS if (site, round_) != away):
            images, labels = images_of(site)
            model, received = network(w), network(w)
            for rows in batches(site, round_, EPOCHS):
                x, y = images[rows], labels[rows]
                z, g = (others(net(x), y) / tau for net in (model, received))
                p, q = z.softmax(1), g.detach().softmax(1)
                divergence = (q * (q / p).log()).sum(1).mean()
                loss = F.cross_entropy(model(x), y) + BETA * tau**2 * divergence
                grads = torch.autograd.grad(loss, list(model.parameters()))
                with torch.no_grad():
                    for parameter, grad in zip(model.parameters(), grads, strict=True):
                        parameter -= LR * grad
            ends[site] = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        total = sum(len(LABELS[site]) for site in ends)
        w = {name: sum(len(LABELS[site]) * end[name] for site, end in ends.items()) / total for name in w}
    result = run(tmp_path, "fedntd", {"beta": BETA, "tau": tau}, epochs=EPOCHS, away=away)
    agree(result.outcome.models["global"].tensors, w)
