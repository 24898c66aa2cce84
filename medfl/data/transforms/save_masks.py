"""Write predicted masks of 2-D image files as PNG, at the size of the image files."""

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
"""Grey value of the last class in a mask file: white."""


class SaveMaskd(Transform):
    """Transform that writes the mask of each image as PNG: ``<name>_mask.png``, in the same subfolders as the images.

    Logits are resized to the original image size by linear interpolation, which inverts the resizing of
    `medfl.data.inference.ImageFiles`. Each pixel gets the class with the largest logit, as a grey value: class c of C
    is ``255 c // (C - 1)``, so that a lesion is white on black.

    Args:
        output_dir: Folder to write into.
        dataset_dir: Folder of the image files. Images without a file, such as the images of a site's list, have
            the name ``row N``; their masks have the size of the network's output.
    """

    def __init__(self, output_dir: str | Path, dataset_dir: str | Path) -> None:
        self._output, self._source = Path(output_dir), Path(dataset_dir)

    def __call__(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Write the mask of one image and return the data unchanged.

        Args:
            data: Dictionary with ``image``, whose metadata has the file name, and ``pred``, logits (C, H, W).
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
