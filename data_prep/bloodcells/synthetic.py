"""Write synthetic releases of white blood cells: layout and names of the real ones, small images of random noise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from medfl.utils.seeds import seed_of
from medfl_datasets.bloodcells.acevedo import FOLDERS
from medfl_datasets.bloodcells.matek import CODES, TABLE_FILE

FOLDER_OF = {code: folder for folder, codes in FOLDERS.items() for code in codes}
"""Maps the code of each cell type of Acevedo-20 to its class folder."""

ACEVEDO = dict.fromkeys(FOLDER_OF, 1) | {"BA": 5, "BNE": 5, "EO": 6}
"""Maps the code of each cell type to its number of synthetic Acevedo-20 images."""

MATEK = dict.fromkeys(CODES, 1) | {"BAS": 2, "MYO": 3}
"""Maps the code of each cell type to its number of synthetic Matek-19 images."""

BODZAS = {
    "Basophile": 2,
    "Eosinophile": 1,
    "Lymphoblast": 2,
    "Lymphocyte": 1,
    "Monocyte": 1,
    "Myeloblast": 1,
    "Neutrophile Band": 1,
    "Neutrophile Segment": 3,
    "Normoblast": 1,
}
"""Maps each class folder to its number of synthetic Bodzas-23 images."""


def write_release(folder: Path, seed: int = 0) -> Path:
    """Write all three releases (Acevedo-20, Matek-19 and Bodzas-23) side by side.

    Args:
        folder: Target folder; created if needed.
        seed: Seed of all random numbers.

    Returns:
        `folder`.
    """
    for write in (write_acevedo, write_matek, write_bodzas):
        write(folder, seed=seed)
    return folder


def write_acevedo(folder: Path, counts: Mapping[str, int] = ACEVEDO, seed: int = 0) -> Path:
    """Write ``PBC_dataset_normal_DIB``: JPEG files of three sizes, and the stray hidden file of the real release.

    Args:
        folder: Target folder; created if needed.
        counts: Maps each cell type to its number of images.
        seed: Seed of all random numbers.

    Returns:
        The folder that contains the class folders.
    """
    top = folder / "PBC_dataset_normal_DIB"
    for code, count in counts.items():
        for number in range(count):
            name = f"{FOLDER_OF[code]}/{code}_{100000 + number}.jpg"
            _write_cell(top, name, seed, (*((12, 13), (14, 15), (12, 12))[number % 3], 3))
    (top / "neutrophil" / ".DS_169665.jpg").write_bytes(b"Bud1")
    return top


def write_matek(folder: Path, counts: Mapping[str, int] = MATEK, seed: int = 0) -> Path:
    """Write ``AML-Cytomorphology_LMU``: TIFF files with an alpha channel, and the table of annotations.

    Args:
        folder: Target folder; created if needed.
        counts: Maps the code of each cell type to its number of images.
        seed: Seed of all random numbers.

    Returns:
        The folder that contains the class folders.
    """
    top, lines = folder / "AML-Cytomorphology_LMU", []
    for code, count in counts.items():
        for number in range(1, count + 1):
            name = f"{code}/{code}_{number:04d}.tiff"
            _write_cell(top, name, seed, (12, 12, 4))
            lines.append(f"{name} {code} {'MON' if number == 2 else 'nan'} {'nan' if number < 3 else code}")
    (top / TABLE_FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return top


def write_bodzas(folder: Path, counts: Mapping[str, int] = BODZAS, seed: int = 0) -> Path:
    """Write ``bodzas``: BMP files that are numbered from 0 in each folder.

    Args:
        folder: Target folder; created if needed.
        counts: Maps each class folder to its number of images.
        seed: Seed of all random numbers.

    Returns:
        The folder that contains the class folders.
    """
    top = folder / "bodzas"
    for kind, count in counts.items():
        for number in range(count):
            _write_cell(top, f"{kind}/{number}.bmp", seed, (12, 12, 3))
    return top


def _write_cell(top: Path, name: str, seed: int, shape: tuple[int, int, int]) -> None:
    """Write an image of random noise."""
    path = top / name
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed_of(seed, "bloodcells phantom", top.name, name))
    Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(path)
