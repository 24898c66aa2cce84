"""FedDG-GA by Zhang, Xu, Yao, Zhang, Tian, Wang, CVPR 2023, equations 7 to 9 and Algorithm 1: the gap G_k of a site is
the loss on its validation images of the mean model less that of the model which it gave to that mean; after round r of
R its weight becomes a_k + d (1 - (r - 1) / R) (G_k - mean G) / max |G - mean G|, cut to [0, 1], and all are made to sum
to 1.

Convention: the paper's, with centred gaps; the authors' code does not centre them and divides by the number of sites.
Weights begin at 1/K. Where ours differs on purpose: a site that was away has no gap and keeps its weight, and who is
here shares out the whole.
"""

import pytest
import torch
from judging import ROUNDS, SITES, SIZES, agree, frozen, mean, plain_sgd, run, start
from torch.nn import functional as F


def loss_of(tensors, site):
    data = SITES[site].val
    images, labels = data.batch(torch.arange(len(data)))
    return float(F.cross_entropy(frozen(tensors)(images), labels))


@pytest.mark.parametrize(("step", "away"), [(0.2, None), (0.9, None), (0.15, ("site-2", 2)), (0.15, ("site-2", 1))])
def test_it_is_the_loop_of_the_paper(tmp_path, step, away):
    w, weights = start(), dict.fromkeys(SIZES, 1 / len(SIZES))
    last, extremes = {}, []
    for round_ in range(1, ROUNDS + 1):
        here = [site for site in SIZES if (site, round_) != away]
        models = {site: plain_sgd(w, site, round_) for site in here}
        if gaps := {site: loss_of(w, site) - loss_of(last[site], site) for site in here if site in last}:
            centre = sum(gaps.values()) / len(gaps)
            longest = max(abs(gap - centre) for gap in gaps.values())
            length = step * (1 - (round_ - 2) / ROUNDS)  # that of the round before, whose mean w is
            moved = {site: weights[site] + length * (gap - centre) / longest for site, gap in gaps.items()}
            extremes += moved.values()
            weights |= {site: min(max(weight, 0.0), 1.0) for site, weight in moved.items()}
            weights = {site: weight / sum(weights.values()) for site, weight in weights.items()}
        w = mean(list(models.values()), [weights[site] for site in here])
        last = models
    assert (min(extremes) < 0) == (step == 0.9)
    result = run(tmp_path, "feddg_ga", {"step": step}, away=away)
    agree(result.outcome.models["global"].tensors, w)
