"""Files that a study writes beside its runs and data: the identity of a finished run, and how a pool was prepared."""

from __future__ import annotations

from typing import ClassVar

from pydantic import JsonValue

from medfl.records.record import FileRecord


class JobIdentity(FileRecord):
    """Everything that decides the numbers of a study's run; the file in the run folder says that this run is over.

    Attributes:
        options: Options of the run by name.
        configuration: Digest of the bundle's configuration files.
        data: Digest of the data lists.
        code: Digest of the bundle's folder, if the bundle was adopted, else None.
        data_files: Digest of the names and sizes of the data set's files, if the bundle was adopted, else None.
    """

    NAME: ClassVar[str] = "study.json"

    options: dict[str, JsonValue]
    configuration: str
    data: str
    code: str | None = None
    data_files: str | None = None


class PoolPreparation(FileRecord):
    """The data set and the options from which a pooled data set was prepared; the file is beside the pool.

    Attributes:
        dataset: Name of the data set.
        options: Options of the data set by name.
    """

    NAME: ClassVar[str] = "prep.json"
    REPAIR: ClassVar[str] = "Give another --out, or remove the pooled data set beside it to prepare it again."

    dataset: str
    options: dict[str, JsonValue]
