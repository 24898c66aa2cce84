"""Reference implementation of SCAFFOLD.

SGD without momentum: y <- y - lr (g - c_i + c), c_i+ <- c_i - c + (x - y) / (K lr), x <- x + lr_g mean(y - x), c <- c +
|S| / N mean(c_i+ - c_i).

Conventions: as in the paper, with unweighted means; K is the number of steps that a site took.

Deliberate differences of medfl: Batch-norm buffers are averaged and have no control variates.

Source: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, ICML 2020, Algorithm 1 with option II.
"""

import torch
from reference_training import (
    LR,
    ROUNDS,
    SIZES,
    assert_close,
    average_models,
    batches,
    initial_model,
    parameter_names,
    plain_sgd,
    run_method,
)

UNAVAILABLE = ("site-2", 2)
"""Name of the unavailable site and the step in which it does not reply."""


def test_method_equals_the_reference_implementation(tmp_path):
    x, lr_g = initial_model(), 0.8
    c = {name: torch.zeros_like(x[name]) for name in parameter_names()}
    own = {site: dict(c) for site in SIZES}
    for round_ in range(1, ROUNDS + 1):
        models, changes = [], []
        for site in SIZES:
            if (site, round_) == UNAVAILABLE:
                continue
            gap = {name: c[name] - own[site][name] for name in c}
            y = plain_sgd(x, site, round_, term=lambda w, gap=gap: sum((w[name] * gap[name]).sum() for name in gap))
            way = len(batches(site, round_)) * LR
            new = {name: own[site][name] - c[name] + (x[name] - y[name]) / way for name in c}
            changes.append({name: new[name] - own[site][name] for name in c})
            own[site] = new
            models.append(y)
        average = average_models(models, [1] * len(models))
        x = average | {name: x[name] + lr_g * (average[name] - x[name]) for name in c}
        c = {name: c[name] + sum(change[name] for change in changes) / len(SIZES) for name in c}
    result = run_method(tmp_path, "scaffold", {"server_lr": lr_g}, unavailable=UNAVAILABLE)
    assert_close(result.outcome.models["global"].tensors, x)
