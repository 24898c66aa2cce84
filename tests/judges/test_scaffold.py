"""SCAFFOLD by Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, ICML 2020, Algorithm 1 with option II, and SGD without
momentum: y <- y - lr (g - c_i + c), c_i+ <- c_i - c + (x - y) / (K lr), x <- x + lr_g mean(y - x),
c <- c + |S| / N mean(c_i+ - c_i).

Convention: the paper's, with plain means; K is the number of steps that a site took. Where ours differs on purpose:
buffers of batch norm are averaged and have no control variates.
"""

import torch
from judging import LR, ROUNDS, SIZES, agree, batches, mean, parameters, plain_sgd, run, start

AWAY = ("site-2", 2)
"""A site and the step that it misses."""


def test_it_is_the_loop_of_the_paper(tmp_path):
    x, lr_g = start(), 0.8
    c = {name: torch.zeros_like(x[name]) for name in parameters()}
    own = {site: dict(c) for site in SIZES}
    for round_ in range(1, ROUNDS + 1):
        models, changes = [], []
        for site in SIZES:
            if (site, round_) == AWAY:
                continue
            gap = {name: c[name] - own[site][name] for name in c}
            y = plain_sgd(x, site, round_, term=lambda w, gap=gap: sum((w[name] * gap[name]).sum() for name in gap))
            way = len(batches(site, round_)) * LR
            new = {name: own[site][name] - c[name] + (x[name] - y[name]) / way for name in c}
            changes.append({name: new[name] - own[site][name] for name in c})
            own[site] = new
            models.append(y)
        average = mean(models, [1] * len(models))
        x = average | {name: x[name] + lr_g * (average[name] - x[name]) for name in c}
        c = {name: c[name] + sum(change[name] for change in changes) / len(SIZES) for name in c}
    result = run(tmp_path, "scaffold", {"server_lr": lr_g}, away=AWAY)
    agree(result.outcome.models["global"].tensors, x)
