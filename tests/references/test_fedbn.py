"""Reference implementation of FedBN.

FedAvg in which each site keeps the weights, biases, statistics and counters of its batch-norm layers.

Conventions: The authors' code takes unweighted means (``weights = uniform``); ``size`` weights by size.

Source: Li, Jiang, Zhang, Kamp, Dou, ICLR 2021.
"""

import pytest
from reference_training import ROUNDS, SIZES, assert_close, average_models, initial_model, plain_sgd, run_method

NORM = "body.3."
"""Prefix of the batch-norm layer's tensors."""


@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_method_equals_the_reference_implementation(tmp_path, weights):
    common = {name: tensor for name, tensor in initial_model().items() if not name.startswith(NORM)}
    own = dict.fromkeys(SIZES, initial_model())
    for round_ in range(1, ROUNDS + 1):
        for site in SIZES:
            own[site] = plain_sgd(own[site] | common, site, round_, 0.9)
        average = average_models(list(own.values()), list(SIZES.values()) if weights == "size" else [1, 1, 1])
        common = {name: average[name] for name in common}
    result = run_method(tmp_path, "fedbn", {"weights": weights}, momentum=0.9)
    for site in SIZES:
        assert_close(result.models[site]["personal"].tensors, own[site] | common)
