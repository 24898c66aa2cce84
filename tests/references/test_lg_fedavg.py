"""Reference implementation of LG-FedAvg.

A site trains its own body and the shared head together. Heads are averaged.

Conventions: as in the paper; heads are weighted by size, or equally as in the authors' code.

Deliberate differences of medfl: Training starts from the initial model and not from a finished FedAvg run.

Source: Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency, arXiv 2001.01523, 2020.
"""

import pytest
from reference_training import ROUNDS, SIZES, assert_close, average_models, initial_model, plain_sgd, run_method


@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_method_equals_the_reference_implementation(tmp_path, weights):
    common = {name: tensor for name, tensor in initial_model().items() if name.startswith("head.")}
    own = dict.fromkeys(SIZES, initial_model())
    for round_ in range(1, ROUNDS + 1):
        for site in SIZES:
            own[site] = plain_sgd(own[site] | common, site, round_, 0.9)
        average = average_models(list(own.values()), list(SIZES.values()) if weights == "size" else [1, 1, 1])
        common = {name: average[name] for name in common}
    result = run_method(tmp_path, "lg_fedavg", {"weights": weights}, momentum=0.9)
    for site in SIZES:
        assert_close(result.models[site]["personal"].tensors, own[site] | common)
