"""Reference implementation of FedBABU.

The head stays the initial one, sites train the body, and bodies are averaged. The test compares the global model before
the fine-tuning.

Conventions: The authors' code takes unweighted means (``weights = uniform``); ``size`` weights by size.

Source: Oh, Kim, Yun, ICLR 2022.
"""

import pytest
from reference_training import ROUNDS, SIZES, assert_close, average_models, initial_model, plain_sgd, run_method


@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_method_equals_the_reference_implementation(tmp_path, weights):
    w = initial_model()
    for round_ in range(1, ROUNDS + 1):
        models = [plain_sgd(w, site, round_, 0.9, part="body") for site in SIZES]
        w = average_models(models, list(SIZES.values()) if weights == "size" else [1, 1, 1])
    result = run_method(tmp_path, "fedbabu", {"weights": weights, "finetune_epochs": 0}, momentum=0.9)
    assert_close(result.outcome.models["global"].tensors, w)
