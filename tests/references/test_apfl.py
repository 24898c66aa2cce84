"""Reference implementation of APFL.

For each batch, from the state before it: w <- w - lr grad f(w) and v <- v - lr grad_v f(alpha v + (1 - alpha) w). Only
w is averaged. With `adaptive`, in the first batch of a round: alpha <- clip(alpha - lr <v - w, grad f(alpha v + (1 -
alpha) w)>, 0, 1).

Conventions: The equations of the paper. The authors' code adds 0.02 alpha to the gradient of alpha, and counts alpha
and 1 - alpha twice. Sites have equal weight, as in the paper. A site's model is the mixture with the w that it trained
last, not with the mean. The network has no batch norm, because a mixture of two models has no running statistics.

Source: Deng, Kamani, Mahdavi, arXiv 2003.13461, 2020, Algorithm 1.
"""

import pytest
import torch
from reference_training import LR, ROUNDS, SITES, SIZES, Net, assert_close, batches, initial_model, run_method
from torch.func import functional_call
from torch.nn import functional as F


def gradients(tensors, images, labels):
    tensors = {name: tensor.clone().requires_grad_() for name, tensor in tensors.items()}
    loss = F.cross_entropy(functional_call(Net(norm=False), tensors, (images,)), labels)
    return dict(zip(tensors, torch.autograd.grad(loss, list(tensors.values()))))


def mix(v, w, alpha):
    return {name: alpha * v[name] + (1 - alpha) * w[name] for name in w}


@pytest.mark.parametrize("adaptive", [False, True])
def test_method_equals_the_reference_implementation(tmp_path, adaptive):
    common = initial_model(norm=False)
    own, alphas = dict.fromkeys(SIZES, common), dict.fromkeys(SIZES, 0.4)
    for round_ in range(1, ROUNDS + 1):
        models = {}
        for site in SIZES:
            w, v, alpha = common, own[site], alphas[site]
            for step, rows in enumerate(batches(site, round_, norm=False)):
                images, labels = SITES[site].train.batch(rows)
                g, mixed = gradients(w, images, labels), gradients(mix(v, w, alpha), images, labels)
                slope = sum(((v[name] - w[name]) * mixed[name]).sum() for name in w)
                w, v = (
                    {name: w[name] - LR * g[name] for name in w},
                    {name: v[name] - LR * alpha * mixed[name] for name in w},
                )
                if adaptive and step == 0:
                    alpha = min(max(float(alpha - LR * slope), 0.0), 1.0)
            own[site], alphas[site] = v, alpha
            models[site] = w
        common = {name: sum(w[name] for w in models.values()) / len(models) for name in common}
    args = {"alpha": 0.4, "adaptive": adaptive, "weights": "uniform"}
    result = run_method(tmp_path, "apfl", args, norm=False)
    for site in SIZES:
        assert_close(result.models[site]["global"].tensors, common)
        assert_close(result.models[site]["personal"].tensors, mix(own[site], models[site], alphas[site]))
