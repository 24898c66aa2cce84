"""Request for federated statistics: each site computes statistics of its data for a bundle, exact or with noise.

The request involves no method, no code of a bundle and no network. It names the bundle only to identify the data.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from medfl.records.record import Record
from medfl.settings import Privacy, read_settings
from medfl_flare.records.offer import Name
from medfl_flare.records.site_request import SiteRequest

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


class StatisticsRequest(SiteRequest):
    """A request for federated statistics; its bundle identifies the data. `SiteRequest` has further attributes.

    Attributes:
        statistics: Name of the statistics. The same name on the same data gets the same noise and is charged once.
        privacy: Requested noise, or None for exact numbers.
    """

    NOUN: ClassVar[str] = "a request for statistics"
    """Kind of request, for messages."""
    INVALID: ClassVar[str] = "invalid_statistics_request"
    """Code of the error for a value that is no JSON object."""

    statistics: Name
    privacy: NoiseRequest | None = None

    @property
    def run(self) -> str:
        """Name of the request's job: the name of the statistics. `Offer` has an attribute of this name, too."""
        return self.statistics


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
