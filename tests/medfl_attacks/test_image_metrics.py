"""MSE, PSNR and SSIM against closed forms and an independent reference."""

import pytest
import torch
from skimage.metrics import structural_similarity

from medfl_attacks.image_metrics import MAX_PSNR, compare_images


def images(*shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("shape", [(2, 1, 28, 28), (2, 3, 40, 33), (2, 1, 12, 13, 14), (2, 1, 4, 5), (2, 1, 3, 3, 6)])
def test_an_image_is_its_own_best_reconstruction(shape):
    x = images(*shape)
    same = compare_images(x, x)
    assert same.mse.tolist() == [0, 0]
    assert same.psnr.tolist() == [MAX_PSNR] * 2
    torch.testing.assert_close(same.ssim, torch.ones(2, dtype=torch.float64), atol=1e-4, rtol=0)
    assert bool((compare_images(1 - x, x).ssim < 0.9).all())


def test_a_tenth_more_everywhere_is_twenty_decibels():
    x = 0.8 * images(3, 1, 28, 28)
    scores = compare_images(x + 0.1, x)
    torch.testing.assert_close(scores.mse, torch.full((3,), 0.01, dtype=torch.float64), atol=1e-7, rtol=0)
    torch.testing.assert_close(scores.psnr, torch.full((3,), 20.0, dtype=torch.float64), atol=1e-4, rtol=0)


def test_ssim_is_that_of_scikit_image():
    x = images(1, 1, 28, 28)
    y = (x + 0.2 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1))).clamp(0, 1)
    pair = (y[0, 0].double().numpy(), x[0, 0].double().numpy())
    how = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False, "data_range": 1.0}
    _, full = structural_similarity(*pair, full=True, **how)
    inner = full[5:-5, 5:-5].mean()  # where the window of 11 cells lies within the image
    assert float(compare_images(y, x).ssim) == pytest.approx(inner, abs=1e-4)


def test_the_image_that_went_best_is_beside_the_mean():
    x = 0.5 * images(2, 1, 8, 8)
    summarize = compare_images(x + torch.tensor([0.1, 0.2]).view(2, 1, 1, 1), x).summarize()
    assert summarize["mse"] == pytest.approx(0.025)
    assert summarize["best_mse"] == pytest.approx(0.01)
    assert summarize["best_psnr"] == pytest.approx(20, abs=1e-4)
    assert summarize["ssim"] < summarize["best_ssim"] < 1


def test_two_shapes_are_refused():
    with pytest.raises(ValueError, match="same shape"):
        compare_images(images(1, 1, 8, 8), images(2, 1, 8, 8))
