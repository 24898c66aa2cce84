"""Ditto by Li, Hu, Beirami, Smith, ICML 2021, Algorithm 1: beside FedAvg's local training from w_t a site takes steps
v <- v - lr (grad F(v) + lam (v - w_t)) on its own model.

Convention: the paper's; the authors' code takes the plain mean of the sites' models, as the preset ``paper`` does. Both
trainings see the same batches, which the paper leaves open. Where ours differs on purpose: v_k begins as the model that
the site receives first, and has buffers of batch norm of its own, which are not in the term.
"""

import pytest
from judging import ROUNDS, SIZES, agree, mean, plain_sgd, run, squared, start

LAM = 0.6


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_it_is_the_loop_of_the_paper(tmp_path, momentum):
    w = start()
    own = dict.fromkeys(SIZES, w)
    for round_ in range(1, ROUNDS + 1):
        for site in SIZES:
            own[site] = plain_sgd(own[site], site, round_, momentum, lambda v, w=w: LAM / 2 * squared(v, w))
        w = mean([plain_sgd(w, site, round_, momentum) for site in SIZES], [1, 1, 1])
    result = run(tmp_path, "ditto", {"lam": LAM, "preset": "paper"}, momentum=momentum)
    agree(result.outcome.models["global"].tensors, w)
    for site in SIZES:
        agree(result.models[site]["personal"].tensors, own[site])
