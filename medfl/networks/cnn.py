"""Small convolutional network that is common in federated-learning papers."""

from __future__ import annotations

from collections.abc import Sequence

from medfl.networks.convnet import ConvNet


class CNN4(ConvNet):
    """Network of two convolutions with max-pooling (32 and 64 channels) and two linear layers (512 and `num_classes`).

    It uses ReLU, no normalisation and no dropout. In 2-D, with 5x5 kernels, it is the network of McMahan et al.
    (AISTATS 2017) for small images, with 1,663,370 parameters for one channel, 10 classes and 28 pixels. For volumes
    the kernels are 3x3x3, which needs a fifth of the computation of 5x5x5. Only pooling reduces the size of the feature
    maps.

    Args:
        in_channels: Number of image channels, >= 1.
        num_classes: Number of classes, >= 2.
        size: Edge of a square or cubic image in pixels, or its height and width, or depth, height and width; each >= 4.
        spatial_dims: 2 for images, 3 for volumes.

    Attributes:
        body: Feature extractor from images (B, in_channels, *size) to features (B, 512).
        head: Linear layer from features to logits (B, num_classes).
        feature_layers: Stages of the body, in order: two with feature maps and one with vectors.

    Raises:
        SettingsError: If an argument is too small.
    """

    def __init__(
        self, in_channels: int = 3, num_classes: int = 8, size: int | Sequence[int] = 28, spatial_dims: int = 2
    ) -> None:
        kernel = 5 if spatial_dims == 2 else 3
        super().__init__(
            in_channels,
            num_classes,
            size,
            spatial_dims,
            channels=(32, 64),
            dense=512,
            kernel=kernel,
            padding=kernel // 2,
            pooling="flatten",
        )
