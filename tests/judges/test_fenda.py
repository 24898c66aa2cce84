"""FENDA-FL by Tavakoli, Emerson, Ayromlou, Jewell, Krishnan, Zhang, Verma, Razak, arXiv 2309.16825, 2023, section 3: a
site's own body, the common one and a head on both learn together; only the common body is averaged, weighted by size.

Convention: the paper's, with the features side by side; ``sum`` and the term lam mean |cos(own, common)| are options of
FL4Health's. What the bodies begin with is the run's; the judge looks that they are unlike.
"""

import pytest
from judging import agree, run
from torch.nn import functional as F
from two_bodies_loop import initial, loop


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("join", "cosine", "momentum"), [("concat", 0.0, 0.9), ("sum", 0.0, 0.0), ("concat", 0.7, 0.0)]
)
def test_it_is_the_loop_of_the_paper(tmp_path, join, cosine, momentum):
    args = {"join": join, "cosine": cosine}
    tensors = initial("fenda", args)
    assert not tensors["own.2.weight"].allclose(tensors["body.2.weight"])

    def term_of(last, received):
        return lambda images, psi, phi: cosine * F.cosine_similarity(psi.float(), phi.float(), dim=1).abs().mean()

    result = run(tmp_path, "fenda", args, momentum)
    for site, model in loop(tensors, join, momentum, term_of).items():
        agree(result.models[site]["personal"].tensors, model)
