"""Reference implementation of FedAvgM.

v <- beta v + d and w <- w - lr v, where d is the mean of w_t - w_k, weighted by size.

Conventions: as in the paper and of Flower: v starts at 0 and is no moving average.

Deliberate differences of medfl: Momentum applies to trainable parameters only; batch-norm buffers are averaged.

Source: Hsu, Qi, Brown, arXiv 1909.06335, 2019.
"""

import pytest
from reference_training import (
    ROUNDS,
    SIZES,
    assert_close,
    average_models,
    initial_model,
    parameter_names,
    plain_sgd,
    run_method,
)


@pytest.mark.parametrize(("beta", "server_lr"), [(0.9, 1.0), (0.5, 0.3)])
def test_method_equals_the_reference_implementation(tmp_path, beta, server_lr):
    w = initial_model()
    v = dict.fromkeys(parameter_names(), 0.0)
    for round_ in range(1, ROUNDS + 1):
        average = average_models([plain_sgd(w, site, round_) for site in SIZES], list(SIZES.values()))
        for name in v:
            v[name] = beta * v[name] + (w[name] - average[name])
        w = average | {name: w[name] - server_lr * v[name] for name in v}
    result = run_method(tmp_path, "fedavgm", {"beta": beta, "server_lr": server_lr})
    assert_close(result.outcome.models["global"].tensors, w)
