"""Reference implementation of FedSM.

FedAvg, plus a personal model per site, v_k <- lam v_k + (1 - lam) / (K - 1) sum of the others, plus a selector network
that learns by Adam to distinguish the sites' images. The server averages the selector's parameters and moments.

Conventions: The soft pull of the paper. Global model and selector are weighted by size. The selector has a hidden
layer, its batches are the run's batches, and Adam's step count is averaged with its moments.

Source: Xu, Li, Guo, Yang, Roth, Hatamizadeh, Zhao, Xu, Huang, Xu, CVPR 2022.
"""

import torch
from reference_training import (
    ROUNDS,
    SEED,
    SITES,
    SIZES,
    assert_close,
    average_models,
    batches,
    initial_model,
    plain_sgd,
    run_method,
    task_of,
)
from torch.nn import functional as F

from medfl.utils.wire import select
from medfl_methods.fedsm.method import SELECTOR_NAME, FedSM

LAM, RATE, WIDTH = 0.6, 0.01, 3


def adam(tensors, moments, site, round_):
    """Return the selector and its moments after a round: per parameter three tensors, and the step count."""
    w = {name: t.clone().requires_grad_() for name, t in tensors.items()}
    m, v, t = moments
    for rows in batches(site, round_, phase=SELECTOR_NAME, norm=False):
        images, _ = SITES[site].train.batch(rows)
        hidden = F.relu(F.linear(images.flatten(1), w["1.body.stage1.fc.weight"], w["1.body.stage1.fc.bias"]))
        logits = F.linear(hidden, w["1.head.weight"], w["1.head.bias"])
        loss = F.cross_entropy(logits, torch.full((len(rows),), list(SIZES).index(site)))
        grads = dict(zip(w, torch.autograd.grad(loss, list(w.values()))))
        t = t + 1
        m = {name: 0.9 * m[name] + 0.1 * grad for name, grad in grads.items()}
        v = {name: 0.999 * v[name] + 0.001 * grad.square() for name, grad in grads.items()}
        with torch.no_grad():
            for name, p in w.items():
                p -= RATE * m[name] / (1 - 0.9**t) / ((v[name] / (1 - 0.999**t)).sqrt() + 1e-8)
    return {name: p.detach() for name, p in w.items()}, (m, v, t)


def test_method_equals_the_reference_implementation(tmp_path):
    sizes = list(SIZES.values())
    w, own = initial_model(), dict.fromkeys(SIZES, initial_model())
    selector = FedSM(selector_width=WIDTH).with_selector(task_of(), 3).initial(SEED, SELECTOR_NAME)
    zeros = {name: torch.zeros_like(tensor) for name, tensor in selector.items()}
    moments = zeros, zeros, 0.0
    for round_ in range(1, ROUNDS + 1):
        w = average_models([plain_sgd(w, site, round_) for site in SIZES], sizes)
        trained = {site: plain_sgd(own[site], site, round_) for site in SIZES}
        for site in SIZES:
            others = average_models([trained[other] for other in SIZES if other != site], [1, 1])
            own[site] = {
                name: LAM * t + (1 - LAM) * others[name] if t.is_floating_point() else t
                for name, t in trained[site].items()
            }
        selectors = [adam(selector, moments, site, round_) for site in SIZES]
        selector = average_models([each for each, _ in selectors], sizes)
        m, v = (average_models([each[place] for _, each in selectors], sizes) for place in (0, 1))
        moments = m, v, sum(size * each[2] for size, (_, each) in zip(sizes, selectors)) / sum(sizes)
    result = run_method(tmp_path, "fedsm", {"lam": LAM, "selector_lr": RATE, "selector_width": WIDTH})
    assert_close(result.outcome.models["global"].tensors, w)
    personal = result.models["site-1"]["personal"].tensors
    for number, site in enumerate(SIZES):
        assert_close(select(personal, f"own.{number}."), own[site])
    assert_close(select(personal, "selector."), selector)
