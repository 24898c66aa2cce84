"""Reference implementation of FedRoD.

Body and generic head minimise the balanced softmax loss CE(z + gamma ln m_k, y), with the site's numbers m_k of images
per class, and are averaged by size. A personal head on the same features, from which no gradient flows back, minimises
CE(z + z_p, y) and stays at the site.

Conventions: as in the paper, with a linear personal head; m_k counts all training images. A class without images is
removed from the softmax.

Deliberate differences of medfl: The personal head starts at zero.

Source: Chen, Chao, ICLR 2022, equations 6 to 8 and Algorithm 1.
"""

import pytest
import torch
from reference_training import (
    LABELS,
    LR,
    ROUNDS,
    SITES,
    SIZES,
    assert_close,
    average_models,
    batches,
    initial_model,
    network_from,
    run_method,
    state_of,
)
from torch import nn
from torch.nn import functional as F


def train(received, own, site, round_, gamma, momentum):
    model = network_from(received)
    head = nn.Linear(6, 3).double()
    head.load_state_dict(own)
    optimizers = [torch.optim.SGD(part.parameters(), lr=LR, momentum=momentum) for part in (model, head)]
    counts = torch.tensor([LABELS[site].count(label) for label in range(3)]).double()
    for rows in batches(site, round_):
        images, labels = SITES[site].train.batch(rows)
        features = model.body(images)
        logits = model.head(features)
        generic = F.cross_entropy(logits + gamma * counts.log(), labels)
        personal = F.cross_entropy(logits.detach() + head(features.detach()), labels)
        for loss, optimizer in zip((generic, personal), optimizers):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return state_of(model), state_of(head)


@pytest.mark.parametrize(("gamma", "momentum"), [(1.0, 0.0), (0.5, 0.9)])
def test_method_equals_the_reference_implementation(tmp_path, gamma, momentum):
    w = initial_model()
    own = dict.fromkeys(SIZES, {"weight": torch.zeros(3, 6).double(), "bias": torch.zeros(3).double()})
    for round_ in range(1, ROUNDS + 1):
        models = []
        for site in SIZES:
            model, own[site] = train(w, own[site], site, round_, gamma, momentum)
            models.append(model)
        w = average_models(models, list(SIZES.values()))
    result = run_method(tmp_path, "fedrod", {"gamma": gamma}, momentum)
    assert_close(result.outcome.models["global"].tensors, w)
    for site in SIZES:
        both = {f"head.{name}": w[f"head.{name}"] + tensor for name, tensor in own[site].items()}
        assert_close(result.models[site]["personal"].tensors, w | both)
