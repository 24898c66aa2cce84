"""Base classes of records: immutable data with named, validated fields, and the JSON files that hold them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from medfl.errors import MedflError, StoreError, validation_message
from medfl.utils.files import json_bytes, write_atomic

CHECKSUM = "sha256"
"""Key of the checksum in a file with a checksum (`FileRecord.HAS_CHECKSUM`)."""


MAX_PLACE = 200
"""Maximum number of characters with which a message names the place (key path) of an error in a damaged file."""


class Record(BaseModel):
    """Immutable data with named, validated fields, which can be part of a file."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    """Configuration of pydantic: objects are immutable, and unknown fields are errors."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields of the record by name, as JSON values."""
        return self.model_dump(mode="json")


class FileRecord(Record):
    """The content of a JSON file.

    Attributes:
        NAME: Name of the file in its folder.
        VERSION: Version of the format, which the file contains. Reading a file with another version raises an error.
        HAS_CHECKSUM: Whether the file holds a checksum of its other content, which the reader verifies.
        REPAIR: Sentence that tells a user what to do about a damaged file.
        ERROR: Class of the errors that the reader raises.
    """

    NAME: ClassVar[str]
    VERSION: ClassVar[int] = 1
    HAS_CHECKSUM: ClassVar[bool] = False
    REPAIR: ClassVar[str] = "Put it back from a copy."
    ERROR: ClassVar[type[MedflError]] = StoreError

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read and validate a file.

        Args:
            path: Path of the file.

        Raises:
            MedflError: An `ERROR` with the code ``missing_file``, ``unreadable_file``, ``damaged_file`` or
                ``other_version``. Its message names the place in the file and never a value of the file.
        """
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise cls.ERROR("missing_file", f"expected the file '{path}', there is none.", path=path) from None
        except OSError as error:
            raise cls.ERROR(
                "unreadable_file",
                f"'{path}' can't be read: {error.strerror}. Change its permissions.",
                path=path,
                reason=error.strerror,
            ) from error
        return cls.from_bytes(content, path)

    @classmethod
    def from_bytes(cls, content: bytes, path: Path) -> Self:
        """Validate the content of a file.

        Args:
            content: Bytes of the file.
            path: Path of the file, for messages.

        Raises:
            MedflError: An `ERROR` with the code ``damaged_file`` or ``other_version``.
        """
        try:
            values = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise cls._damaged(path, f"it is not JSON ({type(error).__name__})") from None
        if not isinstance(values, dict):
            raise cls._damaged(path, f"expected an object, got {type(values).__name__}")
        if cls.HAS_CHECKSUM:
            checksum = values.pop(CHECKSUM, None)
            if checksum != checksum_of(values):
                raise cls._damaged(path, "it does not match its own checksum")
        if (version := values.pop("version", None)) != cls.VERSION:
            raise cls.ERROR(
                "other_version",
                f"'{path}' has version {version!r} of its format, but this medfl reads version {cls.VERSION}. Use the "
                "version of medfl that wrote it.",
                path=path,
                expected=cls.VERSION,
                found=repr(version),
            )
        try:
            return cls.model_validate_json(json.dumps(values), strict=True)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"])[:MAX_PLACE]
            raise cls._damaged(path, f"at '{where}': {validation_message(first)}", key=where) from None

    def write(self, path: Path) -> None:
        """Write the file atomically, and replace an existing file.

        Args:
            path: Path of the file.

        Raises:
            StoreError: If the file can't be written.
        """
        write_atomic(path, self.to_bytes())

    def to_bytes(self) -> bytes:
        """Return the content of the file: indented JSON with sorted keys, the version and the checksum."""
        values = self.to_json() | {"version": self.VERSION}
        if self.HAS_CHECKSUM:
            values |= {CHECKSUM: checksum_of(values)}
        return json_bytes(values)

    @classmethod
    def _damaged(cls, path: Path, cause: str, **fields: str) -> MedflError:
        return cls.ERROR(
            "damaged_file", f"'{path}' is damaged: {cause}. {cls.REPAIR}", path=path, cause=cause, **fields
        )


def checksum_of(values: dict[str, Any]) -> str:
    """Return the SHA-256 of JSON values, in a form that does not depend on the order of the keys."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
