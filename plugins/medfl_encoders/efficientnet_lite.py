"""EfficientNet-lite0: a small convolutional network with weights from ImageNet."""

from __future__ import annotations

from medfl_encoders import LITE_MEAN, LITE_STD
from medfl_encoders.inverted_residual import Convention, InvertedResidualNetwork, Stage


class EfficientNetLite0(InvertedResidualNetwork):
    """EfficientNet-lite0 (Tan and Le, ICML 2019; lite variant of Google, 2020) for images of any size.

    EfficientNet-B0 with ReLU6 and without squeeze-and-excitation. `InvertedResidualNetwork` lists the arguments.
    """

    stages = (
        Stage(1, 16, 1, 1),
        Stage(6, 24, 2, 2),
        Stage(6, 40, 2, 2, 5),
        Stage(6, 80, 3, 2),
        Stage(6, 112, 3, 1, 5),
        Stage(6, 192, 4, 2, 5),
        Stage(6, 320, 1, 1),
    )
    """Stages of the body."""
    convention = Convention(norm_eps=1e-3, norm_momentum=0.01, same_padding=True)
    """TensorFlow's padding and batch norm, with which the weights were trained."""
    weights_mean = LITE_MEAN
    """Mean of the three channels with which the weights were trained."""
    weights_std = LITE_STD
    """Standard deviation of the three channels with which the weights were trained."""
