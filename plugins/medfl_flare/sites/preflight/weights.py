"""Check of a site's folder with files of weights, from which a run may start."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from medfl.engine.runs.weights_file import WEIGHTS_SUFFIXES
from medfl.errors import SettingsError
from medfl.plugins import PretrainedWeightsRecord
from medfl.utils.files import sha256_of
from medfl.utils.text import SHOWN_DIGITS
from medfl_flare.sites.preflight import Caution


def check_weights(folder: Path, known: Iterable[PretrainedWeightsRecord]) -> str:
    """Check that a folder with files of weights can be read; return its files and the first digits of their SHA-256.

    Args:
        folder: Path of the folder.
        known: Records of the weights that plugins know. A file with the SHA-256 of one is listed with its name.

    Returns:
        The finding, a `Caution` if the folder has no file of weights.

    Raises:
        SettingsError: If the folder is missing, or it or a file of weights can't be read.
    """
    if not folder.is_dir():
        raise SettingsError(
            "missing_folder",
            f"the file names the folder of weights '{folder}', but there is no such folder; create it, or remove "
            "'weights'",
            path=folder,
            setting="weights",
        )
    names_by_digest = {record.sha256: record.name for record in known}
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix in WEIGHTS_SUFFIXES and path.is_file())
        digests = {path.name: sha256_of(path) for path in files}
    except OSError as error:
        raise SettingsError(
            "unreadable_folder",
            f"the weights in '{error.filename or folder}' can't be read: {error.strerror}; permit reading them",
            path=folder,
            setting="weights",
            reason=error.strerror,
        ) from None
    if not digests:
        return Caution(
            f"'{folder}' has no file {', '.join(WEIGHTS_SUFFIXES)}, so runs that start from a file leave this site "
            "out; put the file there, or remove 'weights'"
        )
    texts = []
    for name, digest in digests.items():
        title = f", known as '{names_by_digest[digest]}'" if digest in names_by_digest else ""
        texts.append(f"{name} (SHA-256 {digest[:SHOWN_DIGITS]}{title})")
    return ", ".join(texts)
