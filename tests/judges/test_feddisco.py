"""FedDisco by Ye, Xu, Wang, Xu, Chen, Wang, ICML 2023: FedAvg whose weights are max(0, n_k - a d_k + b), normalised,
where n_k is a site's share of the images and d_k how far its shares of the classes are from equal ones.

Convention: the authors' code: d_k is KL(own || equal), divided by the sum over sites. Where ours differs on purpose: if
all weights are 0, sites weigh by size.
"""

import math

import pytest
import torch
from judging import LABELS, ROUNDS, SIZES, agree, mean, plain_sgd, run, start


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.1), (0.8, 0.0)])
def test_it_is_the_loop_of_the_paper(tmp_path, a, b):
    distances = []
    for site, size in SIZES.items():
        shares = [LABELS[site].count(label) / size for label in range(3)]
        distances.append(sum(p * math.log(p * 3) for p in shares if p > 0))
    total = sum(SIZES.values())
    weights = [
        max(0.0, size / total - a * distance / sum(distances) + b) for size, distance in zip(SIZES.values(), distances)
    ]
    assert torch.tensor(weights).std() > 0.05
    w = start()
    for round_ in range(1, ROUNDS + 1):
        w = mean([plain_sgd(w, site, round_) for site in SIZES], weights)
    agree(run(tmp_path, "feddisco", {"a": a, "b": b}).outcome.models["global"].tensors, w)
