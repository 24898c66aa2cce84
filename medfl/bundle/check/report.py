"""What a check of a bundle finds."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

CodeKind = Literal["target", "expression", "import", "macro", "mode", "disabled", "requires", "shape", "logging"]
"""``target``: something that is called. ``expression``: Python after ``$``. ``import``: an expression that imports.
``macro``: text pulled in from elsewhere by ``%``. ``mode``, ``disabled``, ``requires``: the keys ``_mode_``,
``_disabled_``, ``_requires_``, which change what runs. ``shape``: a formula among the shapes of the metadata.
``logging``: a class or arguments in ``logging.conf``, which Python evaluates."""


@dataclass(frozen=True)
class Code:
    """One place of a configuration that makes MONAI run something.

    Attributes:
        file: Path within the bundle.
        id: Where it stands, for example ``train#dataset#_target_``.
        kind: What it is.
        text: What stands there, in full.
        package: For a target and an import: the top package it comes from, ``python`` for Python's own names,
            ``this bundle`` for the bundle's own code, ``computed`` where only running tells. Otherwise empty.
    """

    file: str
    id: str
    kind: CodeKind
    text: str
    package: str = ""


@dataclass(frozen=True)
class FileNote:
    """A file of a bundle that holds code or weights.

    Attributes:
        path: Within the bundle.
        text: What it is, and what loading it does.
    """

    path: str
    text: str


@dataclass
class Report:
    """All that a check found.

    Attributes:
        root: The bundle.
        title: Name, version and task, as far as the metadata tell.
        errors: What must be mended before the bundle is used.
        warnings: What a person should look at.
        notes: What was checked and how, and versions.
        code: All that a run would execute, in the order of the files.
        files: Files that hold code or weights.
    """

    root: Path
    title: str = ""
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    code: list[Code] = field(default_factory=list)
    files: list[FileNote] = field(default_factory=list)
