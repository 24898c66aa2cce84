"""Facts that a card states of the data: data set, licence, modality, exclusions and partition.

They come from the data lists and the cards of the sites, where these are now, if they are those of the run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from medfl.data.arrays import array_digest
from medfl.data.datalists import FILE, Datalist, parse_datalist, read_bytes, subjects_of
from medfl.errors import DataError
from medfl.records.datalist import CaseRecord
from medfl.records.partition import LocatedExclusion, Partition
from medfl.records.site_card import SiteCard
from medfl.types import FACTS
from medfl.utils.formats import plain
from medfl_report.cards.card_record import DataFacts, NamedValue


def data_facts(folder: Path | None, digests: Mapping[str, str], sites: Sequence[str]) -> DataFacts:
    """Return the facts of the data.

    Args:
        folder: Folder of the partitioned data; None if the run does not name it.
        digests: Maps each site to the hash of its list and images in the run (`medfl.data.sites.SiteData.digest`).
        sites: Sites of the card.
    """
    if folder is None:
        return DataFacts(unknown_because="the run does not say where its data lay")
    partition, lists, hashes = _partition_facts(folder), dict[str, Datalist](), dict[str, str]()
    for site in sites:
        try:
            content = read_bytes(folder / site)
            lists[site] = parse_datalist(content, folder / site / FILE)
            if site in digests and _digest(folder / site, content, lists[site]) != digests[site]:
                return DataFacts(unknown_because=f"the data that lie there now are not those of the run (at {site})")
        except (DataError, OSError):
            reason = "there are no data lists of medfl where the run's data lay"
            return partition.model_copy(update={"unknown_because": reason})
        hashes[site] = hashlib.sha256(content).hexdigest()
    return DataFacts(
        names=_different(each.name for each in lists.values()),
        licences=_different(each.licence for each in lists.values()),
        modalities=_different(each.modality for each in lists.values()),
        list_hashes=hashes,
        has_patients=all(_knows_patients(each) for each in lists.values()),
        case_fields=tuple(name for name in FACTS if any(_knows(each, name) for each in lists.values())),
        exclusions=_exclusions(folder, sites),
        warnings=tuple(sorted({text for each in lists.values() for text in each.warnings})),
        partition=partition.partition,
        partition_warnings=partition.partition_warnings,
    )


def _digest(folder: Path, content: bytes, datalist: Datalist) -> str:
    """As `medfl.data.sites.site_data` computes it."""
    arrays = [folder / name for name in (datalist.image_array, datalist.mask_array) if name]
    return hashlib.sha256(b"".join([content, *(bytes.fromhex(array_digest(array)) for array in arrays)])).hexdigest()


def _different(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({text.strip() for text in texts} - {""}))


def _records(datalist: Datalist) -> list[CaseRecord]:
    return [record for records in datalist.splits.values() for record in records]


def _knows_patients(datalist: Datalist) -> bool:
    """Whether any two images are of one patient, as far as the list says."""
    subjects = [subject for subject in subjects_of(_records(datalist)) if subject is not None]
    return len(set(subjects)) < len(subjects)


def _knows(datalist: Datalist, name: str) -> bool:
    return any(record.get(name) not in (None, "") for record in _records(datalist))


def _exclusions(folder: Path, sites: Sequence[str]) -> tuple[LocatedExclusion, ...]:
    """Return the exclusions of the sites' cards, each once: those of the pooled data set are on every card."""
    counts: dict[tuple[str, str], int] = {}
    for site in sites:
        try:
            card = SiteCard.read(folder / site / SiteCard.NAME)
        except DataError:  # somebody made the site without a partition
            continue
        counts |= {(entry.reason, entry.where): entry.count for entry in card.exclusions}
    return tuple(
        LocatedExclusion(reason=reason, where=where, count=count) for (reason, where), count in sorted(counts.items())
    )


def _partition_facts(folder: Path) -> DataFacts:
    """Return the settings and warnings of the partition; no facts if its file is missing or damaged."""
    try:
        partition = Partition.find(folder)
    except DataError:
        return DataFacts()
    if partition is None:
        return DataFacts()
    settings = partition.settings.to_json() | {"public_dataset": partition.public_dataset}
    return DataFacts(
        partition=tuple(
            NamedValue(name=name, value=plain(value)) for name, value in settings.items() if value not in (None, [], {})
        ),
        partition_warnings=partition.warnings,
    )
