"""Reference implementation of FedNova.

The algorithm as printed in the paper.

Conventions: Weights by numbers of images, and tau_eff = sum p_k |a_k|_1. For momentum together with a proximal term,
the paper gives no |a|_1. The reference computes the distance along a constant gradient of 1, which equals the paper's
value if there is only one of the two. The authors' code adds both cases, uses sum p_k tau_k with a proximal term
(``tau_eff = steps``), and keeps its proximal term out of the loss.

Source: Wang, Liu, Liang, Joshi, Poor, NeurIPS 2020, equations 5 to 8, with the a of table 1.
"""

import pytest
from reference_training import (
    LR,
    ROUNDS,
    SIZES,
    assert_close,
    batches,
    initial_model,
    plain_sgd,
    run_method,
    squared_distance,
)


def length(steps, momentum, mu):
    """Return |a|_1, the distance of steps along a constant gradient of 1, in units of the learning rate."""
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
    w = initial_model(norm=False)
    for round_ in range(1, ROUNDS + 1):
        directions, effort = dict.fromkeys(w, 0.0), 0.0
        for site, size in SIZES.items():
            y = plain_sgd(w, site, round_, momentum, lambda own, w=w: mu / 2 * squared_distance(own, w))
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
def test_three_rounds_equal_the_reference_implementation(tmp_path, momentum, mu, tau_eff):
    assert len({len(batches(site, 1, norm=False)) for site in SIZES}) == 3  # sites take unlike numbers of steps
    result = run_method(tmp_path, "fednova", {"mu": mu, "tau_eff": tau_eff}, momentum, norm=False)
    assert_close(result.outcome.models["global"].tensors, loop(momentum, mu, tau_eff))
