"""Spec of the combination of up to three releases of white blood cells, with one set of classes.

Each record names its ``source``, so that ``medfl partition --scheme by_site --column source`` makes a site of each
release. The classes come from a label map, see `medfl_datasets.bloodcells.labels`. Byte-identical copies are searched
across all releases.

Prepared data set: see `medfl_datasets.bloodcells.cell_spec`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import model_validator

from medfl.data.ingest.spec import folder_or_top
from medfl.errors import SettingsError
from medfl_datasets.bloodcells import acevedo, bodzas, matek
from medfl_datasets.bloodcells.cell_spec import CellSpec
from medfl_datasets.bloodcells.files import CellRelease
from medfl_datasets.bloodcells.labels import DEFAULT_LABEL_MAP, LabelMap, read_label_map

RELEASES = {release.name: release for release in (acevedo.RELEASE, matek.RELEASE, bodzas.RELEASE)}
"""Maps the name of each release to its description."""


class BloodCells(CellSpec):
    """White blood cells of up to three releases, with one set of classes. Nothing is downloaded.

    The release of each image is kept as 'source': medfl partition --scheme by_site --column source makes a site of
    each.

    For sources and licences see the data sets acevedo, matek and bodzas.

    Example: medfl prep bloodcells --acevedo downloads/acevedo --matek downloads/matek --out data/bloodcells
    """

    dataset = "bloodcells"
    """Name of the data set, as users type it."""
    terms = "that of each release"
    """Terms of use, which the user sees before reading starts and the data list states."""
    citation = ""
    """Publication to cite; empty here, because the releases have their own (`CellSpec.credits`)."""
    complete = False
    """Whether a class without an image is an error; otherwise it causes a warning."""

    acevedo: Path | None = None
    """The folder of Acevedo-20."""
    matek: Path | None = None
    """The folder of Matek-19."""
    bodzas: Path | None = None
    """The folder of Bodzas-23."""
    label_map: Path | None = None
    """YAML file with the class of each cell type; by default medfl's own."""

    @classmethod
    def locate(cls, top: Path, options: Mapping[str, Any]) -> dict[str, Path]:
        """Find the release for a study (a file that lists data sets, methods and seeds) that names no path to it.

        Args:
            top: Source folder of the study, which contains the downloaded releases.
            options: Options of the data set in the study file.

        Returns:
            Mapping from the name of each of the three releases to its folder: the one in `top` with the name of the
            release, otherwise `top` itself. Empty if the study names the folder of any release.
        """
        if any(options.get(name) is not None for name in RELEASES):
            return {}
        return {name: folder_or_top(top, name) for name in RELEASES}

    @model_validator(mode="after")
    def _check_releases(self) -> Self:
        """Raise SettingsError if no release is given."""
        if not self.releases():
            raise SettingsError(
                "missing_setting",
                f"expected a folder of at least one release: {', '.join(RELEASES)}.",
                settings=list(RELEASES),
            )
        return self

    def releases(self) -> list[tuple[CellRelease, Path]]:
        """Return pairs of a release and its folder, for the releases whose folder is given."""
        folders = ((release, getattr(self, name)) for name, release in RELEASES.items())
        return [(release, folder) for release, folder in folders if folder is not None]

    def class_map(self) -> LabelMap:
        """Return the label map (class of each cell type) from the user's file, or medfl's own."""
        return read_label_map(self.label_map or DEFAULT_LABEL_MAP)
