"""Similarity of reconstructed images to the true images: MSE, PSNR and SSIM."""

from __future__ import annotations

from dataclasses import dataclass

import torch

MAX_PSNR = 100.0
"""Upper limit of the reported PSNR in decibels. An exact image gets this value, so that a mean over images stays
finite.
"""

SSIM_WINDOW = 11
"""Side of the SSIM window in cells (pixels or voxels) (Wang et al. 2004)."""


@dataclass(frozen=True)
class SimilarityScores:
    """Similarity of B images to the true images, one value for each image.

    Attributes:
        mse: Mean squared error over channels and cells, (B,), >= 0; 0 for an exact image.
        psnr: Peak signal-to-noise ratio in decibels, -10 log10(mse) for images in [0, 1], (B,), at most `MAX_PSNR`.
        ssim: Structural similarity, (B,), in [-1, 1]; 1 for an exact image.
    """

    mse: torch.Tensor
    psnr: torch.Tensor
    ssim: torch.Tensor

    def summarize(self) -> dict[str, float]:
        """Return the mean of each measure over the images, and the measures' best values.

        Returns:
            Dictionary with the keys ``mse``, ``psnr``, ``ssim`` (means), ``best_mse`` (smallest), ``best_psnr`` and
                ``best_ssim`` (largest).
        """
        means = {name: float(values.mean()) for name, values in vars(self).items()}
        return means | {
            "best_mse": float(self.mse.min()),
            "best_psnr": float(self.psnr.max()),
            "best_ssim": float(self.ssim.max()),
        }


def compare_images(images: torch.Tensor, truth: torch.Tensor) -> SimilarityScores:
    """Compare each image with the true image at the same position.

    SSIM is MONAI's, with a Gaussian window of 11 cells along each axis. For smaller images the window is the largest
    odd number of cells that fits.

    Args:
        images: Reconstructed images, (B, C, H, W) or (B, C, H, W, D), B >= 1.
        truth: True images of the same shape, in [0, 1].

    Raises:
        ValueError: If the shapes differ.

    Example:
        >>> x = torch.full((1, 1, 5, 5), 0.4)
        >>> round(float(compare_images(x + 0.1, x).psnr), 3)
        20.0
    """
    if images.shape != truth.shape:
        raise ValueError(f"expected two batches of the same shape, got {tuple(images.shape)} and {tuple(truth.shape)}")
    images, truth = images.detach().cpu().double(), truth.detach().cpu().double()
    mse = (images - truth).square().flatten(1).mean(dim=1)
    psnr = (-10 * mse.clamp(min=1e-30).log10()).clamp(max=MAX_PSNR)
    return SimilarityScores(mse, psnr, _ssim(images, truth))


def _ssim(images: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Return the structural similarity of each image, (B,), float64."""
    from monai.metrics.regression import SSIMMetric  # takes seconds to import

    sizes = truth.shape[2:]
    window = [min(SSIM_WINDOW, size - 1 + size % 2) for size in sizes]
    values: torch.Tensor = SSIMMetric(len(sizes), win_size=window, reduction="none")(images, truth)  # type: ignore[assignment]
    return values.flatten().double()
