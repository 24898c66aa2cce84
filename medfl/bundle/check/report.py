"""Report of the check of a bundle."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

CodeKind = Literal["target", "expression", "import", "macro", "mode", "disabled", "requires", "shape", "logging"]
"""Kind of code in a configuration.

- ``target``: function or class that MONAI calls.
- ``expression``: Python code after ``$``.
- ``import``: expression that imports a module.
- ``macro``: content that ``%`` copies from another place.
- ``mode``, ``disabled``, ``requires``: keys ``_mode_``, ``_disabled_`` and ``_requires_``, which change what runs.
- ``shape``: formula in a shape of the metadata.
- ``logging``: class or arguments in ``logging.conf``, which Python evaluates.
"""


@dataclass(frozen=True)
class CodeEntry:
    """A value of a configuration that makes MONAI run code.

    Attributes:
        file: Path of the configuration in the bundle.
        id: Id of the value, for example ``train#dataset#_target_``.
        kind: Kind of code.
        text: The value in full.
        package: For a target or an import: its top-level package, ``python`` for a name of Python itself,
            ``this bundle`` for the bundle's own code, or ``computed`` if only running it reveals the name. Otherwise
            empty.
    """

    file: str
    id: str
    kind: CodeKind
    text: str
    package: str = ""


@dataclass(frozen=True)
class FileNote:
    """A file of a bundle that contains code or weights.

    Attributes:
        path: Path in the bundle.
        text: Description of the file and of the effect of loading it.
    """

    path: str
    text: str


@dataclass
class BundleReport:
    """Result of the check of a bundle.

    Attributes:
        root: Folder of the bundle.
        title: Name and version from the metadata.
        errors: Problems to correct before the bundle is used.
        warnings: Points that a person should review.
        notes: Notes about the checks, and versions.
        code: Code that a run would execute, in the order of the files.
        files: Files that contain code or weights.
    """

    root: Path
    title: str = ""
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    code: list[CodeEntry] = field(default_factory=list)
    files: list[FileNote] = field(default_factory=list)
