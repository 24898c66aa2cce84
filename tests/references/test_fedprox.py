"""Reference implementation of FedProx.

A site minimises h(w) = F(w) + (mu/2) ||w - w_t||^2, inexactly, by SGD.

Conventions: The paper samples sites by their size and takes the unweighted mean. Here all sites take part, so the
corresponding mean is weighted by size, as in the authors' code, or unweighted with ``weights = uniform``.

Deliberate differences of medfl: Batch-norm buffers are averaged with the same weights, and are not in the proximal
term.

Source: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, MLSys 2020, Algorithm 2.
"""

import pytest
from reference_training import (
    ROUNDS,
    SIZES,
    assert_close,
    average_models,
    initial_model,
    plain_sgd,
    run_method,
    squared_distance,
)

MU = 0.7


@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_method_equals_the_reference_implementation(tmp_path, weights):
    w = initial_model()
    for round_ in range(1, ROUNDS + 1):
        models = [plain_sgd(w, site, round_, 0.9, lambda own, w=w: MU / 2 * squared_distance(own, w)) for site in SIZES]
        w = average_models(models, list(SIZES.values()) if weights == "size" else [1, 1, 1])
    result = run_method(tmp_path, "fedprox", {"mu": MU, "weights": weights}, momentum=0.9)
    assert_close(result.outcome.models["global"].tensors, w)
