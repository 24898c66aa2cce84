"""PerFCL by Zhang, Xu, Wei, Wang, Li, Shang, Pattern Recognition 2023: FENDA-FL plus mu con(phi; phi_received |
phi_last) and gamma con(psi; psi_last | phi_received), where con(z; a | b) is the mean of -log(e^(cos(z, a) / tau) /
(e^(cos(z, a) / tau) + e^(cos(z, b) / tau))) over a batch, phi are features by the common body, psi by the site's own,
and `last` is the end of the site's last training.

Convention: the paper's, as in FL4Health. Models that teach are in evaluation mode. Where ours differs on purpose: in a
site's first training there is no term.
"""

import pytest
import torch
from judging import agree, run
from torch.nn import functional as F
from two_bodies_loop import initial, loop, two_bodies


def contrast(z, near, far, tau):
    cosines = [F.cosine_similarity(z.float(), other.float(), dim=1) for other in (near, far)]
    return -(torch.stack(cosines) / tau).log_softmax(0)[0].mean()


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(("mu", "gamma", "tau"), [(1.0, 0.6, 0.5), (0.0, 2.0, 0.3), (0.7, 0.0, 1.0)])
def test_it_is_the_loop_of_the_paper(tmp_path, mu, gamma, tau):
    args = {"mu": mu, "gamma": gamma, "tau": tau}

    def term_of(last, received):
        if last is None:
            return lambda images, psi, phi: 0.0
        before = two_bodies(last, "concat").eval().requires_grad_(False)
        common = two_bodies(last | received, "concat").eval().requires_grad_(False)

        def term(images, psi, phi):
            sent = common.body(images)
            shared = contrast(phi, sent, before.body(images), tau)
            return mu * shared + gamma * contrast(psi, before.own(images), sent, tau)

        return term

    result = run(tmp_path, "perfcl", args)
    for site, model in loop(initial("perfcl", args), "concat", 0.0, term_of).items():
        agree(result.models[site]["personal"].tensors, model)
