"""Schema of ``site_card.json`` in the folder of a site: image counts, class balance, and the origin of its data."""

from __future__ import annotations

from typing import ClassVar

from pydantic import NonNegativeInt, PositiveInt

from medfl.errors import DataError, MedflError
from medfl.records.partition import LocatedExclusion, PartitionSettings
from medfl.records.record import FileRecord


class SiteCard(FileRecord):
    """Data card of a site, of the server's test set, or of public data, for human readers.

    Attributes:
        site: Name of the folder: the site, the server's test set, or the public data.
        dataset: Name of the pooled data set.
        public_dataset: Name of the pooled data set of the public images, if it differs from `dataset`.
        licence: Terms of use.
        labels: Maps the number of each class to its name.
        counts: Maps each split to the number of images of each class.
        class_balance: Maps each class to its share of the images of all splits, rounded to four digits.
        presentation_intents: Maps each presentation intent of DICOM files (purpose of the pixels: for processing or for
            presentation) to the number of images.
        array_sha256: SHA-256 of the image array.
        exclusions: Images that were left out of the pooled data set or at this site.
        settings: Settings of the partition that had an effect.
        unassigned: Maps each class to its number of training images of the pooled data set that no site and no test set
            of the server has.
        allowed_leaks: Sentences about violations of the splits (such as a patient in two splits) that were allowed.
        warnings: Sentences about problems of the partition.
        versions: Maps each Python package that took part in making the partition, and Python, to its version.
    """

    NAME: ClassVar[str] = "site_card.json"
    """Name of the file in its folder."""
    REPAIR: ClassVar[str] = "Partition again."
    """Sentence that tells a user what to do about a damaged file."""
    ERROR: ClassVar[type[MedflError]] = DataError
    """Class of the errors that the reader raises."""

    site: str
    dataset: str
    public_dataset: str | None = None
    licence: str
    labels: dict[str, str]
    counts: dict[str, dict[str, NonNegativeInt]]
    class_balance: dict[str, float]
    presentation_intents: dict[str, PositiveInt] = {}
    array_sha256: str
    exclusions: tuple[LocatedExclusion, ...] = ()
    settings: PartitionSettings
    unassigned: dict[str, PositiveInt] = {}
    allowed_leaks: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    versions: dict[str, str]
