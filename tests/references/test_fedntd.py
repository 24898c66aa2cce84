"""Reference implementation of FedNTD.

Cross entropy plus beta tau^2 KL(q_g || q), where q and q_g are the softened predictions of the model and of the
received model over all classes but the true one.

Conventions: as in the paper and of the authors' code. Sites are weighted by size. The received model is in evaluation
mode. Predictions are compared in float32, as in medfl, for a network in float64, so the test has no momentum, which
would accumulate rounding errors.

Source: Lee, Jeong, Shin, Bae, Yun, NeurIPS 2022.
"""

import pytest
import torch
from reference_training import (
    ROUNDS,
    SIZES,
    assert_close,
    average_models,
    frozen_model,
    initial_model,
    plain_sgd,
    run_method,
)


def not_true(logits, labels):
    """Return the logits (B, C - 1) of all classes but the true one."""
    rows = [torch.cat([row[:label], row[label + 1 :]]) for row, label in zip(logits, labels.tolist())]
    return torch.stack(rows)


@pytest.mark.parametrize(("beta", "tau"), [(1.0, 1.0), (0.6, 3.0)])
def test_method_equals_the_reference_implementation(tmp_path, beta, tau):
    w = initial_model()
    for round_ in range(1, ROUNDS + 1):
        teacher = frozen_model(w)

        def term(features, logits, images, labels, teacher=teacher):
            aim = (not_true(teacher(images).float(), labels) / tau).log_softmax(1)
            own = (not_true(logits.float(), labels) / tau).log_softmax(1)
            return beta * tau**2 * (aim.exp() * (aim - own)).sum(1).mean()

        w = average_models([plain_sgd(w, site, round_, extra=term) for site in SIZES], list(SIZES.values()))
    result = run_method(tmp_path, "fedntd", {"beta": beta, "tau": tau})
    assert_close(result.outcome.models["global"].tensors, w)
