"""White blood cells of several releases in, one pooled data set with one set of classes out.

Each record says its ``source``, so that ``medfl partition --scheme by_site --column source`` makes a site of each
release. The classes come from a label map, see `medfl_datasets.bloodcells.labels`. Copies of a file are looked for
among all releases together.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from medfl.ingest.spec import folder_or_top
from pydantic import model_validator

from medfl.errors import SettingsError
from medfl_datasets.bloodcells import acevedo, bodzas, matek
from medfl_datasets.bloodcells.files import Release
from medfl_datasets.bloodcells.labels import SHIPPED, LabelMap, read_label_map
from medfl_datasets.bloodcells.pool import Cells

RELEASES = {release.name: release for release in (acevedo.RELEASE, matek.RELEASE, bodzas.RELEASE)}
"""The releases that are known."""


class BloodCells(Cells):
    """White blood cells of up to three releases, with one set of classes. Nothing is downloaded.

    The release of each image is kept as 'source': medfl partition --scheme by_site --column source makes a site of
    each.

    Example: medfl prep bloodcells --acevedo downloads/acevedo --matek downloads/matek --out data/bloodcells
    """

    dataset = "bloodcells"
    terms = "that of each release"
    citation = ""
    complete = False

    acevedo: Path | None = None
    """The folder of Acevedo-20."""
    matek: Path | None = None
    """The folder of Matek-19."""
    bodzas: Path | None = None
    """The folder of Bodzas-23."""
    label_map: Path | None = None
    """YAML file with the class of each kind of cell; by default medfl's own."""

    @classmethod
    def locate(cls, top: Path, options: Mapping[str, Any]) -> dict[str, Path]:
        """Folders of all releases, unless the study names some."""
        if any(options.get(name) is not None for name in RELEASES):
            return {}
        return {name: folder_or_top(top, name) for name in RELEASES}

    @model_validator(mode="after")
    def _check_releases(self) -> Self:
        if not self.releases():
            raise SettingsError(
                "missing_setting",
                f"expected a folder of at least one release: {', '.join(RELEASES)}.",
                settings=list(RELEASES),
            )
        return self

    def releases(self) -> list[tuple[Release, Path]]:
        """The releases that are given, with their folders."""
        folders = ((release, getattr(self, name)) for name, release in RELEASES.items())
        return [(release, folder) for release, folder in folders if folder is not None]

    def class_map(self) -> LabelMap:
        """The user's label map, or the one that medfl ships."""
        return read_label_map(self.label_map or SHIPPED)
