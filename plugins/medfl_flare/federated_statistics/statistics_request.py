"""Request for federated statistics: each site computes statistics of its data for a bundle, exact or with noise.

The request involves no method, no code of a bundle and no network. It names the bundle only to identify the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import ConfigDict, Field

from medfl.errors import RefusedError, SettingsError
from medfl.records.record import Record
from medfl.settings import Privacy, read_settings
from medfl.version import __version__
from medfl_flare.records.offer import Name, Sites, Text

KIND = "statistics"
"""Kind of the message with a request to a site. A job's content with this key is a request, and not an offer of a
run."""


class NoiseRequest(Record):
    """Requested noise for all numbers of a site's statistics together; the unit of privacy is one training image.

    Attributes:
        epsilon: Privacy budget, > 0.
        delta: Probability that the guarantee fails, in (0, 1).
        adjacency: Definition of neighbouring data sets. ``add_remove``: one image is added or removed. ``replace``: one
            image is replaced by another.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    """Options of pydantic: refuse unknown fields and values of another type, as requests come from other machines."""

    epsilon: float = Field(gt=0, allow_inf_nan=False)
    delta: float = Field(1e-5, gt=0, lt=1)
    adjacency: Literal["add_remove", "replace"] = "replace"


class StatisticsRequest(Record):
    """A request for federated statistics.

    Attributes:
        statistics: Name of the statistics. The same name on the same data gets the same noise and is charged once.
        bundle: Name of the bundle in the sites' own files; identifies the data.
        medfl: Version of medfl.
        sites: Names of the sites, sorted; empty means that the connected sites are added on submission.
        privacy: Requested noise, or None for exact numbers.
        reply_timeout: Seconds after which a silent site is unavailable, >= 1.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    """Options of pydantic: refuse unknown fields and values of another type, as requests come from other machines."""

    statistics: Name
    bundle: Name
    medfl: Text = __version__
    sites: Sites = []
    privacy: NoiseRequest | None = None
    reply_timeout: int = Field(3600, ge=1, le=10**7)

    @property
    def run(self) -> str:
        """Name of the request's job: the name of the statistics. `Offer` has an attribute of this name, too."""
        return self.statistics

    @classmethod
    def from_meta(cls, meta: Any) -> StatisticsRequest:
        """Validate an untrusted JSON value strictly and return the request.

        Raises:
            RefusedError: If the value is invalid. The message lists all problems.
        """
        if not isinstance(meta, dict) or not all(isinstance(key, str) for key in meta):
            raise RefusedError(
                "invalid_statistics_request",
                f"Expected a request as a JSON object, got a {type(meta).__name__}.",
                found=type(meta).__name__,
            )
        try:
            return read_settings(cls, meta, "a request for statistics")
        except SettingsError as error:
            raise RefusedError(error.code, str(error)[:2000], **error.fields) from None

    def with_sites(self, sites: Sequence[str]) -> StatisticsRequest:
        """Return a copy of the request for the given sites, in any order.

        Raises:
            RefusedError: If a name is invalid or a duplicate.
        """
        return StatisticsRequest.from_meta(self.to_json() | {"sites": sorted(sites)})


def is_statistics_request(meta: Any) -> bool:
    """Return whether the content of a job is a request for federated statistics, and not an offer of a run."""
    return isinstance(meta, dict) and KIND in meta


def privacy_settings(wanted: NoiseRequest) -> Privacy:
    """Return the requested noise as the privacy setting of a run; its clipping bound is not used.

    Raises:
        SettingsError: If the setting is invalid.
    """
    values = wanted.model_dump() | {"unit": "sample", "clip": 1.0}
    return read_settings(Privacy, values, "the privacy of the statistics")
