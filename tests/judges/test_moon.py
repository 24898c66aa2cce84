"""MOON by Li, He, Song, CVPR 2021: cross entropy plus mu times the mean of
-log[e^(cos(z, z_g) / tau) / (e^(cos(z, z_g) / tau) + e^(cos(z, z_p) / tau))], where z are a batch's features by the
model, z_g by the received one and z_p by the site's model at the end of its last training.

Convention: the authors' loss, here on the features themselves (``proj_dim = 0``); sites weigh by size. Where ours
differs on purpose: in a site's first training, where z_p would be z_g and the term has no gradient, there is none.
"""

from judging import ROUNDS, SIZES, agree, frozen, mean, plain_sgd, run, start
from torch.nn import functional as F

MU, TAU = 2.0, 0.5


def test_it_is_the_loop_of_the_paper(tmp_path):
    w, last = start(), {}
    for round_ in range(1, ROUNDS + 1):
        models = []
        for site in SIZES:
            received, previous = frozen(w), frozen(last.get(site, w))

            def term(features, logits, images, labels, received=received, previous=previous):
                near, far = (
                    (F.cosine_similarity(features, model.body(images), dim=1) / TAU).exp()
                    for model in (received, previous)
                )
                return -MU * (near / (near + far)).log().mean()

            models.append(plain_sgd(w, site, round_, extra=term if site in last else None))
            last[site] = models[-1]
        w = mean(models, list(SIZES.values()))
    result = run(tmp_path, "moon", {"mu": MU, "tau": TAU, "proj_dim": 0})
    agree(result.outcome.models["global"].tensors, w)
