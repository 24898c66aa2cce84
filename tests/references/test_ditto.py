"""Reference implementation of Ditto.

Beside FedAvg's local training from w_t, a site takes steps v <- v - lr (grad F(v) + lam (v - w_t)) on its personal
model.

Conventions: as in the paper. The authors' code takes the unweighted mean of the sites' models, as the preset ``paper``
does. Both trainings use the same batches, which the paper does not specify.

Deliberate differences of medfl: v_k starts as the first model that the site receives, and has its own batch-norm
buffers, which are not in the regulariser.

Source: Li, Hu, Beirami, Smith, ICML 2021, Algorithm 1.
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

LAM = 0.6


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_method_equals_the_reference_implementation(tmp_path, momentum):
    w = initial_model()
    own = dict.fromkeys(SIZES, w)
    for round_ in range(1, ROUNDS + 1):
        for site in SIZES:
            own[site] = plain_sgd(own[site], site, round_, momentum, lambda v, w=w: LAM / 2 * squared_distance(v, w))
        w = average_models([plain_sgd(w, site, round_, momentum) for site in SIZES], [1, 1, 1])
    result = run_method(tmp_path, "ditto", {"lam": LAM, "preset": "paper"}, momentum=momentum)
    assert_close(result.outcome.models["global"].tensors, w)
    for site in SIZES:
        assert_close(result.models[site]["personal"].tensors, own[site])
