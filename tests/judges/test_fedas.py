"""FedAS by Yang, Huang, Ye, CVPR 2024: a site first trains the received body so that its features come near the class
means by its last body, then body and own head by cross entropy; the server weighs bodies by the trace of the Fisher
information of the whole trained model.

Convention: the authors' code: in a batch the loss of the alignment is the sum over its classes of the mean of (1/d) ||f
- p_c||^2, and (``per_batch``) the trace squares gradients of batches. Where ours differs on purpose: the trace is a
mean over images; a site that takes part for the first time, with no trained body, aligns nothing; a received body is
never changed for the next site.
"""

import pytest
import torch
from judging import (
    BATCH,
    ROUNDS,
    SEED,
    SITES,
    SIZES,
    agree,
    batches,
    frozen,
    images_of,
    mean,
    network,
    plain_sgd,
    run,
    start,
    state_of,
)
from torch.nn import functional as F

from medfl.utils.rng import make_generator

ALIGN_LR, AWAY = 0.2, ("site-2", 2)


def body_of(tensors):
    return {name: tensor for name, tensor in tensors.items() if name.startswith("body.")}


def align(tensors, last, site, round_):
    """The model after its body was aligned with that of `last`."""
    images, labels = images_of(site)
    features = frozen(last).body(images)
    aims = {label: features[labels == label].mean(0).float() for label in set(labels.tolist())}
    model = network(tensors)
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
    model = network(tensors).eval()
    drawn = torch.randperm(SIZES[site], generator=make_generator(SEED, site, round_, "fisher"))
    total = 0.0
    for rows in drawn.split(1 if estimator == "per_sample" else BATCH):
        images, labels = SITES[site].train.batch(rows)
        grads = torch.autograd.grad(F.cross_entropy(model(images), labels), list(model.parameters()))
        total += len(rows) / SIZES[site] * float(sum(grad.square().sum() for grad in grads))
    return total


@pytest.mark.parametrize(("estimator", "momentum"), [("per_batch", 0.0), ("per_sample", 0.5)])
def test_it_is_the_loop_of_the_paper(tmp_path, estimator, momentum):
    common, own = start(), {}
    for round_ in range(1, ROUNDS + 1):
        traces = {}
        for site in SIZES:
            if (site, round_) == AWAY:
                continue
            begun = common
            if site in own:
                begun = align(own[site] | body_of(common), own[site], site, round_)
            own[site] = plain_sgd(begun, site, round_, momentum)
            traces[site] = trace(own[site], site, round_, estimator)
        common = common | body_of(mean([own[site] for site in traces], list(traces.values())))
    args = {"align_lr": ALIGN_LR, "align_batch": BATCH, "estimator": estimator}
    result = run(tmp_path, "fedas", args, momentum, away=AWAY)
    for site in SIZES:
        agree(result.models[site]["personal"].tensors, own[site] | body_of(common))
