"""Reference implementation of FLASH.

With D the mean of w_k - w_t, for each coordinate: m <- b1 m + (1 - b1) D; v' = b2 v + (1 - b2) D^2; b3 = |v| / (|D^2 -
v'| + |v|); delta <- b3 delta + (1 - b3) (D^2 - v'); w <- w + eta m / (sqrt(v') - delta + tau).

Conventions: Norms are taken per coordinate, as in FL4Health; means are unweighted.

Deliberate differences of medfl: Sites do not stop early. With ``guard`` (the default), the denominator is at least tau.
Batch-norm buffers are averaged.

Source: Panchal, Choudhary, Mitra, Mukherjee, Sarkhel, Mitra, Guan, ICML 2023, Algorithm 1.
"""

import pytest
import torch
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

ETA, BETA1, BETA2, TAU = 0.002, 0.8, 0.999, 0.001


@pytest.mark.parametrize("guard", [True, False])
def test_method_equals_the_reference_implementation(tmp_path, guard):
    w, least = initial_model(), []
    m, v, delta = ({name: torch.zeros_like(w[name]) for name in parameter_names()} for _ in range(3))
    for round_ in range(1, ROUNDS + 1):
        average = average_models([plain_sgd(w, site, round_) for site in SIZES], [1, 1, 1])
        new = dict(average)
        for name in m:
            d = average[name] - w[name]
            m[name] = BETA1 * m[name] + (1 - BETA1) * d
            second = BETA2 * v[name] + (1 - BETA2) * d**2
            drift = d**2 - second
            b3 = torch.nan_to_num(v[name].abs() / (drift.abs() + v[name].abs()))  # 0/0 is 0
            delta[name] = b3 * delta[name] + (1 - b3) * drift
            v[name] = second
            denominator = second.sqrt() - delta[name] + TAU
            least.append(float(denominator.min()))
            if guard:
                denominator = denominator.clamp(min=TAU)
            new[name] = w[name] + ETA * m[name] / denominator
        w = new
    assert min(least) < TAU  # the guard has something to do
    args = {"eta": ETA, "beta1": BETA1, "beta2": BETA2, "tau": TAU, "guard": guard}
    assert_close(run_method(tmp_path, "flash", args).outcome.models["global"].tensors, w)
