"""FedBN by Li, Jiang, Zhang, Kamp, Dou, ICLR 2021: FedAvg in which each site keeps its batch-norm layers, with
weights, biases, statistics and counters.

Convention: the authors' code takes plain means (``weights = uniform``); ``size`` weighs by size.
"""

import pytest
from judging import ROUNDS, SIZES, agree, mean, plain_sgd, run, start

NORM = "body.3."
"""What the names of the batch norm's tensors begin with."""


@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_it_is_the_loop_of_the_paper(tmp_path, weights):
    common = {name: tensor for name, tensor in start().items() if not name.startswith(NORM)}
    own = dict.fromkeys(SIZES, start())
    for round_ in range(1, ROUNDS + 1):
        for site in SIZES:
            own[site] = plain_sgd(own[site] | common, site, round_, 0.9)
        average = mean(list(own.values()), list(SIZES.values()) if weights == "size" else [1, 1, 1])
        common = {name: average[name] for name in common}
    result = run(tmp_path, "fedbn", {"weights": weights}, momentum=0.9)
    for site in SIZES:
        agree(result.models[site]["personal"].tensors, own[site] | common)
