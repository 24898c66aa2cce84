"""How close an attacker's image is to the true one: mean squared error, peak signal-to-noise ratio, structure."""

from __future__ import annotations

from dataclasses import dataclass

import torch

MOST_PSNR = 100.0
"""Decibels that stand for an exact image, and the most that is reported: the mean over images stays finite."""

WINDOW = 11
"""Cells of the window of SSIM along each axis (Wang et al. 2004)."""


@dataclass(frozen=True)
class Quality:
    """Closeness of images to the true ones, one number for each image.

    Attributes:
        mse: Mean squared error over channels and cells, (B,), >= 0; 0 for an exact image.
        psnr: Peak signal-to-noise ratio in decibels, -10 log10(mse) for images in [0, 1], (B,), at most `MOST_PSNR`.
        ssim: Structural similarity, (B,), in [-1, 1]; 1 for an exact image.
    """

    mse: torch.Tensor
    psnr: torch.Tensor
    ssim: torch.Tensor

    def row(self) -> dict[str, float]:
        """The mean of each number over the images, and under ``best_`` that of the image it went best for."""
        means = {name: float(values.mean()) for name, values in vars(self).items()}
        return means | {
            "best_mse": float(self.mse.min()),
            "best_psnr": float(self.psnr.max()),
            "best_ssim": float(self.ssim.max()),
        }


def quality(images: torch.Tensor, truth: torch.Tensor) -> Quality:
    """Compare images with the true ones, each with its own.

    SSIM is MONAI's, with a Gaussian window of 11 cells along each axis, or of the largest odd number of cells that an
    image has room for.

    Args:
        images: (B, C, H, W) or (B, C, H, W, D), B >= 1.
        truth: The same shape, in [0, 1].

    Raises:
        ValueError: If the shapes differ.

    Example:
        >>> x = torch.full((1, 1, 5, 5), 0.4)
        >>> round(float(quality(x + 0.1, x).psnr), 3)
        20.0
    """
    if images.shape != truth.shape:
        raise ValueError(f"expected two batches of the same shape, got {tuple(images.shape)} and {tuple(truth.shape)}")
    images, truth = images.detach().cpu().double(), truth.detach().cpu().double()
    mse = (images - truth).square().flatten(1).mean(dim=1)
    psnr = (-10 * mse.clamp(min=1e-30).log10()).clamp(max=MOST_PSNR)
    return Quality(mse, psnr, _ssim(images, truth))


def _ssim(images: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    from monai.metrics.regression import SSIMMetric  # takes seconds to import

    sizes = truth.shape[2:]
    window = [min(WINDOW, size - 1 + size % 2) for size in sizes]
    values: torch.Tensor = SSIMMetric(len(sizes), win_size=window, reduction="none")(images, truth)  # type: ignore[assignment]
    return values.flatten().double()
