"""Reference implementation of FedProto.

The algorithm as printed in the paper.

Conventions: Prototypes use the trained model and all of a site's images, as printed, and not of the features during the
last epoch, as in the authors' code. The server's mean is over the sites that have a class: uniform as in the code, or
by numbers of images as in the paper, without its further division by the number of sites. The distance is the mean over
features of the squared difference (``mse``, the code) or its sum (``l2``, the paper's text). A class without a
prototype adds nothing but counts in the mean over a batch. In the first round there are no prototypes.

Source: Tan et al., AAAI 2022, Algorithm 1 and equations 3 to 8.
"""

import pytest
from reference_training import (
    ROUNDS,
    SIZES,
    assert_close,
    frozen_model,
    images_of,
    initial_model,
    plain_sgd,
    run_method,
)


def loop(lam, distance, weights, momentum):
    models, common = dict.fromkeys(SIZES, initial_model(norm=False)), {}
    for round_ in range(1, ROUNDS + 1):
        sent = {}

        def term(features, logits, images, labels, common=common):
            total = 0.0
            for feature, label in zip(features, labels.tolist(), strict=True):
                if label in common:
                    square = (feature - common[label]).square()
                    total = total + (square.mean() if distance == "mse" else square.sum())
            return lam * total / len(labels)

        for site in SIZES:
            models[site] = plain_sgd(models[site], site, round_, momentum, extra=term)
            images, labels = images_of(site)
            features = frozen_model(models[site]).body(images)
            for label in set(labels.tolist()):
                own = features[labels == label]
                sent.setdefault(label, []).append((own.mean(0), len(own) if weights == "counts" else 1))
        common = common | {
            label: sum(weight * prototype for prototype, weight in owners) / sum(weight for _, weight in owners)
            for label, owners in sent.items()
        }
    return models


@pytest.mark.parametrize(
    ("lam", "distance", "weights", "momentum"),
    [(1.0, "mse", "uniform", 0.0), (5.0, "mse", "counts", 0.9), (0.5, "l2", "uniform", 0.0)],
)
def test_three_rounds_equal_the_reference_implementation(tmp_path, lam, distance, weights, momentum):
    args = {"lam": lam, "distance": distance, "weights": weights}
    result = run_method(tmp_path, "fedproto", args, momentum, norm=False)
    for site, tensors in loop(lam, distance, weights, momentum).items():
        assert_close(result.models[site]["personal"].tensors, tensors)
