"""Compare evaluated images and patients with the data of the run that trained the model.

Images are compared by their pixels, as `medfl.data.leaks` does. Patients are compared if both data lists belong to the
same pooled data set; numbers of patients in separately prepared data sets can coincide by chance.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from medfl.data.datalists import DATALIST_FILE, parse_datalist, read_datalist_bytes
from medfl.data.leaks import PlaceContents, contents_by_split
from medfl.data.sites import data_digest
from medfl.engine.runs.records import RunRecord
from medfl.engine.runs.start_source import RUN_ORIGIN
from medfl.errors import DataError
from medfl.records.evaluation import DataRelation, RelationReason, SharedCases
from medfl.types import PUBLIC


def relate_to_run(run: RunRecord | None, digest: str, contents: PlaceContents | None) -> DataRelation:
    """Return the relation of evaluated images to the data of a run.

    The data of all sites, the server's test set and the public data of the run are compared.

    Args:
        run: The run that trained the model; None if it is unknown.
        digest: Digest of the evaluated data (`medfl.data.sites.SiteData.digest`).
        contents: Keys of the evaluated images and patients; None if they can't be compared.
    """
    if run is None:
        return DataRelation(kind="unchecked", reason="no_run")
    digests = run.run.provenance.data.sites
    if contents is None:
        took_part = digest in digests.values()
        return _internal("participating_site") if took_part else DataRelation(kind="unchecked", reason="not_comparable")
    shared: list[SharedCases] = []
    problems: list[RelationReason] = []
    for site in sorted({*run.sites, *digests}):
        parts = _read_contents(run.data_folder, site, digests)
        if isinstance(parts, str):
            problems.append(parts)
            continue
        shared += _shared_by_split(site, parts, contents)
    if digest in digests.values():
        return _internal("participating_site", shared)
    if shared:
        return _internal("shared_cases", shared)
    start = run.run.provenance.start
    if start is not None and start.origin.startswith(RUN_ORIGIN):
        problems.append("earlier_run")
    if problems or not run.sites:
        return DataRelation(kind="unchecked", reason=problems[0] if problems else "missing_data")
    return DataRelation(kind="external", reason="nothing_shared")


def _internal(reason: RelationReason, shared: list[SharedCases] | tuple[SharedCases, ...] = ()) -> DataRelation:
    """Return the relation of images that are not external."""
    return DataRelation(kind="internal", reason=reason, shared=tuple(shared))


def _shared_by_split(site: str, parts: Mapping[str, PlaceContents], contents: PlaceContents) -> list[SharedCases]:
    """Return the shared images and patients of each split of a site of the run that has any."""
    counts = {
        split: (len(part.pixels & contents.pixels), len(part.subjects & contents.subjects))
        for split, part in parts.items()
    }
    return [
        SharedCases(site=site, split=split, images=images, patients=patients)
        for split, (images, patients) in counts.items()
        if images or patients
    ]


def _read_contents(
    folder: Path | None, site: str, digests: Mapping[str, str]
) -> Mapping[str, PlaceContents] | RelationReason:
    """Return the contents of a site of the run by split, or the reason why they can't be read.

    Args:
        folder: Folder of the run's data; None if it is unknown.
        site: Name of the site.
        digests: Maps each site to the digest of its data in the run.
    """
    if folder is None:
        return "missing_data"
    try:
        content = read_datalist_bytes(folder / site)
        datalist = parse_datalist(content, folder / site / DATALIST_FILE)
        # the digest of public data can include a map of labels, so that it differs from the folder's
        if site != PUBLIC and digests.get(site) != data_digest(folder / site, content, datalist):
            return "changed_data"
        return contents_by_split(folder / site, datalist)
    except (DataError, OSError):
        return "missing_data"
