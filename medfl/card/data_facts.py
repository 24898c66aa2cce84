"""What a card says of the data: data set, licence, how the images were taken, what was left out, who dealt them.

It is read from the data lists and the cards of the sites, where they lie now, if they are those of the run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from medfl.data.arrays import array_digest
from medfl.data.datalists import FILE, Datalist, parse_datalist, read_bytes, subjects_of
from medfl.errors import DataError
from medfl.records.datalist import CaseRecord
from medfl.records.partition import Partition
from medfl.records.site_card import SiteCard
from medfl.report.formats import plain
from medfl.types import FACTS, Meta

UNKNOWN: Meta = {
    "why": None,
    "names": [],
    "licences": [],
    "modalities": [],
    "lists": {},
    "patients": False,
    "known": [],
    "exclusions": [],
    "warnings": [],
    "partition": {},
    "partition_warnings": [],
}
"""The facts where nobody knows any."""


def data_facts(folder: Path | None, digests: Meta, sites: Sequence[str]) -> Meta:
    """The facts, as JSON; ``why`` says why there are none.

    Args:
        folder: Of the partitioned data; None where nobody knows it.
        digests: Site to what the run has as its hash of list and images (`medfl.data.sites.SiteData.digest`).
        sites: Those that the card is about.
    """
    if folder is None:
        return UNKNOWN | {"why": "the run does not say where its data lay"}
    dealt, lists = _partition(folder), dict[str, Datalist]()
    hashes: Meta = {}
    for site in sites:
        try:
            content = read_bytes(folder / site)
            lists[site] = parse_datalist(content, folder / site / FILE)
            if site in digests and _digest(folder / site, content, lists[site]) != digests[site]:
                return UNKNOWN | {"why": f"the data that lie there now are not those of the run (at {site})"}
        except (DataError, OSError):
            return UNKNOWN | dealt | {"why": "there are no data lists of medfl where the run's data lay"}
        hashes[site] = hashlib.sha256(content).hexdigest()
    return (
        UNKNOWN
        | dealt
        | {
            "names": _different(each.name for each in lists.values()),
            "licences": _different(each.licence for each in lists.values()),
            "modalities": _different(each.modality for each in lists.values()),
            "lists": hashes,
            "patients": all(_knows_patients(each) for each in lists.values()),
            "known": [name for name in FACTS if any(_knows(each, name) for each in lists.values())],
            "exclusions": _exclusions(folder, sites),
            "warnings": sorted({text for each in lists.values() for text in each.warnings}),
        }
    )


def _digest(folder: Path, content: bytes, datalist: Datalist) -> str:
    """As `medfl.data.sites.site_data` computes it."""
    arrays = [folder / name for name in (datalist.image_array, datalist.mask_array) if name]
    return hashlib.sha256(b"".join([content, *(bytes.fromhex(array_digest(array)) for array in arrays)])).hexdigest()


def _different(texts: Any) -> list[str]:
    return sorted({text.strip() for text in texts} - {""})


def _records(datalist: Datalist) -> list[CaseRecord]:
    return [record for records in datalist.splits.values() for record in records]


def _knows_patients(datalist: Datalist) -> bool:
    """Whether any two images are of one patient, as far as the list says."""
    subjects = [subject for subject in subjects_of(_records(datalist)) if subject is not None]
    return len(set(subjects)) < len(subjects)


def _knows(datalist: Datalist, name: str) -> bool:
    return any(record.get(name) not in (None, "") for record in _records(datalist))


def _exclusions(folder: Path, sites: Sequence[str]) -> list[Meta]:
    """Return the exclusions of the sites' cards, each once: those of the pooled data set are on every card."""
    counts: dict[tuple[str, str], int] = {}
    for site in sites:
        try:
            card = SiteCard.read(folder / site / SiteCard.NAME)
        except DataError:  # somebody made the site without a partition
            continue
        counts |= {(entry.reason, entry.where): entry.count for entry in card.exclusions}
    return [{"reason": reason, "where": where, "count": count} for (reason, where), count in sorted(counts.items())]


def _partition(folder: Path) -> Meta:
    """Return the settings and warnings of the partition; empty if its file is missing or damaged."""
    try:
        made = Partition.find(folder)
    except DataError:
        return {}
    if made is None:
        return {}
    settings = made.settings.to_json() | {"public_dataset": made.public_dataset}
    return {
        "partition": {key: plain(value) for key, value in settings.items() if value not in (None, [], {})},
        "partition_warnings": list(made.warnings),
    }
