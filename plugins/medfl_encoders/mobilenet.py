"""MobileNetV2: a small convolutional network with weights from ImageNet."""

from __future__ import annotations

from medfl_encoders import IMAGENET_MEAN, IMAGENET_STD
from medfl_encoders.inverted_residual import Convention, InvertedResidualNetwork, Stage


class MobileNetV2(InvertedResidualNetwork):
    """MobileNetV2 with width multiplier 1 (Sandler et al., CVPR 2018) for images of any size.

    `InvertedResidualNetwork` lists the arguments.
    """

    stages = (
        Stage(1, 16, 1, 1),
        Stage(6, 24, 2, 2),
        Stage(6, 32, 3, 2),
        Stage(6, 64, 4, 2),
        Stage(6, 96, 3, 1),
        Stage(6, 160, 3, 2),
        Stage(6, 320, 1, 1),
    )
    """Stages of the body."""
    convention = Convention(norm_eps=1e-5, norm_momentum=0.1, same_padding=False)
    """PyTorch's padding and batch norm, with which the weights were trained."""
    weights_mean = IMAGENET_MEAN
    """Mean of the three channels with which the weights were trained."""
    weights_std = IMAGENET_STD
    """Standard deviation of the three channels with which the weights were trained."""
