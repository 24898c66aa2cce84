"""Reference implementation of PerFCL.

FENDA-FL plus mu con(phi; phi_received | phi_last) and gamma con(psi; psi_last | phi_received), where con(z; a | b) is
the mean of -log(e^(cos(z, a) / tau) / (e^(cos(z, a) / tau) + e^(cos(z, b) / tau))) over a batch, phi are features by
the global body, psi by the personal body, and `last` is the end of the site's last training.

Conventions: as in the paper, as in FL4Health. Fixed models are in evaluation mode.

Deliberate differences of medfl: In a site's first training, the terms are omitted.

Source: Zhang, Xu, Wei, Wang, Li, Shang, Pattern Recognition 2023.
"""

import pytest
import torch
from reference_training import assert_close, run_method
from torch.nn import functional as F
from two_bodies_loop import initial_tensors, train_three_rounds, two_bodies


def contrast(z, near, far, tau):
    cosines = [F.cosine_similarity(z.float(), other.float(), dim=1) for other in (near, far)]
    return -(torch.stack(cosines) / tau).log_softmax(0)[0].mean()


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(("mu", "gamma", "tau"), [(1.0, 0.6, 0.5), (0.0, 2.0, 0.3), (0.7, 0.0, 1.0)])
def test_method_equals_the_reference_implementation(tmp_path, mu, gamma, tau):
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

    result = run_method(tmp_path, "perfcl", args)
    for site, model in train_three_rounds(initial_tensors("perfcl", args), "concat", 0.0, term_of).items():
        assert_close(result.models[site]["personal"].tensors, model)
