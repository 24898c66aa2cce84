"""FedDyn, as its paper prints it (Acar et al., ICLR 2021, Algorithm 1).

Convention: one alpha for all sites, uniform means, h over all sites of the federation and not over those that replied.
The paper's gradient g_k is -lambda_k here. The authors' code divides alpha by a site's share of images and clips
gradients; both are options. What is reported is the mean of the participants' models (``report = mean``), as in the
authors' code, or the point that sites start from (``start``), as in the algorithm.
"""

import pytest
import torch
from judging import LABELS, LR, ROUNDS, agree, batches, images_of, initial, network, run
from torch.nn import functional as F


def loop(alpha, momentum, epochs, away=None):
    """The start point and the mean of the participants' models after each round."""
    w, nothing = initial(), {name: torch.zeros_like(tensor) for name, tensor in initial().items()}
    h, duals = dict(nothing), {site: dict(nothing) for site in LABELS}
    ends = []
    for round_ in range(1, ROUNDS + 1):
        models = []
        for site in LABELS:
            if (site, round_) == away:
                continue
            model, (images, targets) = network(w), images_of(site)
            speed = dict(nothing)
            for rows in batches(site, round_, epochs):
                loss = F.cross_entropy(model(images[rows]), targets[rows])
                gradients = torch.autograd.grad(loss, list(model.parameters()))
                with torch.no_grad():
                    for (name, theta), gradient in zip(model.named_parameters(), gradients, strict=True):
                        step = gradient - duals[site][name] + alpha * (theta - w[name])
                        speed[name] = momentum * speed[name] + step
                        theta -= LR * speed[name]
            theta = {name: p.detach().clone() for name, p in model.named_parameters()}
            duals[site] = {name: dual - alpha * (theta[name] - w[name]) for name, dual in duals[site].items()}
            models.append(theta)
        mean = {name: sum(theta[name] for theta in models) / len(models) for name in w}
        moved = {name: sum(theta[name] - w[name] for theta in models) for name in w}
        h = {name: h[name] - alpha / len(LABELS) * moved[name] for name in w}
        w = {name: mean[name] - h[name] / alpha for name in w}
        ends.append((w, mean))
    return ends


@pytest.mark.parametrize(
    ("alpha", "momentum", "away"),
    [(0.1, 0.0, None), (1.0, 0.9, None), (0.5, 0.0, ("site-2", 2))],
)
def test_three_rounds_are_those_of_the_loop(tmp_path, alpha, momentum, away):
    w, mean = loop(alpha, momentum, 2, away)[-1]
    for report, expected in (("mean", mean), ("start", w)):
        args = {"alpha": alpha, "report": report}
        result = run(tmp_path / report, "feddyn", args, momentum=momentum, away=away)
        agree(result.outcome.models["global"].tensors, expected)
