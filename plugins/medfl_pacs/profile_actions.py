"""Actions of the DICOM Basic Application Level Confidentiality Profile (PS3.15, table E.1-1) for each element.

The table is the one of the package ``dicom-anonymizer``, which follows the editions of the standard. Only its table is
used: its functions do not enter nested sequences and replace UIDs by random ones.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import StrEnum

from medfl.errors import SettingsError, pip_install

EDITION = "2026c"
"""Edition of the DICOM standard whose table is used."""


class Action(StrEnum):
    """Treatment of an element."""

    DUMMY = "dummy"
    """Replace the value by a dummy value of the same value representation."""
    EMPTY = "empty"
    """Replace the value by an empty value."""
    REMOVE = "remove"
    """Remove the element."""
    UID = "uid"
    """Replace the UID by its pseudonym."""
    CLEAN = "clean"
    """Keep a sequence and clean its items."""


_ACTIONS = {
    "D_TAGS": Action.DUMMY,
    "Z_TAGS": Action.EMPTY,
    "X_TAGS": Action.REMOVE,
    "U_TAGS": Action.UID,
    "Z_D_TAGS": Action.DUMMY,
    "X_Z_TAGS": Action.EMPTY,
    "X_D_TAGS": Action.DUMMY,
    "X_Z_D_TAGS": Action.DUMMY,
    "X_Z_U_STAR_TAGS": Action.CLEAN,
}
"""Maps the lists of the package to actions. Where the standard leaves a choice, the image stays valid for readers."""


@dataclass(frozen=True)
class ActionTable:
    """Actions by element.

    Attributes:
        by_tag: Maps the number of an element's tag to its action.
        by_pattern: Actions of repeating groups, as (tag, mask, action).
    """

    by_tag: dict[int, Action]
    by_pattern: tuple[tuple[int, int, Action], ...]

    def action(self, tag: int) -> Action | None:
        """Return the action for an element, or None if the profile has none."""
        if (action := self.by_tag.get(tag)) is not None:
            return action
        return next((action for pattern, mask, action in self.by_pattern if tag & mask == pattern & mask), None)


@functools.cache
def load_actions() -> ActionTable:
    """Read the table of the package.

    Raises:
        SettingsError: If the package is not installed, or does not have the edition `EDITION`.
    """
    try:
        from dicomanonymizer.dicom_anonymization_databases import dicomfields_2026c as table
    except ImportError as error:
        raise missing_package("dicom-anonymizer>=2.1") from error
    by_tag: dict[int, Action] = {}
    by_pattern: list[tuple[int, int, Action]] = []
    for name, action in _ACTIONS.items():
        for group, element, *mask in getattr(table, name):
            tag = group << 16 | element
            if mask:
                by_pattern.append((tag, mask[0] << 16 | mask[1], action))
            else:
                by_tag[tag] = action
    return ActionTable(by_tag, tuple(by_pattern))


def missing_package(package: str) -> SettingsError:
    """Return the error for a package of the extra that is not installed."""
    return SettingsError(
        "missing_package",
        f"`medfl pacs` needs the package {package}, which is not installed. Install the extra: {pip_install('pacs')}.",
        package=package,
        extra="pacs",
    )
