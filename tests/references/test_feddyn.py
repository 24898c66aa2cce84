"""Reference implementation of FedDyn.

The algorithm as printed in the paper.

Conventions: One alpha for all sites, unweighted means, and h over all sites of the federation, not over the sites that
replied. `duals` are the paper's local gradients, which medfl stores as -alpha g_k. The authors' code divides alpha by a
site's share of the images and clips gradients; both are options. The reported model is the mean of the participants'
models (``report = mean``), as in the authors' code, or the start of the next round (``start``), as in the algorithm.

Source: Acar et al., ICLR 2021, Algorithm 1.
"""

import pytest
import torch
from reference_training import (
    ROUNDS,
    SIZES,
    assert_close,
    average_models,
    initial_model,
    plain_sgd,
    run_method,
    squared_distance,
)


def loop(alpha, momentum, unavailable=None):
    """Return the start of the next round and the mean of the participants' models, for each round."""
    w = initial_model(norm=False)
    nothing = {name: torch.zeros_like(tensor) for name, tensor in w.items()}
    h, duals = dict(nothing), dict.fromkeys(SIZES, nothing)
    ends = []
    for round_ in range(1, ROUNDS + 1):
        models = []
        for site in SIZES:
            if (site, round_) == unavailable:
                continue

            def term(theta, dual=duals[site], w=w):
                return alpha / 2 * squared_distance(theta, w) - sum((p * dual[name]).sum() for name, p in theta.items())

            theta = plain_sgd(w, site, round_, momentum, term)
            duals[site] = {name: dual - alpha * (theta[name] - w[name]) for name, dual in duals[site].items()}
            models.append(theta)
        moved = {name: sum(theta[name] - w[name] for theta in models) for name in w}
        h = {name: h[name] - alpha / len(SIZES) * moved[name] for name in w}
        average = average_models(models, [1] * len(models))
        w = {name: average[name] - h[name] / alpha for name in w}
        ends.append((w, average))
    return ends


@pytest.mark.parametrize(
    ("alpha", "momentum", "unavailable"),
    [(0.1, 0.0, None), (1.0, 0.9, None), (0.5, 0.0, ("site-2", 2))],
)
def test_three_rounds_equal_the_reference_implementation(tmp_path, alpha, momentum, unavailable):
    w, average = loop(alpha, momentum, unavailable)[-1]
    for report, expected in (("mean", average), ("start", w)):
        args = {"alpha": alpha, "report": report}
        result = run_method(tmp_path / report, "feddyn", args, momentum, norm=False, unavailable=unavailable)
        assert_close(result.outcome.models["global"].tensors, expected)
