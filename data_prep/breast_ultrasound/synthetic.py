"""Write a synthetic breast ultrasound folder: dark lesions in speckle noise, from sources of different brightness."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from PIL import Image

from medfl.utils.rng import seed_of
from medfl_datasets.breast_ultrasound.files import IMAGES, MASKS, NORMAL, PATHOLOGIES, TABLE

SITES = {"busbra_logiq7": 90, "busbra_toshiba": 140, "breast_pl": 190}
"""Maps each source (value of the column ``site``) to the grey value of its tissue."""

HEADER = ("image", "site", "patient", "pathology", "birads", "device", "width", "height", "lesion_fraction", "split")
"""Columns of the table."""


def write_release(folder: Path, per_site: int = 8, edge: int = 32, seed: int = 0) -> Path:
    """Write the table, images and masks: two images of each patient, and one image without a lesion.

    Args:
        folder: Target folder; created if needed.
        per_site: Number of images of each of three sources, an even number >= 6.
        edge: Height of the images in pixels, >= 16; their width is a quarter larger.
        seed: Seed of all random numbers.

    Returns:
        `folder`.
    """
    rng = np.random.default_rng(seed_of(seed, "breast_ultrasound phantom"))
    for part in (IMAGES, MASKS):
        (folder / part).mkdir(parents=True, exist_ok=True)
    rows = []
    for site, tissue in SITES.items():
        for number in range(per_site):
            name = f"secret_{site}_{number:03d}"
            empty = site == "breast_pl" and number == 1
            mask = _draw_lesion(edge, edge + edge // 4, rng) & (not empty)
            grey = np.where(mask, 0.3, 1.0) * tissue * rng.gamma(20, 1 / 20, mask.shape)
            Image.fromarray(grey.clip(0, 255).astype(np.uint8)).save(folder / IMAGES / f"{name}.jpg", quality=95)
            Image.fromarray(mask).save(folder / MASKS / f"{name}.png")
            pathology = NORMAL if empty else PATHOLOGIES[number // 2 % 2]
            last = {0: "test", 1: "valid"}.get((per_site - 1 - number) // 2, "train")
            values = (name, site, f"SECRET-{site}-{number // 2}", pathology, 3, "made up", edge + edge // 4, edge)
            rows.append((*values, round(float(mask.mean()), 5), last))
    with (folder / TABLE).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER)
        writer.writerows(rows)
    return folder


def _draw_lesion(height: int, width: int, rng: np.random.Generator) -> np.ndarray:
    """Draw the mask of an ellipse at a random position, shape (H, W), bool."""
    rows, columns = np.indices((height, width)) + 0.5
    middle = rng.uniform(0.35, 0.65, 2) * (height, width)
    radii = rng.uniform(0.15, 0.3, 2) * (height, width)
    inside: np.ndarray = ((rows - middle[0]) / radii[0]) ** 2 + ((columns - middle[1]) / radii[1]) ** 2 < 1
    return inside
