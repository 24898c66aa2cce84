"""Reference implementation of FENDA-FL.

A site's personal body, the global body and a head on both are trained together. Only the global body is averaged,
weighted by size.

Conventions: as in the paper, with concatenated features; ``sum`` and the term lam mean |cos(own, common)| are options
of FL4Health. The run creates the initial bodies; the test checks that they differ.

Source: Tavakoli, Emerson, Ayromlou, Jewell, Krishnan, Zhang, Verma, Razak, arXiv 2309.16825, 2023, section 3.
"""

import pytest
from reference_training import assert_close, run_method
from torch.nn import functional as F
from two_bodies_loop import initial_tensors, train_three_rounds


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("join", "cosine", "momentum"), [("concat", 0.0, 0.9), ("sum", 0.0, 0.0), ("concat", 0.7, 0.0)]
)
def test_method_equals_the_reference_implementation(tmp_path, join, cosine, momentum):
    args = {"join": join, "cosine": cosine}
    tensors = initial_tensors("fenda", args)
    assert not tensors["own.2.weight"].allclose(tensors["body.2.weight"])

    def term_of(last, received):
        return lambda images, psi, phi: cosine * F.cosine_similarity(psi.float(), phi.float(), dim=1).abs().mean()

    result = run_method(tmp_path, "fenda", args, momentum)
    for site, model in train_three_rounds(tensors, join, momentum, term_of).items():
        assert_close(result.models[site]["personal"].tensors, model)
