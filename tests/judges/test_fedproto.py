"""FedProto, as its paper prints it (Tan et al., AAAI 2022, Algorithm 1 and equations 3 to 8).

Conventions: prototypes are of the trained model over all of a site's images, as printed, and not of the features of the
last epoch on the way, as in the authors' code. The server's mean is over the sites that own a class: uniform as in the
code, or by numbers of images as in the paper, without its further division by the number of owners. The distance is
the mean over features of the squared difference (``mse``, the code) or its sum (``l2``, the paper's text). A class
without a prototype adds nothing but counts in the mean over a batch; in the first round there are none.
"""

import pytest
import torch
from judging import LABELS, LR, ROUNDS, agree, batches, images_of, initial, network, run
from torch.nn import functional as F


def loop(lam, distance, weights, momentum, epochs):
    models, common = {site: initial() for site in LABELS}, {}
    for round_ in range(1, ROUNDS + 1):
        sent = {}
        for site in LABELS:
            model, (images, targets) = network(models[site]), images_of(site)
            speed = [torch.zeros_like(p) for p in model.parameters()]
            for rows in batches(site, round_, epochs):
                features = model.body(images[rows])
                loss = F.cross_entropy(model.head(features), targets[rows])
                for feature, label in zip(features, targets[rows].tolist(), strict=True):
                    if label in common:
                        square = (feature - common[label]).square()
                        loss = loss + lam * (square.mean() if distance == "mse" else square.sum()) / len(rows)
                gradients = torch.autograd.grad(loss, list(model.parameters()))
                with torch.no_grad():
                    for place, (p, gradient) in enumerate(zip(model.parameters(), gradients, strict=True)):
                        speed[place] = momentum * speed[place] + gradient
                        p -= LR * speed[place]
            models[site] = {name: p.detach().clone() for name, p in model.named_parameters()}
            with torch.no_grad():
                features = model.body(images)
            for label in set(targets.tolist()):
                own = features[targets == label]
                sent.setdefault(label, []).append((own.mean(0), len(own) if weights == "counts" else 1))
        for label, owners in sent.items():
            total = sum(weight for _, weight in owners)
            common[label] = sum(weight * prototype for prototype, weight in owners) / total
    return models


@pytest.mark.parametrize(
    ("lam", "distance", "weights", "momentum"),
    [(1.0, "mse", "uniform", 0.0), (5.0, "mse", "counts", 0.9), (0.5, "l2", "uniform", 0.0)],
)
def test_three_rounds_are_those_of_the_loop(tmp_path, lam, distance, weights, momentum):
    args = {"lam": lam, "distance": distance, "weights": weights}
    result = run(tmp_path, "fedproto", args, momentum=momentum)
    for site, tensors in loop(lam, distance, weights, momentum, 2).items():
        agree(result.models[site]["personal"].tensors, tensors)
