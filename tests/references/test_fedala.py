"""Reference implementation of FedALA.

In its upper layers, a site starts from own + (common - own) W. Before training, it learns W in [0, 1] on a share of its
training images by W <- clip(W - eta grad (common - own), 0, 1): the first time until the loss converges, later in one
pass per round.

Conventions: as in the authors' code: the loss is the loss of a pass's last batch, the first W is 1, and sites are
weighted by size.

Deliberate differences of medfl: W is learned in evaluation mode, the drawn share is no contiguous slice, batch-norm
buffers come from the global model, and the number of passes is limited.

Source: Zhang, Hua, Wang, Song, Xue, Ma, Guan, AAAI 2023, equations 3 and 4 and Algorithm 1.
"""

import torch
from reference_training import (
    BATCH,
    ROUNDS,
    SEED,
    SITES,
    SIZES,
    assert_close,
    average_models,
    frozen_model,
    initial_model,
    plain_sgd,
    run_method,
)
from torch.nn import functional as F

from medfl.utils.rng import make_generator

ETA, SHARE, THRESHOLD, WINDOW = 2.0, 0.7, 1e-3, 3
HEAD = ("head.weight", "head.bias")


def mixture(own, common, weights):
    return {name: own[name] + (common[name] - own[name]) * weights[name] for name in HEAD}


def learn(own, common, weights, site, round_, first):
    """Return the weights W and the number of passes."""
    drawn = torch.randperm(SIZES[site], generator=make_generator(SEED, site, round_, "mixture"))
    losses = []
    while True:
        for rows in drawn[: int(SHARE * SIZES[site])].split(BATCH):
            images, labels = SITES[site].train.batch(rows)
            model = frozen_model(common | mixture(own, common, weights))
            model.head.requires_grad_(True)
            loss = F.cross_entropy(model(images), labels)
            grads = dict(zip(HEAD, torch.autograd.grad(loss, [model.head.weight, model.head.bias])))
            weights = {
                name: (weights[name] - ETA * grads[name] * (common[name] - own[name])).clamp(0, 1) for name in HEAD
            }
        losses.append(loss.detach())
        if not first or (len(losses) > WINDOW and torch.stack(losses[-WINDOW:]).std(correction=0) < THRESHOLD):
            return weights, len(losses)


def test_method_equals_the_reference_implementation(tmp_path):
    w, own, weights, passes = initial_model(), {}, {}, []
    for round_ in range(1, ROUNDS + 1):
        for site in SIZES:
            begun = w
            if site in own:
                ones = {name: torch.ones_like(w[name]) for name in HEAD}
                first = site not in weights
                weights[site], count = learn(own[site], w, weights.get(site, ones), site, round_, first)
                passes += [count] if first else []
                begun = w | mixture(own[site], w, weights[site])
            own[site] = plain_sgd(begun, site, round_)
        w = average_models(list(own.values()), list(SIZES.values()))
    assert WINDOW + 1 < max(passes) < 50
    assert any(0 < weight < 1 for weight in torch.cat([tensor.flatten() for tensor in weights["site-1"].values()]))
    args = {"eta": ETA, "sample_fraction": SHARE, "threshold": THRESHOLD, "window": WINDOW}
    result = run_method(tmp_path, "fedala", args)
    assert_close(result.outcome.models["global"].tensors, w)
    for site in SIZES:
        assert_close(result.models[site]["personal"].tensors, w | mixture(own[site], w, weights[site]))
