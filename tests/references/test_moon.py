"""Reference implementation of MOON.

Cross entropy plus mu times the mean of -log[e^(cos(z, z_g) / tau) / (e^(cos(z, z_g) / tau) + e^(cos(z, z_p) / tau))],
where z are a batch's features by the model, z_g by the received model, and z_p by the site's model at the end of its
last training.

Conventions: The loss of the authors, here on the features of the body (``proj_dim = 0``); sites are weighted by size.

Deliberate differences of medfl: In a site's first training, where z_p would equal z_g and the term has no gradient, the
term is omitted.

Source: Li, He, Song, CVPR 2021.
"""

from reference_training import (
    ROUNDS,
    SIZES,
    assert_close,
    average_models,
    frozen_model,
    initial_model,
    plain_sgd,
    run_method,
)
from torch.nn import functional as F

MU, TAU = 2.0, 0.5


def test_method_equals_the_reference_implementation(tmp_path):
    w, last = initial_model(), {}
    for round_ in range(1, ROUNDS + 1):
        models = []
        for site in SIZES:
            received, previous = frozen_model(w), frozen_model(last.get(site, w))

            def term(features, logits, images, labels, received=received, previous=previous):
                near, far = (
                    (F.cosine_similarity(features, model.body(images), dim=1) / TAU).exp()
                    for model in (received, previous)
                )
                return -MU * (near / (near + far)).log().mean()

            models.append(plain_sgd(w, site, round_, extra=term if site in last else None))
            last[site] = models[-1]
        w = average_models(models, list(SIZES.values()))
    result = run_method(tmp_path, "moon", {"mu": MU, "tau": TAU, "proj_dim": 0})
    assert_close(result.outcome.models["global"].tensors, w)
