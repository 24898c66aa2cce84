"""FedNova, as its paper prints it (Wang, Liu, Liang, Joshi, Poor, NeurIPS 2020, equations 5 to 8, with table 1's a).

Convention: weights by numbers of images, tau_eff = sum p_k |a_k|_1. For momentum and a proximal term at once the paper
has no |a|_1; a constant gradient of 1 goes as far as the loop below counts, which gives the paper's values where it has
one of the two. The authors' code adds both cases, takes sum p_k tau_k with a proximal term (``tau_eff = steps``), and
keeps its proximal term out of the loss.
"""

import pytest
from judging import LR, ROUNDS, SIZES, agree, batches, plain_sgd, run, squared, start


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


def loop(momentum, mu, tau_eff):
    w = start(norm=False)
    for round_ in range(1, ROUNDS + 1):
        directions, effort = dict.fromkeys(w, 0.0), 0.0
        for site, size in SIZES.items():
            y = plain_sgd(w, site, round_, momentum, lambda own, w=w: mu / 2 * squared(own, w))
            steps, share = len(batches(site, round_, norm=False)), size / sum(SIZES.values())
            a = length(steps, momentum, mu)
            effort += share * (a if tau_eff == "effort" else steps)
            directions = {name: directions[name] + share * (w[name] - y[name]) / a for name in w}
        w = {name: tensor - effort * directions[name] for name, tensor in w.items()}
    return w


@pytest.mark.parametrize(
    ("momentum", "mu", "tau_eff"),
    [(0.0, 0.0, "effort"), (0.9, 0.0, "effort"), (0.0, 0.5, "effort"), (0.9, 0.5, "effort"), (0.0, 0.5, "steps")],
)
def test_three_rounds_are_those_of_the_loop(tmp_path, momentum, mu, tau_eff):
    assert len({len(batches(site, 1, norm=False)) for site in SIZES}) == 3  # sites take unlike numbers of steps
    result = run(tmp_path, "fednova", {"mu": mu, "tau_eff": tau_eff}, momentum, norm=False)
    agree(result.outcome.models["global"].tensors, loop(momentum, mu, tau_eff))
