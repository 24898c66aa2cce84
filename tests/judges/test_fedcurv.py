"""FedCurv by Shoham, Avidor, Keren, Israel, Benditkis, Mor-Yosef, Zeitak, arXiv 1910.07796, 2019: cross entropy plus
lam times the sum over the other sites j of the last round of sum_i F_ji (w_i - w_ji)^2, with the diagonal Fisher
information F_j of site j at its trained model w_j.

Convention: the paper's; F_j is the mean over the site's images of the squared gradient of each one's log-likelihood, in
evaluation mode, and not the square of a batch's mean gradient, as in some code. Sites weigh by size. Where ours differs
on purpose: the sum is over the participants of the last round, not of all rounds.
"""

import torch
from judging import ROUNDS, SIZES, agree, images_of, mean, network, plain_sgd, run, start
from torch.nn import functional as F

LAM, AWAY = 0.8, ("site-2", 2)


def fisher(tensors, site):
    model = network(tensors).eval()
    squares = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    images, labels = images_of(site)
    for image, label in zip(images, labels):
        grads = torch.autograd.grad(F.cross_entropy(model(image[None]), label[None]), list(model.parameters()))
        for name, grad in zip(squares, grads):
            squares[name] += grad.square() / SIZES[site]
    return squares


def test_it_is_the_loop_of_the_paper(tmp_path):
    w, known = start(), {}
    for round_ in range(1, ROUNDS + 1):
        models = {}
        for site in SIZES:
            if (site, round_) == AWAY:
                continue
            others = [known[other] for other in known if other != site]

            def term(own, others=others):
                return LAM * sum(
                    (f[name] * (own[name] - model[name]) ** 2).sum() for f, model in others for name in own
                )

            models[site] = plain_sgd(w, site, round_, term=term)
        w = mean(list(models.values()), [SIZES[site] for site in models])
        known = {site: (fisher(model, site), model) for site, model in models.items()}
    result = run(tmp_path, "fedcurv", {"lam": LAM}, away=AWAY)
    agree(result.outcome.models["global"].tensors, w)
