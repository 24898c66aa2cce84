"""White blood cells of several releases in, one pooled data set with one set of classes out.

Each record says its ``source``, so that ``medfl partition --scheme by_site --column source`` makes a site of each
release. The classes come from a label map, see `medfl_datasets.bloodcells.labels`. Copies of a file are looked for
among all releases together.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medfl.data.datalists import Datalist
from medfl.errors import SettingsError, did_you_mean
from medfl.utils.text import Say
from medfl_datasets.bloodcells import acevedo, bodzas, matek
from medfl_datasets.bloodcells.labels import SHIPPED, read_label_map
from medfl_datasets.bloodcells.options import Cells, named
from medfl_datasets.bloodcells.pool import How, pool_cells

RELEASES = {release.name: release for release in (acevedo.RELEASE, matek.RELEASE, bodzas.RELEASE)}
"""The releases that are known."""


def prepare(
    folders: Mapping[str, Path],
    out: Path,
    how: How | None = None,
    *,
    label_map: Path | None = None,
    say: Say = lambda _: None,
) -> Datalist:
    """Turn releases into one pooled data set.

    Args:
        folders: Name of a release, one of `RELEASES`, to its folder; at least one.
        out: The folder to write; it is written whole or not at all.
        how: Sizes and shares; None means the defaults. The share of the test set holds for each class of each release.
        label_map: A label map; None means the one that medfl ships.
        say: Gets licences, citations, counts, warnings and progress, a line each.

    Returns:
        The data list that was written.

    Raises:
        DataError: If a release is wrong, no image is left, or `out` may not be written.
        SettingsError: If no release is given, one is unknown, or the label map does not fit them.
    """
    if not folders:
        raise SettingsError(f"expected a folder of at least one release: {', '.join(RELEASES)}.")
    for name in folders:
        if name not in RELEASES:
            raise SettingsError(f"unknown release '{name}'. {did_you_mean(name, RELEASES)}")
    labels = read_label_map(label_map or SHIPPED)
    given = [(release, folders[name]) for name, release in RELEASES.items() if name in folders]
    return pool_cells("bloodcells", given, labels, out, how or How(), complete=False, say=say)


class BloodCells(Cells):
    """White blood cells of up to three releases, with one set of classes. Nothing is downloaded.

    The release of each image is kept as 'source': medfl partition --scheme by_site --column source makes a site of
    each.
    """

    dataset = "bloodcells"

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
        return named(top, RELEASES, options)

    def folders(self) -> dict[str, Path]:
        """The releases that there are, with their folders."""
        folders = {name: getattr(self, name) for name in RELEASES}
        return {name: folder for name, folder in folders.items() if folder is not None}

    def look(self) -> object:
        """The cells of the releases."""
        return [RELEASES[name].find(folder) for name, folder in self.folders().items()]

    def make(self, out: Path, *, force: bool, workers: int | None, require_complete: bool, say: Say) -> Datalist:
        """Write the pooled data set."""
        return prepare(self.folders(), out, self.how(workers, force), label_map=self.label_map, say=say)
