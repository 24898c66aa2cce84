"""Whether a bundle's images say how large a voxel is."""

from __future__ import annotations

from collections.abc import Sequence

from medfl.bundle.adopt.config import LOAD_IMAGE, Config, base_name
from medfl.bundle.adopt.parts import Parts
from medfl.data.transforms.cases import PICTURES

VOLUMES = (".nii", ".nii.gz", ".nrrd", ".mha", ".mhd", ".dcm")
"""Files that say it."""


def has_spacing(config: Config, parts: Parts, needs: Sequence[str]) -> bool:
    """Whether images are volumes that a transform reads from files, and no pictures.

    Args:
        config: The training configuration.
        parts: Its parts.
        needs: Patterns of the files that a site holds.
    """
    if parts.train_preprocessing is None or any(path.lower().endswith(PICTURES) for path in needs):
        return False
    transforms = config.components(parts.train_preprocessing)
    loaders = [id_ for id_, transform in transforms if base_name(str(transform["_target_"])) in LOAD_IMAGE]
    in_space = config.value(f"{parts.network}#spatial_dims") == 3
    volumes = in_space or any(path.lower().endswith(VOLUMES) for path in needs)
    return volumes and any("image" in config.keys(id_) for id_ in loaders)
