"""Facts about the data for a model card: data set, licence, modality, patients, exclusions and partition.

They are read from the data lists and site cards at their current location, if these are still the ones of the run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from medfl.data.datalists import (
    DATALIST_FILE,
    Datalist,
    parse_datalist,
    patient_numbers,
    read_datalist_bytes,
    subjects_of,
)
from medfl.data.sites import data_digest
from medfl.errors import DataError
from medfl.records.datalist import CaseRecord
from medfl.records.partition import LocatedExclusion, Partition
from medfl.records.site_card import SiteCard
from medfl.types import METADATA_KEYS
from medfl.utils.formats import setting_text
from medfl_report.cards.card_record import DataFacts, NamedValue


def read_data_facts(folder: Path | None, digests: Mapping[str, str], sites: Sequence[str]) -> DataFacts:
    """Return the facts about the data of some sites.

    If a data list is missing, or differs from the one of the run, no list is used; `DataFacts.unknown_because` has the
    reason.

    Args:
        folder: Folder of the partitioned data, with a folder for each site; None if the run does not name it.
        digests: Maps each site to the digest of its data list and images in the run (`medfl.data.sites.SiteData`).
        sites: Names of the sites that the card describes.
    """
    if folder is None:
        return DataFacts(unknown_because="the run does not record the folder of its data")
    partition, lists, hashes = _partition_facts(folder), dict[str, Datalist](), dict[str, str]()
    for site in sites:
        try:
            content = read_datalist_bytes(folder / site)
            lists[site] = parse_datalist(content, folder / site / DATALIST_FILE)
            if site in digests and data_digest(folder / site, content, lists[site]) != digests[site]:
                return DataFacts(unknown_because=f"the data in the run's data folder have changed since (at {site})")
        except (DataError, OSError):
            reason = "the run's data folder contains no data lists of medfl"
            return partition.model_copy(update={"unknown_because": reason})
        hashes[site] = hashlib.sha256(content).hexdigest()
    has_patients = all(_has_patients(datalist) for datalist in lists.values())
    return DataFacts(
        names=_unique_texts(datalist.name for datalist in lists.values()),
        licences=_unique_texts(datalist.licence for datalist in lists.values()),
        modalities=_unique_texts(datalist.modality for datalist in lists.values()),
        list_hashes=hashes,
        has_patients=has_patients,
        patients=sum(_count_patients(datalist) for datalist in lists.values()) if has_patients else None,
        case_fields=tuple(
            name for name in METADATA_KEYS if any(_has_field(datalist, name) for datalist in lists.values())
        ),
        exclusions=_exclusions(folder, sites),
        warnings=tuple(sorted({text for datalist in lists.values() for text in datalist.warnings})),
        partition=partition.partition,
        partition_warnings=partition.partition_warnings,
    )


def _unique_texts(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct non-blank texts, sorted."""
    return tuple(sorted({text.strip() for text in texts} - {""}))


def _records(datalist: Datalist) -> list[CaseRecord]:
    """Return the records of all splits."""
    return [record for records in datalist.splits.values() for record in records]


def _has_patients(datalist: Datalist) -> bool:
    """Return whether at least two images have the same subject, so that the list tells patients apart."""
    subjects = [subject for subject in subjects_of(_records(datalist)) if subject is not None]
    return len(set(subjects)) < len(subjects)


def _count_patients(datalist: Datalist) -> int:
    """Return the number of patients in all splits; an image without a subject counts as one patient."""
    return len(set(patient_numbers(_records(datalist)) or ()))


def _has_field(datalist: Datalist, name: str) -> bool:
    """Return whether at least one image has a value for a field."""
    return any(record.get(name) not in (None, "") for record in _records(datalist))


def _exclusions(folder: Path, sites: Sequence[str]) -> tuple[LocatedExclusion, ...]:
    """Return the exclusions on the sites' cards, each once: all site cards repeat the pooled data set's exclusions."""
    counts: dict[tuple[str, str], int] = {}
    for site in sites:
        try:
            card = SiteCard.read(folder / site / SiteCard.NAME)
        except DataError:  # the site's data were not made by `medfl partition`
            continue
        counts |= {(entry.reason, entry.where): entry.count for entry in card.exclusions}
    return tuple(
        LocatedExclusion(reason=reason, where=where, count=count) for (reason, where), count in sorted(counts.items())
    )


def _partition_facts(folder: Path) -> DataFacts:
    """Return the settings and warnings of the partition; empty facts if ``partition.json`` is missing or damaged."""
    try:
        partition = Partition.find(folder)
    except DataError:
        return DataFacts()
    if partition is None:
        return DataFacts()
    settings = partition.settings.to_json() | {"public_dataset": partition.public_dataset}
    return DataFacts(
        partition=tuple(
            NamedValue(name=name, value=setting_text(value))
            for name, value in settings.items()
            if value not in (None, [], {})
        ),
        partition_warnings=partition.warnings,
    )
