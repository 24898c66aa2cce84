"""FedProto, as its paper prints it (Tan et al., AAAI 2022, Algorithm 1 and equations 3 to 8).

Conventions: prototypes are of the trained model over all of a site's images, as printed, and not of the features of the
last epoch on the way, as in the authors' code. The server's mean is over the sites that own a class: uniform as in the
code, or by numbers of images as in the paper, without its further division by the number of owners. The distance is
the mean over features of the squared difference (``mse``, the code) or its sum (``l2``, the paper's text). A class
without a prototype adds nothing but counts in the mean over a batch; in the first round there are none.
"""

import pytest
from judging import ROUNDS, SIZES, agree, frozen, images_of, plain_sgd, run, start


def loop(lam, distance, weights, momentum):
    models, common = dict.fromkeys(SIZES, start(norm=False)), {}
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
            features = frozen(models[site]).body(images)
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
def test_three_rounds_are_those_of_the_loop(tmp_path, lam, distance, weights, momentum):
    args = {"lam": lam, "distance": distance, "weights": weights}
    result = run(tmp_path, "fedproto", args, momentum, norm=False)
    for site, tensors in loop(lam, distance, weights, momentum).items():
        agree(result.models[site]["personal"].tensors, tensors)
