"""Whether a bundle's images say how large a voxel is."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from medfl.data.transforms.cases import PICTURES
from medfl_adopt.config import LOAD_IMAGE, Config, base_name
from medfl_adopt.parts import Parts

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
    volumes = spatial_dims(config, parts.network) == 3 or any(path.lower().endswith(VOLUMES) for path in needs)
    return volumes and any("image" in config.keys(id_) for id_ in loaders)


def spatial_dims(config: Config, network: str) -> int | None:
    """Of a network's images: as its definition says, or MONAI's network of that name; None if neither does."""
    from monai.networks import nets

    if f"{network}#spatial_dims" in config:
        value = config.value(f"{network}#spatial_dims")
        return value if isinstance(value, int) else None
    kind = vars(nets).get(base_name(config.target(network)))
    default = inspect.signature(kind).parameters.get("spatial_dims") if callable(kind) else None
    return default.default if default is not None and isinstance(default.default, int) else None
