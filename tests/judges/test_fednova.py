"""FedNova, as its paper prints it (Wang, Liu, Liang, Joshi, Poor, NeurIPS 2020, equations 5 to 8, with table 1's a).

Convention: weights by numbers of images, tau_eff = sum p_k |a_k|_1. For momentum and a proximal term at once the paper
has no |a|_1; a constant gradient of 1 goes as far as the loop below counts, which gives the paper's values where it has
one of the two. The authors' code adds both cases, takes sum p_k tau_k with a proximal term (``tau_eff = steps``), and
keeps its proximal term out of the loss.
"""

import pytest
import torch
from judging import BATCH, LABELS, LR, ROUNDS, agree, batches, images_of, initial, network, run
from torch.nn import functional as F


def length(steps, momentum, mu):
    """|a|_1: how far steps along a constant gradient of 1 go, in learning rates."""
    speed = distance = 0.0
    for _ in range(steps):
        speed = momentum * speed + 1 - LR * mu * distance
        distance += speed
    return distance


def test_lengths_are_those_of_the_paper():
    assert length(5, 0.9, 0) == pytest.approx((5 - 0.9 * (1 - 0.9**5) / 0.1) / 0.1)
    assert length(5, 0.0, 1.0) == pytest.approx(4.0951)
    assert length(10, 0.9, 0) == pytest.approx(41.3810596090)


def loop(momentum, mu, tau_eff, epochs):
    w = initial()
    total = sum(len(labels) for labels in LABELS.values())
    for round_ in range(1, ROUNDS + 1):
        directions, effort = {name: torch.zeros_like(tensor) for name, tensor in w.items()}, 0.0
        for site, labels in LABELS.items():
            model, (images, targets) = network(w), images_of(site)
            speed = {name: torch.zeros_like(tensor) for name, tensor in w.items()}
            rows_of = batches(site, round_, epochs)
            for rows in rows_of:
                loss = F.cross_entropy(model(images[rows]), targets[rows])
                gradients = torch.autograd.grad(loss, list(model.parameters()))
                with torch.no_grad():
                    for (name, y), gradient in zip(model.named_parameters(), gradients, strict=True):
                        speed[name] = momentum * speed[name] + gradient + mu * (y - w[name])
                        y -= LR * speed[name]
            share, a = len(labels) / total, length(len(rows_of), momentum, mu)
            effort += share * (a if tau_eff == "effort" else len(rows_of))
            for name, y in model.named_parameters():
                directions[name] += share * (w[name] - y.detach()) / a
        w = {name: tensor - effort * directions[name] for name, tensor in w.items()}
    return w


@pytest.mark.parametrize(
    ("momentum", "mu", "tau_eff"),
    [(0.0, 0.0, "effort"), (0.9, 0.0, "effort"), (0.0, 0.5, "effort"), (0.9, 0.5, "effort"), (0.0, 0.5, "steps")],
)
def test_three_rounds_are_those_of_the_loop(tmp_path, momentum, mu, tau_eff):
    assert len({-(-len(labels) // BATCH) for labels in LABELS.values()}) == 3  # sites take unlike numbers of steps
    result = run(tmp_path, "fednova", {"mu": mu, "tau_eff": tau_eff}, momentum=momentum)
    agree(result.outcome.models["global"].tensors, loop(momentum, mu, tau_eff, 2))
