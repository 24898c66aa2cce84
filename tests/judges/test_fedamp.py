"""FedAMP by Huang et al., AAAI 2021, Algorithm 1: u_k = sum_j xi_kj w_j with xi_kj = (alpha / sigma)
exp(-||w_k - w_j||^2 / sigma) for j != k and xi_kk such that all sum to 1; then w_k minimises f_k(v) +
(lam / (2 alpha)) ||v - u_k||^2.

Convention: the squared norm, as printed; PFLlib takes the norm itself. A site begins at its own w_k, and not at u_k.
Where ours differs on purpose: distances are of parameters, and buffers of batch norm are the site's own.
"""

import math

import pytest
from judging import ROUNDS, SIZES, agree, parameters, plain_sgd, run, squared, start


@pytest.mark.parametrize(("lam", "alpha", "sigma"), [(1.0, 0.4, 1.0), (0.2, 1.0, 8.0)])
def test_it_is_the_loop_of_the_paper(tmp_path, lam, alpha, sigma):
    names, own = parameters(), dict.fromkeys(SIZES, start())
    for round_ in range(1, ROUNDS + 1):
        w = {site: {name: model[name] for name in names} for site, model in own.items()}
        for k in SIZES:
            xi = {j: alpha / sigma * math.exp(-squared(w[k], w[j]).item() / sigma) for j in SIZES if j != k}
            xi[k] = 1 - sum(xi.values())
            u = {name: sum(weight * w[j][name] for j, weight in xi.items()) for name in names}
            term = lambda v, u=u: lam / (2 * alpha) * squared(u, v)  # noqa: E731
            own[k] = plain_sgd(own[k], k, round_, 0.9, term)
    result = run(tmp_path, "fedamp", {"lam": lam, "alpha_k": alpha, "sigma": sigma}, momentum=0.9)
    for site in SIZES:
        agree(result.models[site]["personal"].tensors, own[site])
