"""Reference implementation of MR-MTL.

v_k <- v_k - lr (grad f_k(v_k) + lam (v_k - w)), where w is the unweighted mean of the v_k. No v_k is ever overwritten.

Conventions: as in the paper. The authors' code sums changes of v_k, which is equal if all sites take part.

Deliberate differences of medfl: Batch-norm buffers belong to v_k.

Source: Liu, Hu, Wu, Smith, NeurIPS 2022.
"""

from reference_training import (
    ROUNDS,
    SIZES,
    assert_close,
    initial_model,
    parameter_names,
    plain_sgd,
    run_method,
    squared_distance,
)

LAM = 0.7


def test_method_equals_the_reference_implementation(tmp_path):
    w = {name: initial_model()[name] for name in parameter_names()}
    own = dict.fromkeys(SIZES, initial_model())
    for round_ in range(1, ROUNDS + 1):
        for site in SIZES:
            own[site] = plain_sgd(own[site], site, round_, 0.9, lambda v, w=w: LAM / 2 * squared_distance(w, v))
        w = {name: sum(model[name] for model in own.values()) / len(own) for name in w}
    result = run_method(tmp_path, "mr_mtl", {"lam": LAM}, momentum=0.9)
    for site in SIZES:
        assert_close(result.models[site]["personal"].tensors, own[site])
