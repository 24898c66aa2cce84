"""FedDyn, as its paper prints it (Acar et al., ICLR 2021, Algorithm 1).

Convention: one alpha for all sites, uniform means, h over all sites of the federation and not over those that replied.
The paper's gradient g_k is -lambda_k here. The authors' code divides alpha by a site's share of images and clips
gradients; both are options. What is reported is the mean of the participants' models (``report = mean``), as in the
authors' code, or the point that sites start from (``start``), as in the algorithm.
"""

import pytest
import torch
from judging import ROUNDS, SIZES, agree, mean, plain_sgd, run, squared
from judging import start as initial


def loop(alpha, momentum, away=None):
    """The start point and the mean of the participants' models after each round."""
    w = initial(norm=False)
    nothing = {name: torch.zeros_like(tensor) for name, tensor in w.items()}
    h, duals = dict(nothing), dict.fromkeys(SIZES, nothing)
    ends = []
    for round_ in range(1, ROUNDS + 1):
        models = []
        for site in SIZES:
            if (site, round_) == away:
                continue

            def term(theta, dual=duals[site], w=w):
                return alpha / 2 * squared(theta, w) - sum((p * dual[name]).sum() for name, p in theta.items())

            theta = plain_sgd(w, site, round_, momentum, term)
            duals[site] = {name: dual - alpha * (theta[name] - w[name]) for name, dual in duals[site].items()}
            models.append(theta)
        moved = {name: sum(theta[name] - w[name] for theta in models) for name in w}
        h = {name: h[name] - alpha / len(SIZES) * moved[name] for name in w}
        average = mean(models, [1] * len(models))
        w = {name: average[name] - h[name] / alpha for name in w}
        ends.append((w, average))
    return ends


@pytest.mark.parametrize(
    ("alpha", "momentum", "away"),
    [(0.1, 0.0, None), (1.0, 0.9, None), (0.5, 0.0, ("site-2", 2))],
)
def test_three_rounds_are_those_of_the_loop(tmp_path, alpha, momentum, away):
    w, average = loop(alpha, momentum, away)[-1]
    for report, expected in (("mean", average), ("start", w)):
        args = {"alpha": alpha, "report": report}
        result = run(tmp_path / report, "feddyn", args, momentum, norm=False, away=away)
        agree(result.outcome.models["global"].tensors, expected)
