"""``case_partition.json`` of ``medfl partition LIST``: the division of a bundle's own list among sites."""

from __future__ import annotations

from typing import ClassVar

from pydantic import JsonValue, NonNegativeInt

from medfl.errors import DataError, MedflError
from medfl.records.record import FileRecord


class CasePartition(FileRecord):
    """The content of ``case_partition.json``, which is beside the folders of the sites.

    Attributes:
        case_list: Name of the file that lists the cases.
        scheme: Name of the scheme.
        options: Options of the scheme.
        column: Entry of a case by which the scheme divides the cases.
        seed: Seed of all random draws.
        cases: Maps each site to the number of cases in each section of its list.
    """

    NAME: ClassVar[str] = "case_partition.json"
    REPAIR: ClassVar[str] = "Partition again."
    ERROR: ClassVar[type[MedflError]] = DataError

    case_list: str
    scheme: str
    options: dict[str, JsonValue] = {}
    column: str | None = None
    seed: NonNegativeInt
    cases: dict[str, dict[str, NonNegativeInt]]
