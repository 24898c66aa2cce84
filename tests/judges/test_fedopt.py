"""FedAdam, FedYogi and FedAdagrad by Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, ICLR 2021,
Algorithm 2: D is the mean of w_k - w_t, m <- beta1 m + (1 - beta1) D, v by the method's own line,
w <- w + eta m / (sqrt(v) + tau).

Convention: the paper's, without a correction of the bias, v = tau^2 and m = 0 at first. Where ours differs on purpose:
D is weighted by size, as in the authors' code, and not the plain mean of Algorithm 2; buffers of batch norm are
averaged.
"""

import pytest
from judging import ROUNDS, SIZES, agree, mean, parameters, plain_sgd, run, start

SECOND = {
    "fedadam": lambda v, d, beta2: beta2 * v + (1 - beta2) * d**2,
    "fedyogi": lambda v, d, beta2: v - (1 - beta2) * d**2 * (v - d**2).sign(),
    "fedadagrad": lambda v, d, beta2: v + d**2,
}
ETA, TAU, BETA2 = 0.05, 1e-2, 0.99


@pytest.mark.parametrize("name", sorted(SECOND))
def test_it_is_the_loop_of_the_paper(tmp_path, name):
    beta1 = 0.0 if name == "fedadagrad" else 0.9
    w = start()
    m, v = ({key: 0 * w[key] + first for key in parameters()} for first in (0.0, TAU**2))
    for round_ in range(1, ROUNDS + 1):
        average = mean([plain_sgd(w, site, round_) for site in SIZES], list(SIZES.values()))
        new = dict(average)
        for key in m:
            d = average[key] - w[key]
            m[key] = beta1 * m[key] + (1 - beta1) * d
            v[key] = SECOND[name](v[key], d, BETA2)
            new[key] = w[key] + ETA * m[key] / (v[key].sqrt() + TAU)
        w = new
    args = {"eta": ETA, "tau": TAU, "beta1": beta1} | ({} if name == "fedadagrad" else {"beta2": BETA2})
    agree(run(tmp_path, name, args).outcome.models["global"].tensors, w)
