"""Write a synthetic ABIDE I release, for trying medfl from release to report without real data.

The release has the layout of the Preprocessed Connectomes Project: a phenotypic file, NIfTI maps in MNI152 space with
the right side first (as the real ones), and an atlas on a finer grid. Brains are ellipsoids with smooth noise. Scanning
sites differ in level and pattern, and subjects with autism have lower values in one region of the atlas.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from medfl.data.readers.volumes import CENTRE_MM, SPAN_MM
from medfl.utils.seeds import seed_of
from medfl_datasets.abide.files import DEFAULT_DERIVATIVES, MapSelection, file_name
from medfl_datasets.abide.tables import PHENOTYPE_FILE, QUALITY_CRITERIA

CENTRES = ("LEUVEN_1", "LEUVEN_2", "UCLA_1", "USM", "UM_1", "PITT", "NYU", "YALE")
"""Default scanning sites: two of each of the four regions that the method FedASD uses as sites."""

ATLAS_FILE = "synthetic_atlas.nii.gz"
"""File of the atlas, beside the phenotypic file; its codes are 1 to `ATLAS_REGIONS`."""

ATLAS_REGIONS = 8
"""Number of regions of the atlas."""

EFFECT_REGION = 3
"""Code of the region in which subjects with autism have lower values."""

SEMI_AXES_MM = (68.0, 86.0, 70.0)
"""Semi-axes of the brains in millimetres: to the right, to the front, up. Brains are centred on the common grid."""

_HEAD = (
    "",
    "Unnamed: 0",
    "SUB_ID",
    "X",
    "subject",
    "SITE_ID",
    "FILE_ID",
    "DX_GROUP",
    "AGE_AT_SCAN",
    "SEX",
    *QUALITY_CRITERIA,
)
"""Columns of the phenotypic file."""


def write_release(
    folder: Path,
    per_centre: int = 4,
    centres: Sequence[str] = CENTRES,
    derivatives: Sequence[str] = DEFAULT_DERIVATIVES,
    size: int = 20,
    effect: float = 1.0,
    seed: int = 0,
) -> Path:
    """Write a synthetic release.

    Half of the subjects of each centre have autism, and a quarter of each half are female. Each centre has two more
    rows in the phenotypic file that are not used: one without files and one with insufficient quality.

    Args:
        folder: Target folder, which gets the layout of PCP's top folder; created if needed.
        per_centre: Number of subjects of each scanning site, >= 2.
        centres: Values of SITE_ID.
        derivatives: Derivatives (kinds of fMRI maps) that are written for each subject.
        size: Voxels along each edge of a map, >= 8.
        effect: Reduction of the values in `EFFECT_REGION` with autism, in standard deviations of the noise.
        seed: Seed of all random numbers.

    Returns:
        `folder`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    maps = MapSelection(tuple(derivatives))
    affine = _affine(size, mirrored=True)
    brain, regions = _draw_brain(affine, size)
    _write_atlas(folder / ATLAS_FILE, 2 * size)
    for derivative in derivatives:
        (folder / maps.folder(derivative)).mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for centre in centres:
        rng = np.random.default_rng(seed_of(seed, centre, "abide phantom"))
        level, pattern = rng.uniform(0.8, 1.2), _smooth(brain.shape, rng)
        for number in range(per_centre + 2):
            row = _make_row(len(rows), centre, number, per_centre, rng)
            rows.append(row)
            if row["FILE_ID"] == "no_filename":
                continue
            lower = effect * (regions == EFFECT_REGION) * (row["DX_GROUP"] == 1)
            for derivative in derivatives:
                values = level * (0.3 + 0.05 * (0.5 * pattern + _smooth(brain.shape, rng) - lower))
                target = folder / maps.folder(derivative) / file_name(row["FILE_ID"], derivative)
                _save(target, (values.clip(0.01) * brain).astype(np.float32), affine)
    with (folder / PHENOTYPE_FILE).open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, _HEAD)
        writer.writeheader()
        writer.writerows(rows)
    return folder


def _make_row(place: int, centre: str, number: int, per_centre: int, rng: np.random.Generator) -> dict[str, Any]:
    """Make a row of the phenotypic file; `number` counts the subjects of a centre."""
    code = 50001 + place
    site = centre.capitalize() if len(centre) > 4 else centre
    quality = dict.fromkeys(QUALITY_CRITERIA, "OK") | ({"qc_func_rater_2": "maybe"} if number % 5 == 0 else {})
    if number == per_centre + 1:
        quality["qc_func_rater_3"] = "fail"
    return {
        "": place,
        "Unnamed: 0": place + 1,
        "SUB_ID": code,
        "X": place + 1,
        "subject": code,
        "SITE_ID": centre,
        "FILE_ID": "no_filename" if number == per_centre else f"{site}_{code:07d}",
        "DX_GROUP": 1 + number % 2,
        "AGE_AT_SCAN": round(float(rng.uniform(7, 40)), 2),
        "SEX": 2 if number // 2 % 4 == 0 else 1,
        **quality,
    }


def _affine(size: int, *, mirrored: bool) -> np.ndarray:
    """Return the affine of a cube in MNI152 space as wide as the common grid.

    Real maps are mirrored: their first voxel is at the right.
    """
    edge = SPAN_MM / size
    affine = np.diag([-edge if mirrored else edge, edge, edge, 1.0])
    corner = np.array(CENTRE_MM) - SPAN_MM / 2 + edge / 2
    affine[:3, 3] = (-corner[0] if mirrored else corner[0], *corner[1:])
    return affine


def _draw_brain(affine: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the mask of the brain, and the code of the region in each voxel (0 outside)."""
    places = np.indices((size, size, size)).reshape(3, -1)
    away = affine[:3, :3] @ places + affine[:3, 3:] - np.array(CENTRE_MM)[:, None]
    away /= np.array(SEMI_AXES_MM)[:, None]
    brain = (np.linalg.norm(away, axis=0) <= 1).reshape(size, size, size)
    nearest = np.linalg.norm(away[None] - _seeds()[:, :, None], axis=1).argmin(axis=0) + 1
    return brain, nearest.reshape(brain.shape) * brain


def _seeds() -> np.ndarray:
    """Compute the centres of the regions in units of the semi-axes, shape (regions, 3), spread by the golden angle."""
    number = np.arange(ATLAS_REGIONS)
    height, angle = 1 - (2 * number + 1) / ATLAS_REGIONS, number * np.pi * (3 - 5**0.5)
    ring = np.sqrt(1 - height**2)
    seeds: np.ndarray = 0.6 * np.stack([ring * np.cos(angle), ring * np.sin(angle), height], axis=1)
    return seeds


def _smooth(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Draw smooth noise of mean 0 and standard deviation 1."""
    from scipy import ndimage

    noise: np.ndarray = ndimage.gaussian_filter(rng.standard_normal(shape), 1.0, mode="wrap")
    return (noise - noise.mean()) / noise.std()


def _write_atlas(path: Path, size: int) -> None:
    """Write the atlas and the text file of its region names."""
    affine = _affine(size, mirrored=False)
    _save(path, _draw_brain(affine, size)[1].astype(np.uint8), affine)
    names = "".join(f"{code} region {code}\n" for code in range(1, ATLAS_REGIONS + 1))
    path.with_name(path.name.removesuffix(".nii.gz") + ".txt").write_text(names, encoding="utf-8")


def _save(path: Path, values: np.ndarray, affine: np.ndarray) -> None:
    """Write a NIfTI file in MNI152 space."""
    import nibabel

    image = nibabel.Nifti1Image(values, affine)
    for setter in (image.set_sform, image.set_qform):
        setter(affine, code="mni")
    nibabel.save(image, path)
