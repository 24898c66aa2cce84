"""Reference implementation of pFedMe.

For each batch, theta takes K gradient steps towards the minimum of f(theta) + (lam/2) ||theta - w_k||^2; then w_k <-
w_k - eta lam (w_k - theta). The server computes w <- (1 - beta) w + beta times the unweighted mean of the w_k.

Conventions: The equations of the paper. The inner steps start at their end for the previous batch, as in the authors'
code (``inner_start = warm``), or at w_k (``w``).

Deliberate differences of medfl: No weight decay in the inner steps, as in the paper. Batch-norm buffers come from
theta's passes, and are averaged without beta.

Source: Dinh, Tran, Nguyen, NeurIPS 2020, Algorithm 1.
"""

import pytest
import torch
from reference_training import (
    LR,
    ROUNDS,
    SITES,
    SIZES,
    assert_close,
    average_models,
    batches,
    initial_model,
    network_from,
    run_method,
    squared_distance,
    state_of,
)
from torch.nn import functional as F

LAM, STEPS, INNER_LR, BETA = 3.0, 4, 0.05, 0.7


def train(received, site, round_, inner_start):
    """Return a site's theta and w_k after a round, both with theta's buffers."""
    model = network_from(received)
    theta = dict(model.named_parameters())
    w = {name: p.detach().clone() for name, p in theta.items()}
    for rows in batches(site, round_):
        images, labels = SITES[site].train.batch(rows)
        if inner_start == "w":
            model.load_state_dict(w, strict=False)
        for _ in range(STEPS):
            loss = F.cross_entropy(model(images), labels) + LAM / 2 * squared_distance(theta, w)
            grads = torch.autograd.grad(loss, list(theta.values()))
            with torch.no_grad():
                for p, grad in zip(theta.values(), grads):
                    p -= INNER_LR * grad
        w = {name: w[name] - LR * LAM * (w[name] - p.detach()) for name, p in theta.items()}
    return state_of(model), state_of(model) | w


@pytest.mark.parametrize(("inner_start", "weights"), [("warm", "uniform"), ("w", "size")])
def test_method_equals_the_reference_implementation(tmp_path, inner_start, weights):
    w, own = initial_model(), {}
    for round_ in range(1, ROUNDS + 1):
        models = []
        for site in SIZES:
            own[site], model = train(w, site, round_, inner_start)
            models.append(model)
        average = average_models(models, [1, 1, 1] if weights == "uniform" else list(SIZES.values()))
        trained = [name for name, _ in network_from(w).named_parameters()]
        w = average | {name: (1 - BETA) * w[name] + BETA * average[name] for name in trained}
    args = {"lam": LAM, "inner_steps": STEPS, "inner_lr": INNER_LR, "inner_start": inner_start, "beta": BETA}
    result = run_method(tmp_path, "pfedme", args | {"weights": weights})
    assert_close(result.outcome.models["global"].tensors, w)
    for site in SIZES:
        buffers = {name: w[name] for name in w if name not in trained}
        assert_close(result.models[site]["personal"].tensors, own[site] | buffers)
