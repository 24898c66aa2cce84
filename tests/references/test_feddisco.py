"""Reference implementation of FedDisco.

FedAvg with the normalised weights max(0, n_k - a d_k + b), where n_k is a site's share of the images and d_k the
distance of its class shares from equal shares.

Conventions: as in the authors' code: d_k is KL(own || equal), divided by the sum over sites.

Deliberate differences of medfl: If all weights are 0, sites are weighted by size.

Source: Ye, Xu, Wang, Xu, Chen, Wang, ICML 2023.
"""

import math

import pytest
import torch
from reference_training import LABELS, ROUNDS, SIZES, assert_close, average_models, initial_model, plain_sgd, run_method


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.1), (0.8, 0.0)])
def test_method_equals_the_reference_implementation(tmp_path, a, b):
    distances = []
    for site, size in SIZES.items():
        shares = [LABELS[site].count(label) / size for label in range(3)]
        distances.append(sum(p * math.log(p * 3) for p in shares if p > 0))
    total = sum(SIZES.values())
    weights = [
        max(0.0, size / total - a * distance / sum(distances) + b) for size, distance in zip(SIZES.values(), distances)
    ]
    assert torch.tensor(weights).std() > 0.05
    w = initial_model()
    for round_ in range(1, ROUNDS + 1):
        w = average_models([plain_sgd(w, site, round_) for site in SIZES], weights)
    assert_close(run_method(tmp_path, "feddisco", {"a": a, "b": b}).outcome.models["global"].tensors, w)
