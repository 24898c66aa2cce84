"""LG-FedAvg by Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency, arXiv 2001.01523, 2020: a site trains
its own body and the common head together; heads are averaged.

Convention: the paper's; heads weigh by size, or alike as in the authors' code. Where ours differs on purpose: it begins
with the initial model and not with a finished FedAvg.
"""

import pytest
from judging import ROUNDS, SIZES, agree, mean, plain_sgd, run, start


@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_it_is_the_loop_of_the_paper(tmp_path, weights):
    common = {name: tensor for name, tensor in start().items() if name.startswith("head.")}
    own = dict.fromkeys(SIZES, start())
    for round_ in range(1, ROUNDS + 1):
        for site in SIZES:
            own[site] = plain_sgd(own[site] | common, site, round_, 0.9)
        average = mean(list(own.values()), list(SIZES.values()) if weights == "size" else [1, 1, 1])
        common = {name: average[name] for name in common}
    result = run(tmp_path, "lg_fedavg", {"weights": weights}, momentum=0.9)
    for site in SIZES:
        agree(result.models[site]["personal"].tensors, own[site] | common)
