"""FedRoD by Chen, Chao, ICLR 2022, equations 6 to 8 and Algorithm 1: body and generic head learn by the balanced
softmax, CE(z + gamma ln m_k, y) with the site's numbers m_k of images of each class, and are averaged by size; a
personal head on the same features, from which no gradient flows back, learns by CE(z + z_p, y) and stays.

Convention: the paper's, with a linear personal head; numbers are of all training images. A class without images leaves
the softmax. Where ours differs on purpose: the personal head begins at zero.
"""

import pytest
import torch
from judging import LABELS, LR, ROUNDS, SITES, SIZES, agree, batches, mean, network, run, start, state_of
from torch import nn
from torch.nn import functional as F


def train(received, own, site, round_, gamma, momentum):
    model = network(received)
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
def test_it_is_the_loop_of_the_paper(tmp_path, gamma, momentum):
    w = start()
    own = dict.fromkeys(SIZES, {"weight": torch.zeros(3, 6).double(), "bias": torch.zeros(3).double()})
    for round_ in range(1, ROUNDS + 1):
        models = []
        for site in SIZES:
            model, own[site] = train(w, own[site], site, round_, gamma, momentum)
            models.append(model)
        w = mean(models, list(SIZES.values()))
    result = run(tmp_path, "fedrod", {"gamma": gamma}, momentum)
    agree(result.outcome.models["global"].tensors, w)
    for site in SIZES:
        both = {f"head.{name}": w[f"head.{name}"] + tensor for name, tensor in own[site].items()}
        agree(result.models[site]["personal"].tensors, w | both)
