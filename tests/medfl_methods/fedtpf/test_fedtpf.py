"""FedTPF's numbers (O-TP-5, O-TP-6, O-TP-9, and the resolutions TP-05, TP-06, TP-08): noise, epsilon, freezing."""

import math

import pytest
import torch

from medfl.privacy.gaussian import calibrate
from medfl.privacy.release import ImageRelease, epsilon_together
from medfl.utils.rng import SecretStream

VARIANCES = (0.15, 0.20, 0.25)

# ---- the guarantee of the noise (O-TP-5, TP-08)


@pytest.mark.parametrize(
    ("adjacency", "clip", "expected"),
    [
        ("add_remove", 0.5, (5.90, 4.98, 4.38)),
        ("add_remove", 1.0, (13.76, 11.48, 10.00)),
        ("replace", 1.0, (34.63, 28.37, 24.38)),
        ("add_remove", 5.0, (137.5, 109.3, 91.8)),
    ],
)
def test_tp_5_epsilon_of_each_release(adjacency, clip, expected):
    epsilons = [ImageRelease("gaussian", variance, clip).epsilon(adjacency) for variance in VARIANCES]
    assert epsilons == pytest.approx(expected, abs=0.05 if clip == 5 else 0.005)


def test_tp_5_the_same_numbers_as_standard_deviations():
    epsilons = [ImageRelease("gaussian", std**2, 1.0).epsilon("add_remove") for std in VARIANCES]
    assert epsilons == pytest.approx((49.9, 33.1, 24.4), abs=0.05)


@pytest.mark.parametrize(("epsilon", "sigma"), [(8, 0.600), (4, 1.081), (2, 1.994), (1, 3.731)])
def test_tp_5_the_noise_that_an_epsilon_needs(epsilon, sigma):
    assert calibrate(epsilon, 1, 1e-5) == pytest.approx(sigma, abs=5e-4)
    assert ImageRelease("gaussian", sigma**2, 1.0).epsilon("add_remove") == pytest.approx(epsilon, rel=2e-3)


def test_tp_5_two_noisy_copies():
    copies = [ImageRelease("gaussian", variance, 1.0) for variance in (0.15, 0.25)]
    assert epsilon_together(copies, "add_remove") == pytest.approx(18.6, abs=0.05)


def test_tp_8_laplace_noise_of_the_same_variance():
    epsilons = [ImageRelease("laplace", variance, 1.0).epsilon("add_remove") for variance in VARIANCES]
    assert epsilons == pytest.approx((3.65, 3.16, 2.83), abs=0.005)
    assert ImageRelease("laplace", 0.15, 1.0).epsilon("replace") == pytest.approx(2 * epsilons[0])


def test_tp_8_without_a_clip_the_only_bound_there_is_says_nothing():
    """The residual of an image of 784 pixels has a norm of at most 28."""
    assert ImageRelease("gaussian", 0.15, None).epsilon("add_remove") is None
    assert ImageRelease("gaussian", 0.15, 28.0).epsilon("add_remove") > 2000


def test_tp_5_clip():
    part = torch.zeros(2, 1, 28, 28)
    part[0, 0, 3, :9] = 1.0  # norm 3
    part[1, 0, 5, 5] = 0.7
    clipped = ImageRelease("none", 0.15, 1.0).clipped(part)
    assert clipped.flatten(1).norm(dim=1).tolist() == pytest.approx([1.0, 0.7], abs=1e-7)
    assert torch.equal(clipped[1], part[1].double())


# ---- the noise (O-TP-6, TP-09)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_tp_6_variance_and_mean(noise):
    nothing = torch.zeros(1000, 1, 10, 10)
    noise_ = ImageRelease(noise, 0.15, None).apply(nothing, SecretStream(b"0123456789abcdef", noise))
    assert float(noise_.var()) == pytest.approx(0.15, abs=0.003)
    assert float(noise_.mean()) == pytest.approx(0.0, abs=0.004)
    if noise == "laplace":
        assert float(noise_.abs().mean()) == pytest.approx(0.2738613, abs=0.0035)


def test_tp_6_the_scale_of_laplace_noise_is_not_its_standard_deviation():
    assert ImageRelease("laplace", 0.15, None).scale == pytest.approx(0.2738613, abs=5e-8)
    assert ImageRelease("gaussian", 0.15, None).scale == pytest.approx(math.sqrt(0.15))


# ---- freezing (O-TP-9, TP-05, TP-06)


@pytest.mark.parametrize(
    ("images", "ends"), [(100, (0.8256, 0.9448)), (500, (0.8706, 0.9233)), (900, (0.8787, 0.9179))]
)
def test_tp_9_wilsons_interval_of_an_accuracy_of_90_percent(images, ends):
    pytest.importorskip("medfl_report")
    from medfl_report.statistics import wilson

    assert wilson(images * 9 // 10, images) == pytest.approx(ends, abs=5e-5)
