"""pFedMe by Dinh, Tran, Nguyen, NeurIPS 2020, Algorithm 1: for each batch theta takes K steps of gradient descent
towards the minimum of f(theta) + (lam/2) ||theta - w_k||^2 on it, then w_k <- w_k - eta lam (w_k - theta); the server's
w <- (1 - beta) w + beta times the plain mean of the w_k.

Convention: the paper's equations. The inner steps begin where they ended at the batch before, as in the authors' code
(``inner_start = warm``), or at w_k (``w``). Where ours differs on purpose: no weight decay in the inner steps, which
the paper lacks, too; buffers of batch norm are those of theta's passes, and plainly averaged.
"""

import pytest
import torch
from judging import LR, ROUNDS, SITES, SIZES, agree, batches, mean, network, run, squared, start, state_of
from torch.nn import functional as F

LAM, STEPS, INNER_LR, BETA = 3.0, 4, 0.05, 0.7


def train(received, site, round_, inner_start):
    """A site's theta and w_k after a round, both with theta's buffers."""
    model = network(received)
    theta = dict(model.named_parameters())
    w = {name: p.detach().clone() for name, p in theta.items()}
    for rows in batches(site, round_):
        images, labels = SITES[site].train.batch(rows)
        if inner_start == "w":
            model.load_state_dict(w, strict=False)
        for _ in range(STEPS):
            loss = F.cross_entropy(model(images), labels) + LAM / 2 * squared(theta, w)
            grads = torch.autograd.grad(loss, list(theta.values()))
            with torch.no_grad():
                for p, grad in zip(theta.values(), grads):
                    p -= INNER_LR * grad
        w = {name: w[name] - LR * LAM * (w[name] - p.detach()) for name, p in theta.items()}
    return state_of(model), state_of(model) | w


@pytest.mark.parametrize(("inner_start", "weights"), [("warm", "uniform"), ("w", "size")])
def test_it_is_the_loop_of_the_paper(tmp_path, inner_start, weights):
    w, own = start(), {}
    for round_ in range(1, ROUNDS + 1):
        models = []
        for site in SIZES:
            own[site], model = train(w, site, round_, inner_start)
            models.append(model)
        average = mean(models, [1, 1, 1] if weights == "uniform" else list(SIZES.values()))
        trained = [name for name, _ in network(w).named_parameters()]
        w = average | {name: (1 - BETA) * w[name] + BETA * average[name] for name in trained}
    args = {"lam": LAM, "inner_steps": STEPS, "inner_lr": INNER_LR, "inner_start": inner_start, "beta": BETA}
    result = run(tmp_path, "pfedme", args | {"weights": weights})
    agree(result.outcome.models["global"].tensors, w)
    for site in SIZES:
        buffers = {name: w[name] for name in w if name not in trained}
        agree(result.models[site]["personal"].tensors, own[site] | buffers)
