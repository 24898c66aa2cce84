"""Label maps: the class of each cell type of each release.

A label map is a YAML file (``label_maps/bloodcells.yaml`` beside this module is medfl's own)::

    classes: [basophil, eosinophil]
    sources:
      acevedo: {BA: basophil, EO: eosinophil, PLATELET: null}

The classes have the numbers 0, 1, ... in the order of the list, even if a release has no image of a class. Hospitals
that prepare different releases with one map therefore have the same task. ``null`` excludes a cell type; a map must
list every cell type.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from medfl.errors import SettingsError, did_you_mean
from medfl.settings import StrictModel, read_settings
from medfl.utils.strict_yaml import read_yaml
from medfl_datasets.bloodcells.files import CellRelease

DEFAULT_LABEL_MAP = Path(__file__).parent / "label_maps" / "bloodcells.yaml"
"""medfl's own label map, with one set of classes for the releases Acevedo-20, Matek-19 and Bodzas-23."""


class LabelMap(StrictModel):
    """Label map: the class of each cell type of each release.

    Attributes:
        classes: Names of the classes, >= 2, by their numbers.
        sources: Maps the name of each release to a mapping from cell type to class; None excludes a cell type.
    """

    classes: tuple[str, ...] = Field(min_length=2)
    sources: dict[str, dict[str, str | None]]

    def check(self, releases: Sequence[CellRelease]) -> None:
        """Raise SettingsError if the map is inconsistent or does not cover all cell types.

        Args:
            releases: Releases to prepare; the map may contain others.

        Raises:
            SettingsError: If a release, a cell type or a class is missing, a cell type is unknown, or a class has no
                cell type.
        """
        for release in releases:
            codes = self.sources.get(release.name)
            if codes is None:
                raise SettingsError(
                    "missing_release",
                    f"the label map has no entry for {release.name}. Add it to 'sources'.",
                    release=release.name,
                )
            missing = [code for code in release.published if code not in codes]
            if missing:
                raise SettingsError(
                    "missing_cell_type",
                    f"the label map lacks these cell types of {release.name}: {', '.join(missing)}. Give each of "
                    "them a class, or null to leave it out.",
                    release=release.name,
                    cell_types=missing,
                )
            for code in codes:
                if code not in release.published:
                    hint = did_you_mean(code, release.published)
                    raise SettingsError(
                        "unknown_cell_type",
                        f"the label map names '{code}', which is not a cell type of {release.name}. {hint}",
                        release=release.name,
                        cell_type=code,
                    )
        self._check_classes()

    def _check_classes(self) -> None:
        """Raise SettingsError if a class is repeated, unknown or unused."""
        if len(set(self.classes)) < len(self.classes):
            raise SettingsError("duplicate_class", "a class occurs twice in 'classes' of the label map. Remove one.")
        used = {name for codes in self.sources.values() for name in codes.values() if name is not None}
        for name in sorted(used - set(self.classes)):
            hint = did_you_mean(name, self.classes)
            raise SettingsError(
                "unknown_class",
                f"'classes' of the label map lacks '{name}', the class of a cell type. {hint} Add it, or "
                "correct 'sources'.",
                name=name,
            )
        unused = [name for name in self.classes if name not in used]
        if unused:
            raise SettingsError(
                "unused_class",
                f"the label map has no cell type for the classes {', '.join(unused)}. Take them out of 'classes'.",
                classes=unused,
            )


def read_label_map(path: Path = DEFAULT_LABEL_MAP) -> LabelMap:
    """Read a label map.

    Raises:
        SettingsError: If the file is missing, is not valid YAML, or is not a label map.
    """
    return read_settings(LabelMap, read_yaml(path, "label map"), f"the label map '{path}'")


def single_release_map(release: str, classes: dict[str, str | None]) -> LabelMap:
    """Make the label map of a single release; classes are numbered in the order of their first occurrence.

    Args:
        release: Name of the release.
        classes: Maps each cell type to its class, or to None to exclude it.
    """
    return LabelMap(
        classes=tuple(dict.fromkeys(name for name in classes.values() if name is not None)), sources={release: classes}
    )
