"""Reference implementation of FedAS.

A site first trains the received body so that its features come near the class means by its previous body. Then it
trains body and own head by cross entropy. The server weights bodies by the trace of the Fisher information of the whole
trained model.

Conventions: as in the authors' code: the alignment loss of a batch is the sum over its classes of the mean of (1/d) ||f
- p_c||^2, and with ``per_batch`` the trace squares gradients of batches.

Deliberate differences of medfl: The trace is a mean over images. A site that takes part for the first time has no
previous body and skips the alignment. A received body is never changed for the next site.

Source: Yang, Huang, Ye, CVPR 2024.
"""

import pytest
import torch
from reference_training import (
    BATCH,
    ROUNDS,
    SEED,
    SITES,
    SIZES,
    assert_close,
    average_models,
    batches,
    frozen_model,
    images_of,
    initial_model,
    network_from,
    plain_sgd,
    run_method,
    state_of,
)
from torch.nn import functional as F

from medfl.utils.rng import make_generator

ALIGN_LR, UNAVAILABLE = 0.2, ("site-2", 2)


def body_of(tensors):
    return {name: tensor for name, tensor in tensors.items() if name.startswith("body.")}


def align(tensors, last, site, round_):
    """Return the model after the alignment of its body with the body of `last`."""
    images, labels = images_of(site)
    features = frozen_model(last).body(images)
    aims = {label: features[labels == label].mean(0).float() for label in set(labels.tolist())}
    model = network_from(tensors)
    optimizer = torch.optim.SGD(model.body.parameters(), lr=ALIGN_LR)
    for rows in batches(site, round_, epochs=1, phase="align"):
        images, labels = SITES[site].train.batch(rows)
        features = model.body(images)
        loss = sum((features[labels == c].float() - aims[c]).square().mean() for c in set(labels.tolist()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return state_of(model)


def trace(tensors, site, round_, estimator):
    model = network_from(tensors).eval()
    drawn = torch.randperm(SIZES[site], generator=make_generator(SEED, site, round_, "fisher"))
    total = 0.0
    for rows in drawn.split(1 if estimator == "per_sample" else BATCH):
        images, labels = SITES[site].train.batch(rows)
        grads = torch.autograd.grad(F.cross_entropy(model(images), labels), list(model.parameters()))
        total += len(rows) / SIZES[site] * float(sum(grad.square().sum() for grad in grads))
    return total


@pytest.mark.parametrize(("estimator", "momentum"), [("per_batch", 0.0), ("per_sample", 0.5)])
def test_method_equals_the_reference_implementation(tmp_path, estimator, momentum):
    common, own = initial_model(), {}
    for round_ in range(1, ROUNDS + 1):
        traces = {}
        for site in SIZES:
            if (site, round_) == UNAVAILABLE:
                continue
            begun = common
            if site in own:
                begun = align(own[site] | body_of(common), own[site], site, round_)
            own[site] = plain_sgd(begun, site, round_, momentum)
            traces[site] = trace(own[site], site, round_, estimator)
        common = common | body_of(average_models([own[site] for site in traces], list(traces.values())))
    args = {"align_lr": ALIGN_LR, "align_batch": BATCH, "estimator": estimator}
    result = run_method(tmp_path, "fedas", args, momentum, unavailable=UNAVAILABLE)
    for site in SIZES:
        assert_close(result.models[site]["personal"].tensors, own[site] | body_of(common))
