"""Base of requests to the sites of a federation that train nothing: for statistics, and for scores of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

from pydantic import ConfigDict, Field

from medfl.errors import RefusedError, SettingsError
from medfl.records.record import Record
from medfl.settings import read_settings
from medfl.version import __version__
from medfl_flare.records.offer import Name, Sites, Text


class SiteRequest(Record):
    """A request to the sites of a federation.

    Attributes:
        bundle: Name of the bundle in the sites' own files.
        medfl: Version of medfl.
        sites: Names of the sites, sorted; empty means that the connected sites are added on submission.
        reply_timeout: Seconds after which a silent site is unavailable, >= 1.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    """Options of pydantic: refuse unknown fields and values of another type, as requests come from other machines."""

    NOUN: ClassVar[str]
    """Kind of request with an article, for messages."""
    INVALID: ClassVar[str]
    """Code of the error for a value that is no JSON object."""

    bundle: Name
    medfl: Text = __version__
    sites: Sites = []
    reply_timeout: int = Field(3600, ge=1, le=10**7)

    @classmethod
    def from_meta(cls, meta: Any) -> Self:
        """Validate an untrusted JSON value strictly and return the request.

        Raises:
            RefusedError: If the value is invalid. The message lists all problems.
        """
        if not isinstance(meta, dict) or not all(isinstance(key, str) for key in meta):
            raise RefusedError(
                cls.INVALID,
                f"Expected a request as a JSON object, got a {type(meta).__name__}.",
                found=type(meta).__name__,
            )
        try:
            return read_settings(cls, meta, cls.NOUN)
        except SettingsError as error:
            raise RefusedError(error.code, str(error)[:2000], **error.fields) from None

    def with_sites(self, sites: Sequence[str]) -> Self:
        """Return a copy of the request for the given sites, in any order.

        Raises:
            RefusedError: If a name is invalid or a duplicate.
        """
        return self.from_meta(self.to_json() | {"sites": sorted(sites)})
