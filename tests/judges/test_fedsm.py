"""FedSM by Xu, Li, Guo, Yang, Roth, Hatamizadeh, Zhao, Xu, Huang, Xu, CVPR 2022: FedAvg; beside it a model of each
site's own, v_k <- lam v_k + (1 - lam) / (K - 1) sum of the others'; and a network that learns by Adam to tell the
sites' images apart, of which the server averages parameters and moments.

Convention: the paper's soft pull; common model and selector weigh by size. The selector has a hidden layer, its batches
are those of the run, and Adam's count of steps is averaged with its moments.
"""

import torch
from judging import ROUNDS, SEED, SITES, SIZES, agree, batches, mean, plain_sgd, run, start, task_of
from torch.nn import functional as F

from medfl.utils.wire import select
from medfl_methods.fedsm.method import SELECTOR_NAME, FedSM

LAM, RATE, WIDTH = 0.6, 0.01, 3


def adam(tensors, moments, site, round_):
    """The selector and its moments after a round: three tensors of each parameter, and the number of steps."""
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


def test_it_is_the_loop_of_the_paper(tmp_path):
    sizes = list(SIZES.values())
    w, own = start(), dict.fromkeys(SIZES, start())
    selector = FedSM(selector_width=WIDTH).with_selector(task_of(), 3).initial(SEED, SELECTOR_NAME)
    zeros = {name: torch.zeros_like(tensor) for name, tensor in selector.items()}
    moments = zeros, zeros, 0.0
    for round_ in range(1, ROUNDS + 1):
        w = mean([plain_sgd(w, site, round_) for site in SIZES], sizes)
        trained = {site: plain_sgd(own[site], site, round_) for site in SIZES}
        for site in SIZES:
            others = mean([trained[other] for other in SIZES if other != site], [1, 1])
            own[site] = {
                name: LAM * t + (1 - LAM) * others[name] if t.is_floating_point() else t
                for name, t in trained[site].items()
            }
        selectors = [adam(selector, moments, site, round_) for site in SIZES]
        selector = mean([each for each, _ in selectors], sizes)
        m, v = (mean([each[place] for _, each in selectors], sizes) for place in (0, 1))
        moments = m, v, sum(size * each[2] for size, (_, each) in zip(sizes, selectors)) / sum(sizes)
    result = run(tmp_path, "fedsm", {"lam": LAM, "selector_lr": RATE, "selector_width": WIDTH})
    agree(result.outcome.models["global"].tensors, w)
    personal = result.models["site-1"]["personal"].tensors
    for number, site in enumerate(SIZES):
        agree(select(personal, f"own.{number}."), own[site])
    agree(select(personal, "selector."), selector)
