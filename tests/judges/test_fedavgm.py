"""FedAvgM by Hsu, Qi, Brown, arXiv 1909.06335, 2019: v <- beta v + d, w <- w - lr v, where d is the mean of w_t - w_k,
weighted by size.

Convention: the paper's, which is Flower's, too: v starts at 0 and is no moving average. Where ours differs on purpose:
momentum is for trainable parameters; buffers of batch norm are averaged.
"""

import pytest
from judging import ROUNDS, SIZES, agree, mean, parameters, plain_sgd, run, start


@pytest.mark.parametrize(("beta", "server_lr"), [(0.9, 1.0), (0.5, 0.3)])
def test_it_is_the_loop_of_the_paper(tmp_path, beta, server_lr):
    w = start()
    v = dict.fromkeys(parameters(), 0.0)
    for round_ in range(1, ROUNDS + 1):
        average = mean([plain_sgd(w, site, round_) for site in SIZES], list(SIZES.values()))
        for name in v:
            v[name] = beta * v[name] + (w[name] - average[name])
        w = average | {name: w[name] - server_lr * v[name] for name in v}
    result = run(tmp_path, "fedavgm", {"beta": beta, "server_lr": server_lr})
    agree(result.outcome.models["global"].tensors, w)
