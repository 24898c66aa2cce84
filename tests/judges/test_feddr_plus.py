"""FedDr+ by Kim, Lee, Jung, Yun et al., arXiv 2406.02355, 2024: under a fixed head, whose rows v_c are a simplex, the
body learns by beta (1/2) (cos(f, v_y) - 1)^2 + (1 - beta) (1/d) ||f - f_g||^2, where f_g are the features by the
received model; bodies are averaged, weighted by size.

Convention: the two terms as summaries of the paper have them, means over a batch; no code was at hand. How the simplex
lies in the space of features is open: the judge takes the run's head, and looks whether it is one.
"""

import pytest
import torch
from judging import ROUNDS, SIZES, agree, frozen, mean, plain_sgd, run, start
from torch.nn import functional as F


@pytest.mark.parametrize(("beta", "momentum"), [(0.9, 0.0), (0.6, 0.9)])
def test_it_is_the_loop_of_the_paper(tmp_path, beta, momentum):
    result = run(tmp_path, "feddr_plus", {"beta": beta}, momentum)
    ours = result.outcome.models["global"].tensors
    rows = ours["head.weight"]
    simplex = 3 / 2 * (torch.eye(3) - 1 / 3).double()
    torch.testing.assert_close(rows @ rows.T, simplex, atol=1e-6, rtol=0)
    assert not ours["head.bias"].any()
    w = start() | {name: ours[name] for name in ("head.weight", "head.bias")}
    for round_ in range(1, ROUNDS + 1):
        received = frozen(w)

        def term(features, logits, images, labels, received=received):
            cosines = F.cosine_similarity(features, rows[labels], dim=1)
            gap = features - received.body(images)
            return beta / 2 * (cosines - 1).square().mean() + (1 - beta) * gap.square().mean()

        w = mean(
            [plain_sgd(w, site, round_, momentum, part="body", extra=term, ce=0.0) for site in SIZES],
            list(SIZES.values()),
        )
    agree(ours, w)
