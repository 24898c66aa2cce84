"""Reference implementation of FedCE.

The weight of a site depends on the dissimilarity of its update to the weighted sum of the others, and on the error, on
its validation images, of the mean without its last model.

Conventions: as in FedCE in NVIDIA FLARE: running means over the rounds, a first round whose metric is 0, both shares
added or multiplied, weights used in the same round. The metric is the accuracy; cosines use parameters.

Source: Jiang, Roth, Li, Yang, Zhao, Nath, Xu, Dou, Xu, CVPR 2023.
"""

import pytest
import torch
from reference_training import (
    ROUNDS,
    SITES,
    SIZES,
    assert_close,
    average_models,
    frozen_model,
    initial_model,
    parameter_names,
    plain_sgd,
    run_method,
)
from torch.nn import functional as F


def accuracy(tensors, site):
    images, labels = SITES[site].val.batch(torch.arange(len(SITES[site].val)))
    return (frozen_model(tensors)(images).argmax(1) == labels).double().mean().item()


@pytest.mark.parametrize("mode", ["plus", "times"])
def test_method_equals_the_reference_implementation(tmp_path, mode):
    w, last, shares = initial_model(), {}, dict.fromkeys(SIZES, 1 / 3)
    errors, cosines = {site: [] for site in SIZES}, {site: [] for site in SIZES}
    for round_ in range(1, ROUNDS + 1):
        updates = {}
        for site in SIZES:
            score = 0.0
            if site in last:
                rest = {
                    name: (t - shares[site] * last[site][name]) / (1 - shares[site]) if t.is_floating_point() else t
                    for name, t in w.items()
                }
                score = accuracy(rest, site)
            errors[site].append(1 - score)
            last[site] = plain_sgd(w, site, round_)
            updates[site] = torch.cat([(last[site][name] - w[name]).flatten() for name in parameter_names()])
        for site in SIZES:
            others = sum(shares[other] * updates[other] for other in SIZES if other != site)
            cosines[site].append(F.cosine_similarity(updates[site], others, dim=0).item())
        unlike = {site: max(0.0, 1 - sum(cosines[site]) / round_) for site in SIZES}
        error = {site: sum(errors[site]) / round_ for site in SIZES}
        both = {}
        for site in SIZES:
            first, second = unlike[site] / sum(unlike.values()), error[site] / sum(error.values())
            both[site] = first + second if mode == "plus" else first * second
        shares = {site: share / sum(both.values()) for site, share in both.items()}
        w = average_models([last[site] for site in SIZES], [shares[site] for site in SIZES])
    result = run_method(tmp_path, "fedce", {"mode": mode})
    assert_close(result.outcome.models["global"].tensors, w)
