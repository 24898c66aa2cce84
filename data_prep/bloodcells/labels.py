"""Label maps: which class the kinds of cells of each release belong to.

A label map is a YAML file (``bloodcells.yaml`` in `medfl.data.label_maps` is the one that medfl ships)::

    classes: [basophil, eosinophil]
    sources:
      acevedo: {BA: basophil, EO: eosinophil, PLATELET: null}

The classes have the numbers 0, 1, ... in the order of the list, whatever a release holds: hospitals that prepare
different releases with one map have the same task. ``null`` leaves a kind of cell out; it must be said.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from medfl.errors import SettingsError, did_you_mean
from medfl.settings import Strict, read_settings
from medfl.utils.strict_yaml import read_yaml
from medfl_datasets.bloodcells.files import Release

SHIPPED = Path(__file__).parent / "label_maps" / "bloodcells.yaml"
"""The map for the three releases together."""


class LabelMap(Strict):
    """Which class each kind of cell belongs to.

    Attributes:
        classes: Names of the classes, >= 2, by their numbers.
        sources: Name of a release to the class of each of its kinds of cells; None leaves a kind out.
    """

    classes: tuple[str, ...] = Field(min_length=2)
    sources: dict[str, dict[str, str | None]]

    def check(self, releases: Sequence[Release]) -> None:
        """Refuse a map that does not say of each kind of cell what becomes of it.

        Args:
            releases: Those that are to be prepared; the map may have others.

        Raises:
            SettingsError: If a release, a kind of cell or a class is missing, there is no such kind, or nothing belongs
                to a class.
        """
        for release in releases:
            codes = self.sources.get(release.name)
            if codes is None:
                raise SettingsError(
                    "missing_release",
                    f"the label map says nothing of {release.name}. Add it to 'sources'.",
                    release=release.name,
                )
            missing = [code for code in release.published if code not in codes]
            if missing:
                raise SettingsError(
                    "missing_cell_type",
                    f"the label map lacks these kinds of cells of {release.name}: {', '.join(missing)}. Give each of "
                    "them a class, or null to leave it out.",
                    release=release.name,
                    cell_types=missing,
                )
            for code in codes:
                if code not in release.published:
                    hint = did_you_mean(code, release.published)
                    raise SettingsError(
                        "unknown_cell_type",
                        f"the label map names '{code}', no kind of cell of {release.name}. {hint}",
                        release=release.name,
                        cell_type=code,
                    )
        self._check_classes()

    def _check_classes(self) -> None:
        if len(set(self.classes)) < len(self.classes):
            raise SettingsError(
                "duplicate_class", "a class stands twice in 'classes' of the label map. Take it out once."
            )
        used = {name for codes in self.sources.values() for name in codes.values() if name is not None}
        for name in sorted(used - set(self.classes)):
            hint = did_you_mean(name, self.classes)
            raise SettingsError(
                "unknown_class",
                f"'classes' of the label map lacks '{name}', which a kind of cell belongs to. {hint} Add it, or "
                "correct 'sources'.",
                name=name,
            )
        unused = [name for name in self.classes if name not in used]
        if unused:
            raise SettingsError(
                "unused_class",
                f"the label map has no kind of cell that belongs to the classes {', '.join(unused)}. Take them out of "
                "'classes'.",
                classes=unused,
            )


def read_label_map(path: Path = SHIPPED) -> LabelMap:
    """Read a label map.

    Raises:
        SettingsError: If the file is missing, is no YAML, or is no label map.
    """
    return read_settings(LabelMap, read_yaml(path, "label map"), f"the label map '{path}'")


def own_classes(release: str, classes: dict[str, str | None]) -> LabelMap:
    """The map of one release alone; its classes are numbered in the order in which they first come."""
    return LabelMap(
        classes=tuple(dict.fromkeys(name for name in classes.values() if name is not None)), sources={release: classes}
    )
