"""Made-up cases for any adopted bundle: files of the right kind where its own expressions look for them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from PIL import Image

from medfl.bundle.check.reading import walk
from medfl_adopt.adopting import spatial_dims
from medfl_adopt.bundle import AdoptedBundle
from medfl_adopt.config import BundleConfig, base_name, read_config_file
from medfl_adopt.site import AdoptedSite

VOLUMES, PICTURES = (".nii.gz", ".nii"), (".png", ".jpg", ".jpeg")

SIZES = ("spatial_size", "roi_size", "patch_size", "k_divisible")
"""Arguments of transforms and inferers that say how large something is."""


class NotDerivable(Exception):
    """Raised if the cases of a site can't be derived from the bundle's files."""


class Kind:
    """Properties of the cases of an adopted bundle, read from its configuration.

    Args:
        root: The adopted bundle.
        size: Voxels of an image along each axis.
    """

    def __init__(self, root: Path, size: int) -> None:
        self.bundle, self.size = AdoptedBundle(root), size
        adopted = self.bundle.adopted
        metadata = json.loads((root / "configs" / "metadata.json").read_text())
        self.written = read_config_file(root, Path(adopted["files"]["train"]).name)
        self.config = BundleConfig([self.written], metadata, root)
        self.needs, self.list_files = adopted["cases"]["needs"], adopted["cases"]["list_files"]
        self.objective, self.outputs = adopted["objective"], adopted["objective"]["outputs"] or 2
        image = metadata.get("network_data_format", {}).get("inputs", {}).get("image", {})
        network = self.bundle.ids["network"]
        self.dims = spatial_dims(self.config, str(network)) or len(image.get("spatial_shape", (0, 0, 0)))
        self.channels = self._number(f"{network}#in_channels") or image.get("num_channels", 1)
        self.transforms = list(self.config.components(self.bundle.ids["train_preprocessing"]))
        self.spacing = self._argument("Spacingd", "pixdim") or [1.0] * self.dims
        self.low = self._argument("ScaleIntensityRanged", "a_min") or 0
        self.high = self._argument("ScaleIntensityRanged", "a_max") or 255
        self.masks = self.objective["name"] == "segmentation"
        self.brats = any("BasedOnBrats" in transform["_target_"] for _, transform in self.transforms)
        self.scaled_masks = any(
            transform["_target_"] == "ScaleIntensityd" and "label" in str(transform["keys"])
            for _, transform in self.transforms
        )

    def _number(self, id_: str) -> int | None:
        value = self.config.value(id_)
        return value if isinstance(value, int) else None

    def _argument(self, name: str, argument: str) -> Any:
        """Return the argument of the first transform of a name, if it is written."""
        ids = [id_ for id_, transform in self.transforms if base_name(transform["_target_"]) == name]
        return self.config.literal(f"{ids[0]}#{argument}") if ids else None

    def smaller(self) -> dict[str, Any]:
        """Options that make patches and resized images `size` wide, and cut one patch of a case; none where a network
        is made for one size."""
        if f"{self.bundle.ids['network']}#img_size" in self.config:
            return {}
        options: dict[str, Any] = {}
        for place, value in walk(self.written):
            if place and place[0] != self.bundle.ids["network"]:
                self._smaller(place, value, options)
        return options

    def _smaller(self, place: tuple[Any, ...], value: Any, options: dict[str, Any]) -> None:
        id_ = "#".join(map(str, place))
        if place[-1] in SIZES and isinstance(value, int) and value > self.size:
            options[id_] = self.size
        elif place[-1] in SIZES and isinstance(value, list) and all(isinstance(v, int) for v in value):
            options[id_] = [min(v, self.size) for v in value]
        elif place[-1] == "num_samples" and value != 1:
            options[id_] = 1

    def mask(self, rng: np.random.Generator) -> np.ndarray:
        """Boxes within one another, the outermost of class 1; the corner is background."""
        mask = np.zeros([self.size] * self.dims, np.uint8)
        shift = int(rng.integers(0, 2)) * self.size // 8
        for number in range(1, min(self.outputs, 4) if not self.objective["overlapping"] else self.outputs + 1):
            begin, end = shift + self.size * number // 8, shift + self.size * (8 - number) // 8
            mask[(slice(begin, end),) * self.dims] = number
        return np.choose(mask, [0, 2, 1, 4]).astype(np.uint8) if self.brats else mask

    def image(self, mask: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """An image of a mask, in the range that the bundle's transforms expect."""
        values = self.low + (self.high - self.low) * (0.2 + 0.15 * np.minimum(mask, 4))
        return values + rng.normal(0, 0.05 * (self.high - self.low), mask.shape)


def make_sites(kind: Kind, folder: Path, counts: dict[str, int]) -> None:
    """Make sites up.

    Args:
        kind: Of the bundle's cases.
        folder: One folder for each site is made in it.
        counts: Site to cases in each of its lists.

    Raises:
        NotDerivable: If it can't be told what a site must hold.
    """
    for seed, (name, count) in enumerate(counts.items()):
        make_site(kind, folder / name, count, seed)


def make_site(kind: Kind, folder: Path, count: int, seed: int) -> None:
    """One site of `make_sites`: places for files first, which the bundle's own expressions list, then the files."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng((count, seed))
    if not kind.needs:
        raise NotDerivable("the configuration does not say which files a site holds")
    for pattern in kind.needs:
        _lay_out(kind, folder, pattern, count, rng)
    lists = AdoptedSite(kind.bundle, folder, folder.name).lists()
    for number, row in enumerate(row for rows in lists if rows for row in rows):
        mask = kind.mask(rng) if kind.masks else np.full([kind.size] * kind.dims, number % kind.outputs)
        for path in _paths(row["image"]):
            channels = 1 if isinstance(row["image"], list) else kind.channels
            _write(path, np.stack([kind.image(mask, rng) for _ in range(channels)], -1), kind)
        for path in _paths(row.get("label")):
            _write(path, mask[..., None] * (255 // mask.max() if kind.scaled_masks else 1), kind)


def _lay_out(kind: Kind, folder: Path, pattern: str, count: int, rng: np.random.Generator) -> None:
    if pattern.endswith((*VOLUMES, *PICTURES)):
        for number in range(count):
            named = re.sub(r"\[![^]]*\]", "0", pattern).replace("*", f"c{number}")
            _touch(folder / named)
    elif pattern.endswith(".npz"):
        _write_arrays(kind, folder / pattern, count, rng)
    elif pattern.endswith(".csv"):
        _write_table(kind, folder / pattern, count)
    elif pattern.endswith(".json"):
        _write_lists(kind, folder / pattern, count)
    else:
        raise NotDerivable(f"a site holds '{pattern}', and what that is can't be told")


def _write_lists(kind: Kind, path: Path, count: int) -> None:
    """Write a list file with one section, or with the sections that the configuration names, like a Decathlon."""
    configs = [file.read_text() for file in sorted((kind.bundle.root / "configs").iterdir())]  # `evaluate`'s, too
    keys = list(dict.fromkeys(re.findall(r"data_list_key='(\w+)'", " ".join(configs))))
    if not keys and path.name == "dataset.json":
        keys = ["training"]
    own = next((file for file in kind.list_files.values() if Path(file).name == path.name), None)
    images = _images_of_a_case(kind.bundle.root / own) if own else (kind.channels if kind.dims == 3 else 1)
    suffix = ".nii.gz" if kind.dims == 3 else ".png"
    sections = {}
    for section in keys or ["training"]:
        rows = []
        for number in range(count):
            stem = f"{path.stem}_{section}_{number}"
            names = [f"files/{stem}_{part}{suffix}" for part in range(images)]
            label = f"files/{stem}_mask{suffix}" if kind.masks else number % kind.outputs
            rows.append({"image": names if images > 1 else names[0], "label": label})
            for name in (*names, *([label] if kind.masks else [])):
                _touch(path.parent / str(name))
        sections[section] = rows
    facts = {"name": "made up", "numTraining": count, "numTest": 0, "test": [], "tensorImageSize": "3D"}
    facts |= dict.fromkeys(("description", "reference", "licence", "release"), "")
    facts |= {"modality": {"0": "made up"}, "labels": {str(k): str(k) for k in range(kind.outputs)}}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**facts, **sections} if keys else sections["training"]))


def _images_of_a_case(path: Path) -> int:
    """Return the number of files of a case's image in a bundle's own list; 1 without such a list."""
    content = json.loads(path.read_text()) if path.is_file() else []
    rows = content.get("training", []) if isinstance(content, dict) else content
    return len(rows[0]["image"]) if rows and isinstance(rows[0]["image"], list) else 1


def _write_table(kind: Kind, path: Path, count: int) -> None:
    """A table with the columns that the configuration takes from ``read_csv``."""
    columns = re.findall(r"read_csv\([^)]*\)(?:\.|\[['\"])(\w+)", " ".join(_texts(kind.config)))
    if not columns:
        raise NotDerivable(f"a site holds '{path.name}', and its columns can't be told")
    suffix = ".nii.gz" if kind.dims == 3 else ".png"
    lines = [",".join(columns)]
    for number in range(count):
        names = [f"{column}/c{number}{suffix}" for column in columns]
        lines.append(",".join(names))
        for name in names:
            _touch(path.parent / name)
    path.write_text("\n".join(lines) + "\n")


def _write_arrays(kind: Kind, path: Path, count: int, rng: np.random.Generator) -> None:
    """Write the input of MONAI's ``NPZDictItemDataset``: images and masks as arrays."""
    sets = kind.config.targets(kind.config.reach(str(kind.bundle.ids["train_dataset"])))
    names = next((kind.config.literal(f"{i}#keys") for i, t in sets.items() if t == "NPZDictItemDataset"), None)
    if not isinstance(names, dict) or not kind.masks:
        raise NotDerivable(f"a site holds '{path.name}', and its arrays can't be told")
    masks = [kind.mask(rng) for _ in range(3 * count)]
    arrays = {"image": np.stack([kind.image(mask, rng) for mask in masks]), "label": np.stack(masks)}
    np.savez(path, **{name: arrays[key] for name, key in names.items()})


def _texts(config: BundleConfig) -> Iterator[str]:
    for name in config.reach("train") | config.reach("trainer"):
        yield from (value for _, value in config.texts(name))


def _paths(entry: Any) -> list[Path]:
    return [Path(name) for name in (entry if isinstance(entry, list) else [entry]) if isinstance(name, str)]


def _touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def _write(path: Path, array: np.ndarray, kind: Kind) -> None:
    """An image (*spatial, C) as a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    single = array[..., 0] if array.shape[-1] == 1 else array
    if str(path).endswith(VOLUMES):
        affine = np.diag([*kind.spacing[:3], *[1.0] * (4 - len(kind.spacing[:3]))])
        nibabel.save(nibabel.Nifti1Image(single.astype(np.float32), affine), path)
    else:
        Image.fromarray(np.clip(single, 0, 255).astype(np.uint8)).save(path)
