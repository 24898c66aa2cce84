"""Reference implementation of FedCurv.

Cross entropy plus lam times the sum over the other sites j of the previous round of sum_i F_ji (w_i - w_ji)^2, with the
diagonal Fisher information F_j of site j at its trained model w_j.

Conventions: as in the paper: F_j is the mean over the site's images of the squared gradient of each image's
log-likelihood, in evaluation mode, and not the square of a batch's mean gradient, as in some code. Sites are weighted
by size.

Deliberate differences of medfl: The sum covers the participants of the previous round, not of all rounds.

Source: Shoham, Avidor, Keren, Israel, Benditkis, Mor-Yosef, Zeitak, arXiv 1910.07796, 2019.
"""

import torch
from reference_training import (
    ROUNDS,
    SIZES,
    assert_close,
    average_models,
    images_of,
    initial_model,
    network_from,
    plain_sgd,
    run_method,
)
from torch.nn import functional as F

LAM, UNAVAILABLE = 0.8, ("site-2", 2)


def fisher(tensors, site):
    model = network_from(tensors).eval()
    squares = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    images, labels = images_of(site)
    for image, label in zip(images, labels):
        grads = torch.autograd.grad(F.cross_entropy(model(image[None]), label[None]), list(model.parameters()))
        for name, grad in zip(squares, grads):
            squares[name] += grad.square() / SIZES[site]
    return squares


def test_method_equals_the_reference_implementation(tmp_path):
    w, known = initial_model(), {}
    for round_ in range(1, ROUNDS + 1):
        models = {}
        for site in SIZES:
            if (site, round_) == UNAVAILABLE:
                continue
            others = [known[other] for other in known if other != site]

            def term(own, others=others):
                return LAM * sum(
                    (f[name] * (own[name] - model[name]) ** 2).sum() for f, model in others for name in own
                )

            models[site] = plain_sgd(w, site, round_, term=term)
        w = average_models(list(models.values()), [SIZES[site] for site in models])
        known = {site: (fisher(model, site), model) for site, model in models.items()}
    result = run_method(tmp_path, "fedcurv", {"lam": LAM}, unavailable=UNAVAILABLE)
    assert_close(result.outcome.models["global"].tensors, w)
