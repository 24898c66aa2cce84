"""Synthetic images of white blood cells, to try medfl without real data.

Classes differ in the shape of the nucleus and in the colour of cell body and granules, like real white blood cells.
Sites differ in staining, brightness and class balance, like hospitals. No image comes from a person.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from medfl.data.arrays import array_digest
from medfl.data.datalists import Datalist, make_records
from medfl.data.folders import atomic_folder, check_output_folder
from medfl.data.partition.holdouts import split_site_records
from medfl.data.partition.plan import PartitionPlan
from medfl.data.partition.writing import PoolReference, write_sites
from medfl.errors import SettingsError
from medfl.records.datalist import CaseRecord
from medfl.types import GLOBAL
from medfl.utils.seeds import seed_of

GLOBAL_PER_CLASS = 25
"""Number of images of each class in the server's test set."""


@dataclass(frozen=True)
class CellAppearance:
    """Appearance of the cells of one class. Lengths are in units of half the image size.

    Attributes:
        name: Name of the class.
        radius: Radius of the cell.
        lobes: Number of discs that form the nucleus.
        lobe: Radius of a disc.
        ring: Distance of the discs from the centre of the nucleus.
        arc: Angle over which the discs are distributed, in degrees.
        body: Colour of the cell body, RGB in [0, 1].
        nucleus: Colour of the nucleus.
        granules: Colour of the granules.
        density: Density of the granules, in [0, 1].
    """

    name: str
    radius: float
    lobes: int
    lobe: float
    ring: float
    arc: float
    body: tuple[float, float, float]
    nucleus: tuple[float, float, float] = (0.42, 0.26, 0.58)
    granules: tuple[float, float, float] = (0.5, 0.3, 0.6)
    density: float = 0.0


CELL_CLASSES = (
    CellAppearance("lymphocyte", 0.65, 1, 0.54, 0.0, 0, (0.70, 0.76, 0.92)),
    CellAppearance("neutrophil", 0.8, 4, 0.24, 0.36, 300, (0.93, 0.82, 0.86), granules=(0.85, 0.66, 0.78), density=0.3),
    CellAppearance("eosinophil", 0.8, 2, 0.31, 0.3, 180, (0.94, 0.76, 0.70), granules=(0.90, 0.42, 0.30), density=0.75),
    CellAppearance("monocyte", 0.93, 4, 0.34, 0.31, 170, (0.76, 0.78, 0.86), nucleus=(0.50, 0.36, 0.64)),
    CellAppearance("platelet", 0.28, 0, 0.0, 0.0, 0, (0.76, 0.64, 0.84), granules=(0.55, 0.36, 0.70), density=0.6),
    CellAppearance("erythroblast", 0.55, 1, 0.3, 0.07, 0, (0.82, 0.72, 0.80), nucleus=(0.26, 0.13, 0.40)),
    CellAppearance("basophil", 0.75, 2, 0.35, 0.2, 180, (0.80, 0.74, 0.88), granules=(0.24, 0.12, 0.44), density=0.95),
    CellAppearance(
        "immature granulocyte", 0.95, 1, 0.55, 0.25, 0, (0.84, 0.76, 0.88), granules=(0.62, 0.34, 0.66), density=0.5
    ),
)
"""Appearance of each of the eight classes of cells, in the order of the labels."""


@dataclass(frozen=True)
class Stain:
    """Staining and brightness of a site's images: the transmitted light is ``gain * pixel ** strength``.

    Attributes:
        strength: Strength of the stain per colour channel, about 1.
        gain: Brightness of the lamp per colour channel, about 1.
    """

    strength: np.ndarray
    gain: np.ndarray


def draw_stain(rng: np.random.Generator) -> Stain:
    """Draw a random stain and brightness for a site."""
    return Stain(rng.uniform(0.75, 1.5, 3), rng.uniform(0.82, 1.0) * rng.uniform(0.92, 1.06, 3))


def draw_cells(labels: np.ndarray, size: int, stain: Stain, rng: np.random.Generator) -> np.ndarray:
    """Draw one cell image for each label.

    Args:
        labels: Class of each image, in 0..7, shape (n,).
        size: Height and width in pixels, >= 8.
        stain: Staining and brightness of the images.
        rng: Random generator.

    Returns:
        Images (n, size, size, 3), uint8.
    """
    count = len(labels)
    axis = (np.arange(size, dtype=np.float32) + 0.5) / size * 2 - 1
    place = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1)[None]
    kinds = [CELL_CLASSES[label] for label in labels]
    image = np.ones((count, size, size, 3), np.float32) * _rgb((0.96, 0.93, 0.92))
    for _ in range(3):  # surrounding red blood cells
        angle, far = rng.uniform(0, 2 * np.pi, count), rng.uniform(1.0, 1.5, count)
        disc = _disc(place, _polar(angle, far), rng.uniform(0.3, 0.42, count), 2 / size)
        image = _paint(image, disc, _rgb((0.93, 0.76, 0.76)))
    grow = rng.normal(1, 0.08, count).clip(0.8, 1.2)
    centre = rng.normal(0, 0.07, (count, 2))
    body = _disc(place, centre, grow * [kind.radius for kind in kinds], 2 / size)
    image = _paint(image, body, _jitter([kind.body for kind in kinds], rng))
    image = _paint(image, _nucleus(place, kinds, centre, grow, rng), _jitter([kind.nucleus for kind in kinds], rng))
    speckle = rng.random((count, size, size)) < np.array([kind.density for kind in kinds])[:, None, None] * 0.6
    image = _paint(image, body * speckle * 0.7, _jitter([kind.granules for kind in kinds], rng))
    image = stain.gain * image**stain.strength + rng.normal(0, 0.025, image.shape)
    pixels: np.ndarray = (image * 255).clip(0, 255).astype(np.uint8)
    return pixels


def make_cohort(
    out: Path,
    sites: int = 4,
    images_per_site: int = 120,
    classes: int = 4,
    size: int = 28,
    seed: int = 0,
    *,
    force: bool = False,
) -> list[str]:
    """Write a partitioned data set of synthetic cells.

    Each site has its own stain, brightness and class balance; a fifth of its images is its test set and a tenth its
    validation set. The server's test set has the same number of images of each class, in the stains of all sites.

    Args:
        out: Folder of the data set; written completely or not at all.
        sites: Number of sites, >= 1.
        images_per_site: Number of images of each site, >= 1.
        classes: Number of classes, 2 to 8.
        size: Height and width in pixels, >= 8.
        seed: Seed of all random numbers.
        force: Whether to replace an existing data set of medfl.

    Returns:
        Names of the sites, sorted.

    Raises:
        SettingsError: If a number is out of its range.
        DataError: If `out` exists and may not be replaced.
    """
    for name, value, low, high in (
        ("sites", sites, 1, 10_000),
        ("images_per_site", images_per_site, 1, 1_000_000),
        ("classes", classes, 2, len(CELL_CLASSES)),
        ("size", size, 8, 1024),
    ):
        if not low <= value <= high:
            raise SettingsError(
                "setting_out_of_range",
                f"phantoms: expected {name} in {low}..{high}, got {value}",
                setting=name,
                found=value,
                minimum=low,
                maximum=high,
            )
    out = Path(out)
    check_output_folder(out, force)
    plan = PartitionPlan(
        "phantoms", sites, seed, {"classes": classes, "size": size}, test_fraction=0.2, val_fraction=0.1
    )
    images, splits = _cohort(plan, images_per_site, classes, size)
    with atomic_folder(out, force) as folder:
        np.save(folder / "images.npy", images, allow_pickle=False)
        digest = array_digest(folder / "images.npy")
        write_sites(
            folder,
            PoolReference(_empty_datalist(classes), "../images.npy", digest, folder / "images.npy"),
            splits,
            plan,
        )
    return plan.names()


def _cohort(
    plan: PartitionPlan, count: int, classes: int, size: int
) -> tuple[np.ndarray, dict[str, dict[str, list[CaseRecord]]]]:
    """Return all images, and the records of each site and of the server."""
    parts: list[np.ndarray] = []
    splits: dict[str, dict[str, list[CaseRecord]]] = {}
    test: list[CaseRecord] = []
    row = 0
    for number, name in enumerate(plan.names()):
        rng = np.random.default_rng(seed_of(plan.seed, name, "phantoms"))
        stain = draw_stain(rng)
        own = rng.choice(classes, size=count, p=rng.dirichlet(np.full(classes, 2.0)))
        foreign = np.arange(classes * GLOBAL_PER_CLASS)[number :: plan.sites] // GLOBAL_PER_CLASS
        parts.append(draw_cells(np.concatenate([own, foreign]), size, stain, rng))
        splits[name] = split_site_records(make_records(range(row, row + count), own, name), plan, name)
        test += make_records(range(row + count, row + count + len(foreign)), foreign, f"{GLOBAL}-{name}")
        row += count + len(foreign)
    splits[GLOBAL] = {"test": test}
    return np.concatenate(parts), splits


def _empty_datalist(classes: int) -> Datalist:
    """Return a data list without cases."""
    labels = {str(number): cell.name for number, cell in enumerate(CELL_CLASSES[:classes])}
    return Datalist("phantom blood cells", "../images.npy", classes, labels, "made up", "CC0 1.0")


def _nucleus(
    place: np.ndarray, kinds: list[CellAppearance], centre: np.ndarray, grow: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Return the coverage of the nuclei, (n, size, size) in [0, 1]: the union of their lobes."""
    count, size = len(kinds), place.shape[1]
    turn = rng.uniform(0, 2 * np.pi, count)
    lobes = np.array([kind.lobes for kind in kinds])
    cover = np.zeros((count, size, size), np.float32)
    for number in range(max(cell.lobes for cell in CELL_CLASSES)):
        step = np.radians([kind.arc for kind in kinds]) / np.maximum(lobes - 1, 1)
        ring = grow * [kind.ring for kind in kinds] * rng.normal(1, 0.1, count)
        middle = centre + _polar(turn + number * step, ring)
        radius = grow * [kind.lobe for kind in kinds] * rng.normal(1, 0.08, count)
        disc = _disc(place, middle, radius, 2 / size)
        cover = np.maximum(cover, disc * (number < lobes)[:, None, None])
    return cover


def _disc(place: np.ndarray, centre: np.ndarray, radius: np.ndarray, edge: float) -> np.ndarray:
    """Return the coverage of discs, (n, size, size) in [0, 1], with an edge of about one pixel."""
    away = np.linalg.norm(place - centre[:, None, None, :], axis=-1)
    cover: np.ndarray = ((radius[:, None, None] - away) / edge + 0.5).clip(0, 1).astype(np.float32)
    return cover


def _polar(angle: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """Convert polar coordinates to offsets (n, 2)."""
    shift: np.ndarray = np.stack([np.sin(angle), np.cos(angle)], axis=-1) * np.asarray(distance)[:, None]
    return shift


def _paint(image: np.ndarray, cover: np.ndarray, colour: np.ndarray) -> np.ndarray:
    """Blend a colour into the images according to a coverage."""
    painted: np.ndarray = image + cover[..., None] * (colour - image)
    return painted


def _rgb(colour: tuple[float, float, float]) -> np.ndarray:
    """Return a colour as an array."""
    return np.array(colour, np.float32)


def _jitter(colours: list[tuple[float, float, float]], rng: np.random.Generator) -> np.ndarray:
    """Return the colours of all images with small random changes, (n, 1, 1, 3)."""
    values = np.array(colours) + rng.normal(0, 0.04, (len(colours), 3))
    shades: np.ndarray = values.clip(0.02, 1).astype(np.float32)[:, None, None, :]
    return shades
