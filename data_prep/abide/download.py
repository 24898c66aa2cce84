"""Fetch ABIDE I from the public bucket of the Preprocessed Connectomes Project (PCP), file by file.

What was fetched keeps the bucket's layout. An interrupted download continues with the same command.
"""

from __future__ import annotations

import hashlib
import os
import urllib.error
from collections.abc import Sequence
from pathlib import Path

from medfl.ingest.download import download

from medfl.errors import DataError
from medfl.utils.text import Say
from medfl_datasets.abide.files import Maps, file_name
from medfl_datasets.abide.tables import FILE, Subject

URL = "https://s3.amazonaws.com/fcp-indi/data/Projects/ABIDE_Initiative"
"""PCP's top folder."""

EVERY = 50
"""Maps after which a line tells how many came."""

_NOT_THERE = (403, 404)


def fetch_phenotypes(source: Path, url: str, say: Say) -> Path:
    """The phenotypic file in `source`, downloaded if it is not there.

    Raises:
        DataError: If the download fails.
    """
    return download(f"{url.rstrip('/')}/{FILE}", source / FILE, say=say)


def fetch_maps(source: Path, maps: Maps, wanted: Sequence[tuple[Subject, str]], url: str, say: Say) -> None:
    """Download maps.

    Maps that the server does not have are passed over: what is missing is told by who looks for it.

    Args:
        source: Where to, as the top folder of the bucket.
        maps: Which maps.
        wanted: Subject and derivative of each.
        url: Address of the top folder.
        say: Gets plain lines about progress.

    Raises:
        DataError: If the network fails or the server refuses; what came is kept. It names the row of the phenotypic
            file and the derivative, and no subject.
    """
    lacking = 0
    for number, (subject, derivative) in enumerate(wanted, 1):
        lacking += not _fetch(source, maps, subject, derivative, url.rstrip("/"))
        if number % EVERY == 0 or number == len(wanted):
            say(f"downloading: {number} of {len(wanted)} maps{f', {lacking} are not there' if lacking else ''}")


def _fetch(source: Path, maps: Maps, subject: Subject, derivative: str, url: str) -> bool:
    """Download one map; False if the server does not have it.

    The file has another name until it is whole, because bars and messages show names.
    """
    name = file_name(subject.file_id, derivative)
    target = source / maps.folder(derivative) / name
    mark = hashlib.blake2b(f"{maps.folder(derivative)}/{name}".encode(), digest_size=4).hexdigest()
    fetched = target.with_name(f".table-row-{subject.row}-{derivative}-{mark}")
    try:
        download(f"{url}/{maps.folder(derivative)}/{name}", fetched)
    except DataError as error:
        refusal = error.__context__
        if isinstance(refusal, urllib.error.HTTPError) and refusal.code in _NOT_THERE:
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
