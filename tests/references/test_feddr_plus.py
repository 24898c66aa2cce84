"""Reference implementation of FedDr+.

Under a fixed head whose rows v_c form a simplex, the body minimises beta (1/2) (cos(f, v_y) - 1)^2 + (1 - beta) (1/d)
||f - f_g||^2, where f_g are the features by the received model. Bodies are averaged, weighted by size.

Conventions: The two terms of summaries of the paper, as means over a batch; no code was available. The orientation of
the simplex is not specified, so the reference uses the head of the run and checks that it is a simplex.

Source: Kim, Lee, Jung, Yun et al., arXiv 2406.02355, 2024.
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
from torch.nn import functional as F


@pytest.mark.parametrize(("beta", "momentum"), [(0.9, 0.0), (0.6, 0.9)])
def test_method_equals_the_reference_implementation(tmp_path, beta, momentum):
    result = run_method(tmp_path, "feddr_plus", {"beta": beta}, momentum)
    ours = result.outcome.models["global"].tensors
    rows = ours["head.weight"]
    simplex = 3 / 2 * (torch.eye(3) - 1 / 3).double()
    torch.testing.assert_close(rows @ rows.T, simplex, atol=1e-6, rtol=0)
    assert not ours["head.bias"].any()
    w = initial_model() | {name: ours[name] for name in ("head.weight", "head.bias")}
    for round_ in range(1, ROUNDS + 1):
        received = frozen_model(w)

        def term(features, logits, images, labels, received=received):
            cosines = F.cosine_similarity(features, rows[labels], dim=1)
            gap = features - received.body(images)
            return beta / 2 * (cosines - 1).square().mean() + (1 - beta) * gap.square().mean()

        w = average_models(
            [plain_sgd(w, site, round_, momentum, part="body", extra=term, ce=0.0) for site in SIZES],
            list(SIZES.values()),
        )
    assert_close(ours, w)
