"""Reference implementation of GPFL.

A condition u transforms features f to ReLU((a(u) + 1) f + b(u)). The loss is the personal head's cross entropy under p,
the mean of the class embeddings weighted by the site's classes, plus the cross entropy of the cosines to the embeddings
under g, their unweighted mean, plus lam times the distance to the received embedding of the class, plus weight decay mu
of embeddings and valve.

Conventions: The norm of the authors' code, over the batch; sites are weighted by size.

Deliberate differences of medfl: Conditions use the received embeddings; at prediction time, the site's own embeddings.

Source: Zhang, Hua, Wang, Song, Xue, Ma, Cao, Guan, ICCV 2023.
"""

import torch
from reference_training import (
    LR,
    REGISTRY,
    ROUNDS,
    SEED,
    SITES,
    SIZES,
    Net,
    assert_close,
    average_models,
    batches,
    run_method,
    task_of,
)
from torch import nn
from torch.nn import functional as F

LAM, MU = 0.05, 0.2


def bent(features, u, parts):
    """Return ReLU((a(u) + 1) f + b(u)), where a and b are layer norms of ReLUs of linear layers."""

    def layer(name):
        hidden = F.relu(F.linear(u, parts[f"{name}.0.weight"], parts[f"{name}.0.bias"]))
        centred = hidden - hidden.mean()
        normed = centred / (centred.square().mean() + 1e-5).sqrt()
        return normed * parts[f"{name}.2.weight"] + parts[f"{name}.2.bias"]

    return F.relu((layer("scale") + 1) * features + layer("shift"))


def trained(tensors, site, round_):
    model, head = Net(), {}
    model.load_state_dict({name: t for name, t in tensors.items() if name.startswith("body.")}, strict=False)
    for name, tensor in tensors.items():
        if name.startswith("head."):
            head[name.removeprefix("head.")] = nn.Parameter(tensor.clone())
    labels_of_site = SITES[site].train.class_labels
    shares = torch.stack([(labels_of_site == label).double().mean() for label in range(3)])
    received = tensors["head.embeddings"].clone()
    g, p = received.mean(0), (shares[:, None] * received).sum(0)
    decayed = [t for name, t in head.items() if name.startswith(("scale", "shift", "embeddings"))]
    steps = [*model.body.parameters(), *decayed, head["own.weight"], head["own.bias"]]
    model.train()
    for rows in batches(site, round_):
        images, labels = SITES[site].train.batch(rows)
        features = model.body(images)
        own, common = bent(features, p, head), bent(features, g, head)
        loss = F.cross_entropy(own @ head["own.weight"].T + head["own.bias"], labels)
        lengths = common.norm(dim=1)[:, None] * head["embeddings"].norm(dim=1)[None]
        loss = loss + F.cross_entropy(common @ head["embeddings"].T / lengths.clamp(min=1e-8), labels)
        loss = loss + LAM * (common - received[labels]).square().sum().sqrt()
        grads = torch.autograd.grad(loss, steps)
        with torch.no_grad():
            for t, grad in zip(steps, grads):
                t -= LR * (grad + (MU * t if any(t is other for other in decayed) else 0.0))
    body = {name: t for name, t in model.state_dict().items() if name.startswith("body.")}
    after = {name: t.detach().clone() for name, t in body.items()}
    return after | {f"head.{name}": t.detach() for name, t in head.items()} | {"head.class_shares": shares}


def test_method_equals_the_reference_implementation(tmp_path):
    start = REGISTRY.make_method("gpfl", {}).task_of(task_of()).initial(SEED)
    personal = ("head.own.weight", "head.own.bias", "head.class_shares")
    common = {name: tensor for name, tensor in start.items() if name not in personal}
    own = {site: {name: start[name] for name in personal} for site in SIZES}
    for round_ in range(1, ROUNDS + 1):
        models = [trained(common | own[site], site, round_) for site in SIZES]
        own = {site: {name: model[name] for name in personal} for site, model in zip(SIZES, models)}
        average = average_models(models, list(SIZES.values()))
        common = {name: average[name] for name in common}
    result = run_method(tmp_path, "gpfl", {"lam": LAM, "mu": MU})
    for site in SIZES:
        assert_close(result.models[site]["personal"].tensors, common | own[site])
