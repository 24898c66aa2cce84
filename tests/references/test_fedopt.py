"""Reference implementation of FedAdam, FedYogi and FedAdagrad.

D is the mean of w_k - w_t; m <- beta1 m + (1 - beta1) D, v by the method's own formula, w <- w + eta m / (sqrt(v) +
tau).

Conventions: as in the paper: no bias correction, v = tau^2 and m = 0 at first.

Deliberate differences of medfl: D is weighted by size, as in the authors' code, and not the unweighted mean of
Algorithm 2. Batch-norm buffers are averaged.

Source: Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, ICLR 2021, Algorithm 2.
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

SECOND = {
    "fedadam": lambda v, d, beta2: beta2 * v + (1 - beta2) * d**2,
    "fedyogi": lambda v, d, beta2: v - (1 - beta2) * d**2 * (v - d**2).sign(),
    "fedadagrad": lambda v, d, beta2: v + d**2,
}
ETA, TAU, BETA2 = 0.05, 1e-2, 0.99


@pytest.mark.parametrize("name", sorted(SECOND))
def test_method_equals_the_reference_implementation(tmp_path, name):
    beta1 = 0.0 if name == "fedadagrad" else 0.9
    w = initial_model()
    m, v = ({key: 0 * w[key] + first for key in parameter_names()} for first in (0.0, TAU**2))
    for round_ in range(1, ROUNDS + 1):
        average = average_models([plain_sgd(w, site, round_) for site in SIZES], list(SIZES.values()))
        new = dict(average)
        for key in m:
            d = average[key] - w[key]
            m[key] = beta1 * m[key] + (1 - beta1) * d
            v[key] = SECOND[name](v[key], d, BETA2)
            new[key] = w[key] + ETA * m[key] / (v[key].sqrt() + TAU)
        w = new
    args = {"eta": ETA, "tau": TAU, "beta1": beta1} | ({} if name == "fedadagrad" else {"beta2": BETA2})
    assert_close(run_method(tmp_path, name, args).outcome.models["global"].tensors, w)
