"""DBE by Zhang et al., NeurIPS 2023, Algorithm 1: before the first round sites train plainly and send running means of
their features, whose weighted mean z is fixed; what they trained is thrown away. Then a site minimises
CE(h(f + b_k)) + kappa mean_features (1/2) (r - z)^2, r <- (1 - mu) r + mu (batch mean), and all but b_k is averaged.

Conventions: the mean over features, as in the authors' code; b_k takes the network's learning rate. With ``correct``
r is divided by 1 - (1 - mu)^B, which the authors do not do; the judge computes both.
"""

import pytest
import torch
from judging import LR, ROUNDS, SIZES, agree, batches, images_of, network, run, start
from torch.nn import functional as F


def train(tensors, offset, site, round_, kappa, mu, correct, z, phase=""):
    """The model, b_k and r after a training; b_k stays where there is no z yet."""
    model, (images, targets), mean = network(tensors), images_of(site), torch.zeros(6).double()
    trained = [*model.parameters(), *([] if z is None else [offset])]
    for number, rows in enumerate(batches(site, round_, phase=phase, norm=False), 1):
        features = model.body(images[rows])
        mean = (1 - mu) * mean.detach() + mu * features.mean(0)
        r = mean / (1 - (1 - mu) ** number) if correct else mean
        loss = F.cross_entropy(model.head(features + offset), targets[rows])
        if z is not None:
            loss = loss + kappa * (0.5 * (r - z).square()).mean()
        gradients = torch.autograd.grad(loss, trained)
        with torch.no_grad():
            for p, gradient in zip(trained, gradients, strict=True):
                p -= LR * gradient
    return {name: p.detach() for name, p in model.named_parameters()}, r.detach()


def weighted(values):
    return sum(n / sum(SIZES.values()) * values[site] for site, n in SIZES.items())


@pytest.mark.parametrize(("kappa", "mu", "correct"), [(1.0, 0.1, True), (5.0, 0.3, False), (3.0, 1.0, True)])
def test_three_rounds_are_those_of_the_loop(tmp_path, kappa, mu, correct):
    common, offsets = start(norm=False), {site: torch.zeros(6).double().requires_grad_() for site in SIZES}
    plain = (kappa, mu, correct, None, "measure")
    z = weighted({site: train(common, offsets[site], site, 1, *plain)[1] for site in SIZES})
    for round_ in range(1, ROUNDS + 1):
        ends = {site: train(common, offsets[site], site, round_, kappa, mu, correct, z)[0] for site in SIZES}
        common = {name: weighted({site: model[name] for site, model in ends.items()}) for name in common}
    result = run(tmp_path, "dbe", {"kappa": kappa, "mu": mu, "correct": correct}, norm=False)
    for site in SIZES:
        body, head = ({n: t for n, t in common.items() if n.startswith(part)} for part in ("body.", "head."))
        expected = body | {f"head.{name}": tensor for name, tensor in head.items()} | {"head.offset": offsets[site]}
        agree({n: t.double() for n, t in result.models[site]["personal"].tensors.items()}, expected)
