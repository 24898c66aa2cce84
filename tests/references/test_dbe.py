"""Reference implementation of DBE.

Before the first round, sites train without regulariser and send running means of their features; z is their weighted
mean and stays fixed. The models of this training are discarded. Then a site minimises CE(h(f + b_k)) + kappa mean over
features of (1/2) (r - z)^2, with r <- (1 - mu) r + mu (batch mean). Everything except b_k is averaged.

Conventions: The mean over features, as in the authors' code. b_k has the network's learning rate. With ``correct``, r
is divided by 1 - (1 - mu)^B, which the authors do not do; the reference computes both variants.

Source: Zhang et al., NeurIPS 2023, Algorithm 1.
"""

import pytest
import torch
from reference_training import (
    LR,
    ROUNDS,
    SIZES,
    assert_close,
    batches,
    images_of,
    initial_model,
    network_from,
    run_method,
)
from torch.nn import functional as F


def train(tensors, offset, site, round_, kappa, mu, correct, z, phase=""):
    """Return the model, b_k and r after a training; b_k stays fixed while there is no z."""
    model, (images, targets), mean = network_from(tensors), images_of(site), torch.zeros(6).double()
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
def test_three_rounds_equal_the_reference_implementation(tmp_path, kappa, mu, correct):
    common, offsets = initial_model(norm=False), {site: torch.zeros(6).double().requires_grad_() for site in SIZES}
    plain = (kappa, mu, correct, None, "measure")
    z = weighted({site: train(common, offsets[site], site, 1, *plain)[1] for site in SIZES})
    for round_ in range(1, ROUNDS + 1):
        ends = {site: train(common, offsets[site], site, round_, kappa, mu, correct, z)[0] for site in SIZES}
        common = {name: weighted({site: model[name] for site, model in ends.items()}) for name in common}
    result = run_method(tmp_path, "dbe", {"kappa": kappa, "mu": mu, "correct": correct}, norm=False)
    for site in SIZES:
        body, head = ({n: t for n, t in common.items() if n.startswith(part)} for part in ("body.", "head."))
        expected = body | {f"head.{name}": tensor for name, tensor in head.items()} | {"head.offset": offsets[site]}
        assert_close({n: t.double() for n, t in result.models[site]["personal"].tensors.items()}, expected)
