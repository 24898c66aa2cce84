"""The options that all releases of white blood cells have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from medfl.ingest.spec import WholeSpec, folder_or_top
from medfl_datasets.bloodcells.files import Release
from medfl_datasets.bloodcells.pool import How


class Cells(WholeSpec):
    """Sizes and shares."""

    size: int = Field(224, ge=1)
    """Height and width of the images in the array."""
    test_share: float = 0.2
    """Share of each class of a release in the test set; 0 leaves it to medfl partition."""
    seed: int = 0
    """Decides which images these are."""

    def how(self, workers: int | None, force: bool) -> How:
        """What is made of a release."""
        return How(self.size, self.test_share, self.seed, workers=workers, force=force)


def located(release: Release, top: Path) -> dict[str, Path]:
    """A release in the source folder of a study: a folder of its name, or that itself."""
    return {"source": folder_or_top(top, release.name)}


def named(top: Path, names: Mapping[str, Release], options: Mapping[str, Any]) -> dict[str, Path]:
    """Folders of several releases in the source folder of a study: all, unless the study names some."""
    if any(options.get(name) is not None for name in names):
        return {}
    return {name: folder_or_top(top, name) for name in names}
