"""Reference implementation of FedDG-GA.

The gap G_k of a site is the loss of the mean model on its validation images minus the loss of the model that it
contributed to that mean. After round r of R, its weight becomes a_k + d (1 - (r - 1) / R) (G_k - mean G) / max |G -
mean G|. Weights are clipped to [0, 1] and normalised to sum 1.

Conventions: as in the paper, with centred gaps. The authors' code does not centre them and divides by the number of
sites. Weights start at 1/K.

Deliberate differences of medfl: A site that did not reply has no gap and keeps its weight; the weights of the
participants are normalised to sum 1 in the mean.

Source: Zhang, Xu, Yao, Zhang, Tian, Wang, CVPR 2023, equations 7 to 9 and Algorithm 1.
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
    plain_sgd,
    run_method,
)
from torch.nn import functional as F


def loss_of(tensors, site):
    data = SITES[site].val
    images, labels = data.batch(torch.arange(len(data)))
    return float(F.cross_entropy(frozen_model(tensors)(images), labels))


@pytest.mark.parametrize(
    ("step", "unavailable"), [(0.2, None), (0.9, None), (0.15, ("site-2", 2)), (0.15, ("site-2", 1))]
)
def test_method_equals_the_reference_implementation(tmp_path, step, unavailable):
    w, weights = initial_model(), dict.fromkeys(SIZES, 1 / len(SIZES))
    last, extremes = {}, []
    for round_ in range(1, ROUNDS + 1):
        here = [site for site in SIZES if (site, round_) != unavailable]
        models = {site: plain_sgd(w, site, round_) for site in here}
        if gaps := {site: loss_of(w, site) - loss_of(last[site], site) for site in here if site in last}:
            centre = sum(gaps.values()) / len(gaps)
            longest = max(abs(gap - centre) for gap in gaps.values())
            length = step * (1 - (round_ - 2) / ROUNDS)  # that of the round before, whose mean w is
            moved = {site: weights[site] + length * (gap - centre) / longest for site, gap in gaps.items()}
            extremes += moved.values()
            weights |= {site: min(max(weight, 0.0), 1.0) for site, weight in moved.items()}
            weights = {site: weight / sum(weights.values()) for site, weight in weights.items()}
        w = average_models(list(models.values()), [weights[site] for site in here])
        last = models
    assert (min(extremes) < 0) == (step == 0.9)
    result = run_method(tmp_path, "feddg_ga", {"step": step}, unavailable=unavailable)
    assert_close(result.outcome.models["global"].tensors, w)
