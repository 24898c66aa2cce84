"""The small convolutional network of many federated-learning papers."""

from __future__ import annotations

from collections.abc import Sequence

from medfl.networks.convnet import ConvNet


class CNN4(ConvNet):
    """Two convolutions of 32 and 64 channels, each with pooling, and two linear layers of 512 and `num_classes`.

    ReLU throughout, no normalisation, no dropout. In 2-D, with 5x5 kernels, it is the network of McMahan et al.
    (AISTATS 2017) for small images; it has 1,663,370 parameters for one channel, 10 classes and 28 pixels. For volumes
    the kernels are 3x3x3, which takes a fifth of the work of 5x5x5. Maps keep their edges but for the pooling.

    Args:
        in_channels: Channels of an image, >= 1.
        num_classes: Number of classes, >= 2.
        size: Edge of a square or cubic image in pixels, or its height and width, or depth, height and width; each >= 4.
        spatial_dims: 2 for images, 3 for volumes.

    Attributes:
        body: Maps images (B, in_channels, *size) to features (B, 512).
        head: Maps features to logits (B, num_classes).
        feature_layers: The stages of the body, in order: two maps and one vector.

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
