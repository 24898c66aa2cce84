"""FedBABU by Oh, Kim, Yun, ICLR 2022: the head stays as it began, sites train the body, bodies are averaged.

Convention: the authors' code takes plain means (``weights = uniform``); ``size`` weighs by size. Judged is the global
model, before the sites fine-tune it.
"""

import pytest
from judging import ROUNDS, SIZES, agree, mean, plain_sgd, run, start


@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_it_is_the_loop_of_the_paper(tmp_path, weights):
    w = start()
    for round_ in range(1, ROUNDS + 1):
        models = [plain_sgd(w, site, round_, 0.9, part="body") for site in SIZES]
        w = mean(models, list(SIZES.values()) if weights == "size" else [1, 1, 1])
    result = run(tmp_path, "fedbabu", {"weights": weights, "finetune_epochs": 0}, momentum=0.9)
    agree(result.outcome.models["global"].tensors, w)
