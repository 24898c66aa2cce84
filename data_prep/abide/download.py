"""Download ABIDE I from the public bucket of the Preprocessed Connectomes Project (PCP), file by file.

Downloaded files keep the bucket's layout. An interrupted download continues with the same command.
"""

from __future__ import annotations

import hashlib
import os
import urllib.error
from collections.abc import Sequence
from pathlib import Path

from medfl.data.ingest.download import download
from medfl.errors import DataError
from medfl.utils.text import Say
from medfl_datasets.abide.files import MapSelection, file_name
from medfl_datasets.abide.tables import PHENOTYPE_FILE, Subject

URL = "https://s3.amazonaws.com/fcp-indi/data/Projects/ABIDE_Initiative"
"""Address of PCP's top folder."""

PROGRESS_INTERVAL = 50
"""Number of maps between two progress lines."""

_MISSING_STATUS = (403, 404)
"""HTTP status codes of a file that the server does not have."""


def fetch_phenotypes(source: Path, url: str, say: Say) -> Path:
    """Return the phenotypic file in `source`, and download it if it does not exist.

    Raises:
        DataError: If the download fails.
    """
    return download(f"{url.rstrip('/')}/{PHENOTYPE_FILE}", source / PHENOTYPE_FILE, say=say)


def fetch_maps(source: Path, maps: MapSelection, wanted: Sequence[tuple[Subject, str]], url: str, say: Say) -> None:
    """Download maps, and skip maps that the server does not have.

    Missing maps are reported later, when the maps are looked up.

    Args:
        source: Target folder, which gets the layout of the bucket's top folder.
        maps: Pipeline and strategy of the maps.
        wanted: Subject and derivative of each map.
        url: Address of the top folder.
        say: Receives lines about progress.

    Raises:
        DataError: If the network fails or the server refuses; downloaded maps are kept. The message contains the row of
            the phenotypic file and the derivative, but no subject.
    """
    lacking = 0
    for number, (subject, derivative) in enumerate(wanted, 1):
        lacking += not _fetch_map(source, maps, subject, derivative, url.rstrip("/"))
        if number % PROGRESS_INTERVAL == 0 or number == len(wanted):
            say(f"downloading: {number} of {len(wanted)} maps{f', {lacking} are not on the server' if lacking else ''}")


def _fetch_map(source: Path, maps: MapSelection, subject: Subject, derivative: str, url: str) -> bool:
    """Download one map; return False if the server does not have it.

    Until the download is complete, the file has a name without the subject, because progress bars and messages show it.
    """
    name = file_name(subject.file_id, derivative)
    target = source / maps.folder(derivative) / name
    mark = hashlib.blake2b(f"{maps.folder(derivative)}/{name}".encode(), digest_size=4).hexdigest()
    fetched = target.with_name(f".table-row-{subject.row}-{derivative}-{mark}")
    try:
        download(f"{url}/{maps.folder(derivative)}/{name}", fetched)
    except DataError as error:
        refusal = error.__context__
        if isinstance(refusal, urllib.error.HTTPError) and refusal.code in _MISSING_STATUS:
            return False
        text = str(error).replace(subject.file_id, "<FILE_ID>")
        raise DataError(
            error.code,
            f"table row {subject.row}, {derivative}: {text}",
            row=subject.row,
            derivative=derivative,
            status=error.fields.get("status"),
        ) from None
    os.replace(fetched, target)
    return True
