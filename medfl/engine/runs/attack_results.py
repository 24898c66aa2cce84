"""Place of the results of attacks: the folder ``attacks/`` of a run, with JSON for programs and pages for people."""

from __future__ import annotations

from pathlib import Path

from medfl.records.attacks import InversionFile, MembershipFile, PoisonFile

FOLDER = "attacks"
"""Folder in a run folder in which attacks write their files."""

FILES: dict[str, type[MembershipFile] | type[InversionFile] | type[PoisonFile]] = {
    "membership": MembershipFile,
    "inversion": InversionFile,
    "poison": PoisonFile,
}
"""Maps each kind of attack to the class of its file."""


def results_path(run: Path, attack: str, out: Path | None = None) -> Path:
    """Return the path of an attack's JSON file; its page has the same name and ends with ``.html``.

    Args:
        run: The run folder.
        attack: Kind of the attack, a key of `FILES`.
        out: The folder to write to; None means `FOLDER` in the run folder.
    """
    return (run / FOLDER if out is None else out) / FILES[attack].NAME


def read_results(run: Path, attack: str) -> MembershipFile | InversionFile | PoisonFile | None:
    """Return the results of an attack on a run, or None if there are none.

    Args:
        run: The run folder.
        attack: Kind of the attack, a key of `FILES`.

    Raises:
        StoreError: If the file is damaged, or of another version.
    """
    path = results_path(run, attack)
    return FILES[attack].read(path) if path.is_file() else None
