"""Reference implementation of FedAMP.

u_k = sum_j xi_kj w_j with xi_kj = (alpha / sigma) exp(-||w_k - w_j||^2 / sigma) for j != k, and xi_kk such that all sum
to 1. Then w_k minimises f_k(v) + (lam / (2 alpha)) ||v - u_k||^2.

Conventions: The squared norm, as printed; PFLlib uses the norm itself. A site starts at its own w_k, not at u_k.

Deliberate differences of medfl: Distances use parameters only, and batch-norm buffers stay at the site.

Source: Huang et al., AAAI 2021, Algorithm 1.
"""

import math

import pytest
from reference_training import (
    ROUNDS,
    SIZES,
    assert_close,
    initial_model,
    parameter_names,
    plain_sgd,
    run_method,
    squared_distance,
)


@pytest.mark.parametrize(("lam", "alpha", "sigma"), [(1.0, 0.4, 1.0), (0.2, 1.0, 8.0)])
def test_method_equals_the_reference_implementation(tmp_path, lam, alpha, sigma):
    names, own = parameter_names(), dict.fromkeys(SIZES, initial_model())
    for round_ in range(1, ROUNDS + 1):
        w = {site: {name: model[name] for name in names} for site, model in own.items()}
        for k in SIZES:
            xi = {j: alpha / sigma * math.exp(-squared_distance(w[k], w[j]).item() / sigma) for j in SIZES if j != k}
            xi[k] = 1 - sum(xi.values())
            u = {name: sum(weight * w[j][name] for j, weight in xi.items()) for name in names}
            term = lambda v, u=u: lam / (2 * alpha) * squared_distance(u, v)  # noqa: E731
            own[k] = plain_sgd(own[k], k, round_, 0.9, term)
    result = run_method(tmp_path, "fedamp", {"lam": lam, "alpha_k": alpha, "sigma": sigma}, momentum=0.9)
    for site in SIZES:
        assert_close(result.models[site]["personal"].tensors, own[site])
