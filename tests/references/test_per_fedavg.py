"""Reference implementation of Per-FedAvg.

On independent batches D, D', D'': y <- y - beta (I - alpha H(y; D'')) grad f(y - alpha grad f(y; D); D'), or without
the Hessian H (``fo``). The server takes the unweighted mean. A site's personal model is one step of length alpha from
the mean on its own images.

Conventions: as in the paper; the Hessian product is exact, and no difference of gradients as in section 5.

Deliberate differences of medfl: D, D', D'' are equal parts of a group of images, or the whole group if it is small. In
an epoch, no image is in two groups. Only the passes on D' change the statistics of batch norm; the others use them.

Source: Fallah, Mokhtari, Ozdaglar, NeurIPS 2020, Algorithm 1 and section 5.
"""

import pytest
import torch
from reference_training import (
    BATCH,
    EPOCHS,
    ROUNDS,
    SEED,
    SITES,
    SIZES,
    assert_close,
    average_models,
    images_of,
    initial_model,
    network_from,
    run_method,
    state_of,
)
from torch.func import functional_call
from torch.nn import functional as F

from medfl.utils.rng import make_generator

ALPHA, BETA = 0.2, 0.1


def groups(site, round_, size):
    generator = make_generator(SEED, site, round_, "batches")
    orders = [torch.randperm(SIZES[site], generator=generator) for _ in range(EPOCHS)]
    return [group for order in orders for group in order.split(size) if len(group) > 1]  # one image has no statistics


def gradient(model, w, images, labels, create_graph=False):
    loss = F.cross_entropy(functional_call(model, w, (images,)), labels)
    return dict(zip(w, torch.autograd.grad(loss, list(w.values()), create_graph=create_graph)))


def hessian_product(model, w, vector, images, labels):
    slopes = gradient(model, w, images, labels, create_graph=True)
    product = sum((slopes[name] * vector[name]).sum() for name in w)
    return dict(zip(w, torch.autograd.grad(product, list(w.values()))))


def move(w, direction, length):
    return {name: (w[name] - length * direction[name]).detach().requires_grad_() for name in w}


def train(tensors, site, round_, parts):
    model = network_from(tensors)
    y = {name: p.detach().requires_grad_() for name, p in model.named_parameters()}
    for group in groups(site, round_, parts * BATCH):
        split = group.tensor_split(parts) if len(group) >= 2 * parts else [group] * parts
        first, second, *third = (SITES[site].train.batch(rows) for rows in split)
        ahead = move(y, gradient(model.eval(), y, *first), ALPHA)
        step = gradient(model.train(), ahead, *second)
        if third:
            bend = hessian_product(model.eval(), y, step, *third[0])
            step = {name: step[name] - ALPHA * bend[name] for name in step}
        y = move(y, step, BETA)
    return state_of(model) | {name: p.detach() for name, p in y.items()}


@pytest.mark.parametrize(("order", "parts"), [("fo", 2), ("hf", 3)])
def test_method_equals_the_reference_implementation(tmp_path, order, parts):
    w = initial_model()
    for round_ in range(1, ROUNDS + 1):
        w = average_models([train(w, site, round_, parts) for site in SIZES], [1, 1, 1])
    result = run_method(tmp_path, "per_fedavg", {"alpha": ALPHA, "beta": BETA, "order": order})
    assert_close(result.outcome.models["global"].tensors, w)
    for site in SIZES:
        model = network_from(w).eval()
        own = {name: p.detach().requires_grad_() for name, p in model.named_parameters()}
        own = move(own, gradient(model, own, *images_of(site)), ALPHA)
        assert_close(result.models[site]["personal"].tensors, w | {name: p.detach() for name, p in own.items()})
