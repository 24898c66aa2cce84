"""FedALA by Zhang, Hua, Wang, Song, Xue, Ma, Guan, AAAI 2023, equations 3 and 4 and Algorithm 1: in its upper layers a
site starts from own + (common - own) W; before it trains, it learns W in [0, 1] on a share of its training images by W
<- clip(W - eta grad (common - own), 0, 1), the first time until the loss stands still, later in one pass a round.

Convention: the authors' code: the loss is that of a pass's last batch, the first W is 1, and sites weigh by size. Where
ours differs on purpose: what is learned is in evaluation mode, the drawn share is no contiguous slice, buffers of batch
norm are the common ones, and there is a limit of passes.
"""

import torch
from judging import BATCH, ROUNDS, SEED, SITES, SIZES, agree, frozen, mean, plain_sgd, run, start
from torch.nn import functional as F

from medfl.utils.rng import make_generator

ETA, SHARE, THRESHOLD, WINDOW = 2.0, 0.7, 1e-3, 3
HEAD = ("head.weight", "head.bias")


def mixture(own, common, weights):
    return {name: own[name] + (common[name] - own[name]) * weights[name] for name in HEAD}


def learn(own, common, weights, site, round_, first):
    """The weights, and the number of passes."""
    drawn = torch.randperm(SIZES[site], generator=make_generator(SEED, site, round_, "mixture"))
    losses = []
    while True:
        for rows in drawn[: int(SHARE * SIZES[site])].split(BATCH):
            images, labels = SITES[site].train.batch(rows)
            model = frozen(common | mixture(own, common, weights))
            model.head.requires_grad_(True)
            loss = F.cross_entropy(model(images), labels)
            grads = dict(zip(HEAD, torch.autograd.grad(loss, [model.head.weight, model.head.bias])))
            weights = {
                name: (weights[name] - ETA * grads[name] * (common[name] - own[name])).clamp(0, 1) for name in HEAD
            }
        losses.append(loss.detach())
        if not first or (len(losses) > WINDOW and torch.stack(losses[-WINDOW:]).std(correction=0) < THRESHOLD):
            return weights, len(losses)


def test_it_is_the_loop_of_the_paper(tmp_path):
    w, own, weights, passes = start(), {}, {}, []
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
        w = mean(list(own.values()), list(SIZES.values()))
    assert WINDOW + 1 < max(passes) < 50
    assert any(0 < weight < 1 for weight in torch.cat([tensor.flatten() for tensor in weights["site-1"].values()]))
    args = {"eta": ETA, "sample_fraction": SHARE, "threshold": THRESHOLD, "window": WINDOW}
    result = run(tmp_path, "fedala", args)
    agree(result.outcome.models["global"].tensors, w)
    for site in SIZES:
        agree(result.models[site]["personal"].tensors, w | mixture(own[site], w, weights[site]))
