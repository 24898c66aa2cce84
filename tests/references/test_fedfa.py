"""Reference implementation of FedFA.

A site minimises CE plus lam (1/C) sum_c of the mean of ||f_i - a_c||^2 over a batch's images of class c, with the
received anchors a. After each batch, Adam takes a step on the head by CE over all C anchors. After each epoch, a site's
anchors become m times themselves plus 1 - m times the features of that epoch. The server averages models and anchors.

Conventions: as in the authors' code, with its one-hot initial anchors.

Deliberate differences of medfl: The features of a class in an epoch are the mean over the batches that contain it,
where the code divides by all batches. Anchors are averaged over the sites that have the class, weighted by size.
Batches of one image, which batch norm does not support, have no features either.

Source: Zhou, Zhang, Tsang, IEEE Transactions on Mobile Computing 2023.
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
from torch.nn import functional as F

LAM, KEEP, CALIB_LR = 0.8, 0.6, 0.01


def train(received, anchors, site, round_, momentum):
    """Return the trained model and the site's anchors; anchors of classes without images are unchanged."""
    model, own = network_from(received), anchors.clone()
    sgd = torch.optim.SGD(model.parameters(), lr=LR, momentum=momentum)
    adam = torch.optim.Adam(model.head.parameters(), lr=CALIB_LR)
    both = batches(site, round_)
    for epoch in (both[: len(both) // 2], both[len(both) // 2 :]):
        means = {label: [] for label in range(3)}
        for rows in epoch:
            images, labels = SITES[site].train.batch(rows)
            features = model.body(images)
            loss = F.cross_entropy(model.head(features), labels)
            for label in set(labels.tolist()):
                of_class = features[labels == label].float()
                loss = loss + LAM / 3 * (of_class - anchors[label]).square().sum(1).mean()
                means[label].append(of_class.detach().mean(0))
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            adam.zero_grad()
            F.cross_entropy(model.head(anchors), torch.arange(3)).backward()
            adam.step()
        for label, batch_means in means.items():
            if batch_means:
                own[label] = KEEP * own[label] + (1 - KEEP) * torch.stack(batch_means).mean(0)
    return state_of(model), own


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_method_equals_the_reference_implementation(tmp_path, momentum):
    w, anchors = initial_model(), torch.eye(3, 6)
    for round_ in range(1, ROUNDS + 1):
        models, rows = {}, {}
        for site in SIZES:
            models[site], rows[site] = train(w, anchors, site, round_, momentum)
        w = average_models(list(models.values()), list(SIZES.values()))
        new = []
        for label in range(3):
            owners = [site for site in SIZES if label in LABELS[site]]
            total = sum(SIZES[site] for site in owners)
            new.append(sum(SIZES[site] / total * rows[site][label] for site in owners))
        anchors = torch.stack(new)
    args = {"lam": LAM, "anchor_momentum": KEEP, "calib_lr": CALIB_LR, "anchor_init": "one_hot"}
    assert_close(run_method(tmp_path, "fedfa", args, momentum).outcome.models["global"].tensors, w)
