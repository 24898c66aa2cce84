"""Masks that a network drew of pictures, written on the grid of the pictures' files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from monai.transforms import Transform
from PIL import Image

from medfl.data.readers.images import image_size

GREYS = 255
"""The brightest one, which is that of the last class."""


class SaveMaskd(Transform):
    """Write the mask of each picture as PNG: ``<name>_mask.png``, in the folders that the pictures have.

    Logits are resized to the picture by linear interpolation, undoing what `medfl.data.inference.ImageFiles` did to it,
    and each pixel gets the class with the largest one, as a grey: class c of C is ``255 c // (C - 1)``, so that a
    lesion is white on black.

    Args:
        output_dir: Where to write.
        dataset_dir: Where the pictures are. What has no file there, as the images of a site's list, is written at the
            size of the network's outputs, and called ``row N``.
    """

    def __init__(self, output_dir: str | Path, dataset_dir: str | Path) -> None:
        self._output, self._source = Path(output_dir), Path(dataset_dir)

    def __call__(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Write the mask of one picture.

        Args:
            data: With ``image``, which knows the name of its file, and ``pred``, logits (C, H, W).
        """
        name = str(data["image"].meta["filename_or_obj"])
        logits = torch.as_tensor(data["pred"]).float()
        path = self._source / name
        size = image_size(path) if path.is_file() else tuple(logits.shape[1:])
        full = torch.nn.functional.interpolate(logits[None], size=size, mode="bilinear", align_corners=False)[0]
        greys = full.argmax(dim=0).cpu().numpy() * GREYS // (len(logits) - 1)
        target = self._output / Path(name).parent / f"{Path(name).stem}_mask.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(greys.astype(np.uint8)).save(target)
        return dict(data)
