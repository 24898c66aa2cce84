"""Atlases of the brain: a volume whose voxels hold the number of their region, 0 where there is none.

Any NIfTI file of labels is read, on whatever grid; atlases that users often have are known by their names:

===============  ==========================================  ==================================================
atlas            files                                       codes
===============  ==========================================  ==================================================
AAL              AAL.nii, ROI_MNI_V4.nii, aal_mask_pad.nii   1 to 116, or 2001 to 9170 (116 regions)
AAL2, AAL3       AAL2.nii, AAL3.nii, AAL3v1.nii              120 regions; 1 to 170 (166 regions)
Harvard-Oxford   ho_roi_atlas.nii,                           111 regions;
                 HarvardOxford-cort-maxprob-thr25-2mm.nii    1 to 48 (cortex), 1 to 96 (with sides), 1 to 21 (below)
CC200, CC400     cc200_roi_atlas.nii, CC400.nii              1 to 200 (200 regions), 1 to 392 (392 regions)
===============  ==========================================  ==================================================

All may end in ``.nii`` or ``.nii.gz``. The codes stay as they are: what counts regions has to number them itself.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from medfl.data.readers.volumes import Grid, Volume, labels_onto, read_volume, share_inside
from medfl.errors import DataError
from medfl.utils.text import MAX_NAMES, Say

ATLAS = "atlas.nii.gz"
"""The atlas in the folder of a data set, on the grid of its images."""

LABELS = "atlas_labels.csv"
"""Beside it, its regions: code, name (may be empty), and voxels on the grid (0: too small for it)."""

MOST_REGIONS = 1024
"""A volume with more different values is taken for an image rather than for an atlas."""

LEAST_INSIDE = 0.5
"""The share of an atlas that a grid must hold; less of it means another space."""

_HIGHEST = 1 << 24
_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Known:
    """An atlas that is known by its name.

    Attributes:
        name: Of the atlas.
        pattern: What its file names contain, as a regular expression for names in small letters.
        regions: Numbers of regions that its releases have.
    """

    name: str
    pattern: str
    regions: tuple[int, ...]


KNOWN = (
    Known("AAL3", r"aal3|roi_mni_v7", (166,)),
    Known("AAL2", r"aal2|roi_mni_v5", (120,)),
    Known("AAL", r"(^|[^a-z])aal|roi_mni_v4", (116,)),
    Known("Harvard-Oxford", r"harvardoxford|(^|[^a-z])ho_", (111, 48, 96, 21)),
    Known("CC200", r"cc_?200|craddock_?200", (200,)),
    Known("CC400", r"cc_?400|craddock_?400", (392,)),
)
"""Atlases that are known by their names; the first that fits counts."""


def read_labels(path: Path) -> Volume:
    """Read an atlas.

    Args:
        path: A ``.nii`` or ``.nii.gz`` file of labels, 0 where there is no region; any grid, any type of number.

    Returns:
        Labels (X, Y, Z), int32, as in the file, and the affine.

    Raises:
        DataError: If the file can't be read, has several volumes (a probability atlas), has values that are no whole
            numbers from 0, no label at all, or more than `MOST_REGIONS`.
    """
    try:
        volume = read_volume(path)
    except DataError as error:
        fields = error.fields | {"path": path}
        raise DataError(error.code, f"the atlas {path} can't be read: {error}", **fields) from None
    labels = np.rint(volume.values)
    whole = np.isfinite(labels).all() and np.abs(volume.values - labels).max() <= _TOLERANCE
    if not whole or labels.min() < 0 or labels.max() > _HIGHEST:
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
    if len(codes) > MOST_REGIONS:
        raise DataError(
            "too_many_regions",
            f"expected at most {MOST_REGIONS} regions in the atlas {path}, got {len(codes)}: it looks like an image. "
            "Give a file of labels.",
            path=path,
            maximum=MOST_REGIONS,
            found=len(codes),
        )
    return Volume(labels.astype(np.int32), volume.affine)


def codes_of(labels: np.ndarray) -> list[int]:
    """The codes of the regions of an atlas, ascending; 0 is none."""
    codes: list[int] = np.unique(labels[labels > 0]).tolist()
    return codes


def onto_grid(atlas: Volume, grid: Grid) -> np.ndarray:
    """Put an atlas on another grid, by nearest neighbour and the affines.

    A region that is smaller than the grid's voxels may vanish.

    Args:
        atlas: As `read_labels` gives it.
        grid: Where to.

    Returns:
        Labels, int32, of the grid's shape.

    Raises:
        DataError: If less than half of the atlas lies inside the grid: it belongs to another space.
    """
    share = share_inside(atlas.values > 0, atlas.affine, grid)
    labels = labels_onto(atlas, grid)
    if share < LEAST_INSIDE or not labels.any():
        raise DataError(
            "different_space",
            f"only {share:.0%} of the atlas lies on the grid of the images: it is of another space, or its affine is "
            "wrong. Give an atlas in the same space (MNI152 for ABIDE).",
            share=round(float(share), 2),
        )
    return labels


def known_atlas(path: Path) -> Known | None:
    """Which atlas a file is by its name; None if it has no known one."""
    name = path.name.lower()
    return next((known for known in KNOWN if re.search(known.pattern, name)), None)


def region_names(path: Path) -> dict[int, str]:
    """Names of regions from the text file beside an atlas (``AAL.txt`` for ``AAL.nii``).

    Args:
        path: The atlas.

    Returns:
        Code to name; empty if there is no such file. Its lines hold a code and a name, or, as those of
        ``ROI_MNI_V4.txt``, a short name, a name and a code; others are passed over.
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
class Placed:
    """An atlas on the grid of a data set's images.

    Attributes:
        title: Its name, where the file's name is known; otherwise empty.
        labels: On the grid, int32.
        names: Code to name, which may be empty, of all its regions, also of those too small for the grid.
        grid: Where the labels lie.
    """

    title: str
    labels: np.ndarray
    names: dict[int, str]
    grid: Grid

    def vanished(self) -> list[int]:
        """The codes of the regions that are too small for the grid."""
        return sorted(set(self.names) - set(codes_of(self.labels)))


def place_atlas(path: Path, grid: Grid, say: Say = lambda _: None) -> Placed:
    """Read an atlas and put it on a grid.

    Args:
        path: As in `read_labels`.
        grid: Where to.
        say: Gets what there is to know: its name, how many regions it has, which of them vanish.

    Raises:
        DataError: As in `read_labels` and `onto_grid`.
    """
    atlas = read_labels(path)
    codes, known, texts = codes_of(atlas.values), known_atlas(path), region_names(path)
    title = known.name if known else ""
    placed = Placed(title, onto_grid(atlas, grid), {code: texts.get(code, "") for code in codes}, grid)
    say(f"atlas: {len(codes)} regions{f' of {title}' if title else ''}")
    if known and len(codes) not in known.regions:
        expected = " or ".join(map(str, known.regions))
        say(f"warning: the atlas is named like {title}, which has {expected} regions, not {len(codes)}")
    if gone := placed.vanished():
        shown = ", ".join(map(str, gone[:MAX_NAMES]))
        say(f"warning: {len(gone)} regions of the atlas are too small for the grid: {shown}")
    return placed


def write_atlas(folder: Path, placed: Placed) -> dict[str, object]:
    """Write an atlas as `ATLAS` and the list of its regions as `LABELS`.

    Args:
        folder: Where to; it is there.
        placed: The atlas.

    Returns:
        Facts for a data list: the two files, the atlas' name and its number of regions.
    """
    import nibabel

    image = nibabel.Nifti1Image(placed.labels, placed.grid.affine)
    image.header.set_xyzt_units("mm")
    for setter in (image.set_sform, image.set_qform):
        setter(placed.grid.affine, code="mni")
    nibabel.save(image, folder / ATLAS)
    codes, counts = np.unique(placed.labels, return_counts=True)
    voxels = dict(zip(codes.tolist(), counts.tolist(), strict=True))
    with (folder / LABELS).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("code", "name", "voxels"))
        writer.writerows((code, name, voxels.get(code, 0)) for code, name in sorted(placed.names.items()))
    return {"file": ATLAS, "labels": LABELS, "name": placed.title, "regions": len(placed.names)}
