"""MR-MTL by Liu, Hu, Wu, Smith, NeurIPS 2022: v_k <- v_k - lr (grad f_k(v_k) + lam (v_k - w)), where w is the plain
mean of the v_k; no v_k is ever overwritten.

Convention: the paper's. The authors' code sums changes of v_k, which is the same where all take part. Where ours
differs on purpose: buffers of batch norm are v_k's own.
"""

from judging import ROUNDS, SIZES, agree, parameters, plain_sgd, run, squared, start

LAM = 0.7


def test_it_is_the_loop_of_the_paper(tmp_path):
    w = {name: start()[name] for name in parameters()}
    own = dict.fromkeys(SIZES, start())
    for round_ in range(1, ROUNDS + 1):
        for site in SIZES:
            own[site] = plain_sgd(own[site], site, round_, 0.9, lambda v, w=w: LAM / 2 * squared(w, v))
        w = {name: sum(model[name] for model in own.values()) / len(own) for name in w}
    result = run(tmp_path, "mr_mtl", {"lam": LAM}, momentum=0.9)
    for site in SIZES:
        agree(result.models[site]["personal"].tensors, own[site])
