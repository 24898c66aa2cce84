"""FedCE by Jiang, Roth, Li, Yang, Zhao, Nath, Xu, Dou, Xu, CVPR 2023: a site weighs by how unlike its update is to the
weighted sum of the others', and by the error on its validation images of the mean without its last model.

Convention: NVIDIA FLARE's FedCE: running means over the rounds, a first round whose metric is 0, both shares added or
multiplied, weights used at once. The metric is the accuracy; cosines are over parameters.
"""

import pytest
import torch
from judging import ROUNDS, SITES, SIZES, agree, frozen, mean, parameters, plain_sgd, run, start
from torch.nn import functional as F


def accuracy(tensors, site):
    images, labels = SITES[site].val.batch(torch.arange(len(SITES[site].val)))
    return (frozen(tensors)(images).argmax(1) == labels).double().mean().item()


@pytest.mark.parametrize("mode", ["plus", "times"])
def test_it_is_the_loop_of_the_paper(tmp_path, mode):
    w, last, shares = start(), {}, dict.fromkeys(SIZES, 1 / 3)
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
            updates[site] = torch.cat([(last[site][name] - w[name]).flatten() for name in parameters()])
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
        w = mean([last[site] for site in SIZES], [shares[site] for site in SIZES])
    result = run(tmp_path, "fedce", {"mode": mode})
    agree(result.outcome.models["global"].tensors, w)
