"""FedNTD by Lee, Jeong, Shin, Bae, Yun, NeurIPS 2022: cross entropy plus beta tau^2 KL(q_g || q), where q and q_g are
the softened predictions of the model and of the received one over all classes but the true one.

Convention: the paper's and the authors' code; sites weigh by size. The received model is in evaluation mode.
Predictions are compared in float32, as in medfl, of a network in float64; so there is no momentum, which would add up
the rounding.
"""

import pytest
import torch
from judging import ROUNDS, SIZES, agree, frozen, mean, plain_sgd, run, start


def not_true(logits, labels):
    """Logits (B, C - 1) of all classes but the true one."""
    rows = [torch.cat([row[:label], row[label + 1 :]]) for row, label in zip(logits, labels.tolist())]
    return torch.stack(rows)


@pytest.mark.parametrize(("beta", "tau"), [(1.0, 1.0), (0.6, 3.0)])
def test_it_is_the_loop_of_the_paper(tmp_path, beta, tau):
    w = start()
    for round_ in range(1, ROUNDS + 1):
        teacher = frozen(w)

        def term(features, logits, images, labels, teacher=teacher):
            aim = (not_true(teacher(images).float(), labels) / tau).log_softmax(1)
            own = (not_true(logits.float(), labels) / tau).log_softmax(1)
            return beta * tau**2 * (aim.exp() * (aim - own)).sum(1).mean()

        w = mean([plain_sgd(w, site, round_, extra=term) for site in SIZES], list(SIZES.values()))
    result = run(tmp_path, "fedntd", {"beta": beta, "tau": tau})
    agree(result.outcome.models["global"].tensors, w)
