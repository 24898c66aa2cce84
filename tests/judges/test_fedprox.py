"""FedProx by Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, MLSys 2020, Algorithm 2: a site minimises
h(w) = F(w) + (mu/2) ||w - w_t||^2, inexactly, by SGD.

Convention: the paper draws sites by their size and takes the plain mean; here all take part, so that is the mean
weighted by size (as in the authors' code), or, with ``weights = uniform``, the plain one. Where ours differs on
purpose: buffers of batch norm are averaged with the same weights, and are not in the term.
"""

import pytest
from judging import ROUNDS, SIZES, agree, mean, plain_sgd, run, squared, start

MU = 0.7


@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_it_is_the_loop_of_the_paper(tmp_path, weights):
    w = start()
    for round_ in range(1, ROUNDS + 1):
        models = [plain_sgd(w, site, round_, 0.9, lambda own, w=w: MU / 2 * squared(own, w)) for site in SIZES]
        w = mean(models, list(SIZES.values()) if weights == "size" else [1, 1, 1])
    result = run(tmp_path, "fedprox", {"mu": MU, "weights": weights}, momentum=0.9)
    agree(result.outcome.models["global"].tensors, w)
