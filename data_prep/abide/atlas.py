"""Read brain atlases: volumes whose voxels contain the code of their region, and 0 outside of all regions.

Any NIfTI file of labels is accepted, on any grid. Common atlases are recognised by their file names:

===============  ==========================================  ==================================================
atlas            files                                       codes
===============  ==========================================  ==================================================
AAL              AAL.nii, ROI_MNI_V4.nii, aal_mask_pad.nii   1 to 116, or 2001 to 9170 (116 regions)
AAL2, AAL3       AAL2.nii, AAL3.nii, AAL3v1.nii              120 regions; 1 to 170 (166 regions)
Harvard-Oxford   ho_roi_atlas.nii,                           111 regions;
                 HarvardOxford-cort-maxprob-thr25-2mm.nii    1 to 48 (cortex), 1 to 96 (with sides), 1 to 21 (below)
CC200, CC400     cc200_roi_atlas.nii, CC400.nii              1 to 200 (200 regions), 1 to 392 (392 regions)
===============  ==========================================  ==================================================

All may end in ``.nii`` or ``.nii.gz``. The codes are kept; code that needs consecutive region numbers has to renumber
them (`medfl_datasets.abide.regions`).
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from medfl.data.readers.volumes import SpatialGrid, Volume, read_volume, resample_labels, share_inside
from medfl.errors import DataError
from medfl.utils.text import MAX_NAMES, Say

PREPARED_ATLAS = "atlas.nii.gz"
"""Name of the atlas file in a prepared data set; the atlas is on the grid (voxel size and position) of the images."""

REGION_TABLE = "atlas_labels.csv"
"""Table of the regions beside the atlas: code, name (may be empty), and voxels on the grid (0 if too small for it)."""

MAX_REGIONS = 1024
"""Maximum number of regions. A volume with more different values is taken for an image."""

MIN_SHARE_INSIDE = 0.5
"""Minimum share of an atlas's labelled voxels inside the grid; with less, the atlas is in another space."""

_MAX_CODE = 1 << 24
"""Highest code of a region."""
_TOLERANCE = 1e-3
"""Largest deviation of a code from a whole number."""


@dataclass(frozen=True)
class KnownAtlas:
    """Atlas that is recognised by its file name.

    Attributes:
        name: Name of the atlas.
        pattern: Regular expression that matches in its file names, in lower case.
        regions: Possible numbers of regions: one for each release of the atlas.
    """

    name: str
    pattern: str
    regions: tuple[int, ...]


KNOWN_ATLASES = (
    KnownAtlas("AAL3", r"aal3|roi_mni_v7", (166,)),
    KnownAtlas("AAL2", r"aal2|roi_mni_v5", (120,)),
    KnownAtlas("AAL", r"(^|[^a-z])aal|roi_mni_v4", (116,)),
    KnownAtlas("Harvard-Oxford", r"harvardoxford|(^|[^a-z])ho_", (111, 48, 96, 21)),
    KnownAtlas("CC200", r"cc_?200|craddock_?200", (200,)),
    KnownAtlas("CC400", r"cc_?400|craddock_?400", (392,)),
)
"""Atlases that are recognised by their file names; the first match counts."""


def read_labels(path: Path) -> Volume:
    """Read an atlas.

    Args:
        path: A ``.nii`` or ``.nii.gz`` file of labels, 0 outside of all regions, on any grid and of any numeric type.

    Returns:
        Labels (X, Y, Z), int32, as in the file, and the affine.

    Raises:
        DataError: If the file can't be read, has several volumes (a probability atlas), has values other than whole
            numbers from 0, has no region, or has more than `MAX_REGIONS` regions.
    """
    try:
        volume = read_volume(path)
    except DataError as error:
        fields = error.fields | {"path": path}
        raise DataError(error.code, f"the atlas {path} can't be read: {error}", **fields) from None
    labels = np.rint(volume.values)
    whole = np.isfinite(labels).all() and np.abs(volume.values - labels).max() <= _TOLERANCE
    if not whole or labels.min() < 0 or labels.max() > _MAX_CODE:
        raise DataError(
            "invalid_atlas_value",
            f"expected whole numbers from 0 in the atlas {path}, got others. Give a file of labels; of a probability "
            "atlas, the one with the most probable label of each voxel.",
            path=path,
        )
    codes = np.unique(labels[labels > 0])
    if not len(codes):
        raise DataError(
            "empty_atlas", f"expected labels in the atlas {path}, all its voxels are 0. Give another file.", path=path
        )
    if len(codes) > MAX_REGIONS:
        raise DataError(
            "too_many_regions",
            f"expected at most {MAX_REGIONS} regions in the atlas {path}, got {len(codes)}: it looks like an image. "
            "Give a file of labels.",
            path=path,
            maximum=MAX_REGIONS,
            found=len(codes),
        )
    return Volume(labels.astype(np.int32), volume.affine)


def region_codes(labels: np.ndarray) -> list[int]:
    """Return the codes of the regions in an array of labels, ascending, without 0."""
    codes: list[int] = np.unique(labels[labels > 0]).tolist()
    return codes


def resample_atlas(atlas: Volume, grid: SpatialGrid) -> np.ndarray:
    """Resample an atlas to another grid by nearest neighbour.

    A region that is smaller than the grid's voxels may vanish.

    Args:
        atlas: Labels and affine, from `read_labels`.
        grid: Target grid.

    Returns:
        Labels, int32, of the grid's shape.

    Raises:
        DataError: If less than half of the atlas is inside the grid, because it then belongs to another space.
    """
    share = share_inside(atlas.values > 0, atlas.affine, grid)
    labels = resample_labels(atlas, grid)
    if share < MIN_SHARE_INSIDE or not labels.any():
        raise DataError(
            "different_space",
            f"only {share:.0%} of the atlas lies on the grid of the images: it is of another space, or its affine is "
            "wrong. Give an atlas in the same space (MNI152 for ABIDE).",
            share=round(float(share), 2),
        )
    return labels


def identify_atlas(path: Path) -> KnownAtlas | None:
    """Return the known atlas whose pattern matches a file's name, or None."""
    name = path.name.lower()
    return next((known for known in KNOWN_ATLASES if re.search(known.pattern, name)), None)


def region_names(path: Path) -> dict[int, str]:
    """Read the names of regions from the text file beside an atlas (``AAL.txt`` for ``AAL.nii``).

    A line has a code and a name or, as in ``ROI_MNI_V4.txt``, a short name, a name and a code. Other lines are skipped.

    Args:
        path: The atlas.

    Returns:
        Mapping from each code to the name; empty if there is no such file.
    """
    beside = path.with_name(re.sub(r"\.nii(\.gz)?$", "", path.name, flags=re.IGNORECASE) + ".txt")
    if not beside.is_file():
        return {}
    names = {}
    for line in beside.read_text(encoding="utf-8", errors="replace").splitlines():
        if first := re.fullmatch(r"\s*(\d+)[\s,;]+(\S.*?)\s*", line):
            names[int(first[1])] = first[2]
        elif last := re.fullmatch(r"\s*\S+\s+(\S+)\s+(\d+)\s*", line):
            names[int(last[2])] = last[1]
    return names


@dataclass(frozen=True)
class PlacedAtlas:
    """Atlas on the grid of a data set's images.

    Attributes:
        title: Name of the atlas; empty if its file name is unknown.
        labels: Code of the region in each voxel, int32.
        names: Mapping from the code of each region to its name, which may be empty. It includes regions that are too
            small for the grid.
        grid: Grid of the labels.
    """

    title: str
    labels: np.ndarray
    names: dict[int, str]
    grid: SpatialGrid

    def vanished(self) -> list[int]:
        """Return the codes of the regions that are too small for the grid."""
        return sorted(set(self.names) - set(region_codes(self.labels)))


def place_atlas(path: Path, grid: SpatialGrid, say: Say = lambda _: None) -> PlacedAtlas:
    """Read an atlas and resample it to a grid.

    Args:
        path: A ``.nii`` or ``.nii.gz`` file of labels, as in `read_labels`.
        grid: Target grid.
        say: Receives the name of the atlas, its number of regions, and warnings about regions that vanish.

    Raises:
        DataError: If the file is not a valid atlas (`read_labels`), or less than half of it is inside the grid.
    """
    atlas = read_labels(path)
    codes, known, texts = region_codes(atlas.values), identify_atlas(path), region_names(path)
    title = known.name if known else ""
    placed = PlacedAtlas(title, resample_atlas(atlas, grid), {code: texts.get(code, "") for code in codes}, grid)
    say(f"atlas: {len(codes)} regions{f' of {title}' if title else ''}")
    if known and len(codes) not in known.regions:
        expected = " or ".join(map(str, known.regions))
        say(f"warning: the atlas is named like {title}, which has {expected} regions, not {len(codes)}")
    if vanished := placed.vanished():
        shown = ", ".join(map(str, vanished[:MAX_NAMES]))
        say(f"warning: {len(vanished)} regions of the atlas are too small for the grid: {shown}")
    return placed


def write_atlas(folder: Path, placed: PlacedAtlas) -> dict[str, object]:
    """Write an atlas as `PREPARED_ATLAS` and the table of its regions as `REGION_TABLE`.

    Args:
        folder: Target folder, which must exist.
        placed: The atlas.

    Returns:
        Entries for the data list: ``file``, ``labels``, ``name`` and ``regions`` (their number).
    """
    import nibabel

    image = nibabel.Nifti1Image(placed.labels, placed.grid.affine)
    image.header.set_xyzt_units("mm")
    for setter in (image.set_sform, image.set_qform):
        setter(placed.grid.affine, code="mni")
    nibabel.save(image, folder / PREPARED_ATLAS)
    codes, counts = np.unique(placed.labels, return_counts=True)
    voxels = dict(zip(codes.tolist(), counts.tolist(), strict=True))
    with (folder / REGION_TABLE).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("code", "name", "voxels"))
        writer.writerows((code, name, voxels.get(code, 0)) for code, name in sorted(placed.names.items()))
    return {"file": PREPARED_ATLAS, "labels": REGION_TABLE, "name": placed.title, "regions": len(placed.names)}
