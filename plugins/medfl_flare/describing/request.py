"""What the server asks each site before a training: to describe its data for a bundle, in exact numbers or with noise.

No method, no bundle's code and no network is involved; the request names the bundle only to say which data are meant.
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

KIND = "describe"
"""Kind of the message, and the key by which a job's content is known to be a request."""


class Wanted(Record):
    """The noise that is wanted, for all numbers of a site's description together; its unit is one training image.

    Attributes:
        epsilon: Budget, > 0.
        delta: In (0, 1).
        adjacency: Whether data sets are compared that have one image more, or another one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    epsilon: float = Field(gt=0, allow_inf_nan=False)
    delta: float = Field(1e-5, gt=0, lt=1)
    adjacency: Literal["add_remove", "replace"] = "replace"


class Request(Record):
    """A request for descriptions.

    Attributes:
        describe: Name of the description; the same name on the same data gets the same noise, and is charged once.
        bundle: As in the sites' own files: which data are meant.
        medfl: Version of medfl.
        sites: Names, sorted; empty means that whoever submits fills in the connected ones.
        privacy: The noise that is wanted, or None for exact numbers.
        answer_timeout: Seconds after which a silent site counts as missing, >= 1.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    describe: Name
    bundle: Name
    medfl: Text = __version__
    sites: Sites = []
    privacy: Wanted | None = None
    answer_timeout: int = Field(3600, ge=1, le=10**7)

    @property
    def run(self) -> str:
        """What its job is called."""
        return self.describe

    @classmethod
    def from_meta(cls, meta: Any) -> Request:
        """Return the request in JSON values from anybody, validated strictly.

        Raises:
            RefusedError: With all that is wrong.
        """
        if not isinstance(meta, dict) or not all(isinstance(key, str) for key in meta):
            raise RefusedError(
                "invalid_description_request",
                f"Expected a request as an object with names, got a {type(meta).__name__}.",
                found=type(meta).__name__,
            )
        try:
            return read_settings(cls, meta, "a request for a description")
        except SettingsError as error:
            raise RefusedError(error.code, str(error)[:2000], **error.fields) from None

    def with_sites(self, sites: Sequence[str]) -> Request:
        """Return the same request for the sites of these names, in any order.

        Raises:
            RefusedError: If a name is not valid or there twice.
        """
        return Request.from_meta(self.to_json() | {"sites": sorted(sites)})


def is_request(meta: Any) -> bool:
    """Whether a job's content is a request for descriptions, and no offer of a run."""
    return isinstance(meta, dict) and KIND in meta


def settings_of(wanted: Wanted) -> Privacy:
    """The privacy that is wanted, as a run has it; its clip is not used.

    Raises:
        SettingsError: If it is not possible.
    """
    values = wanted.model_dump() | {"unit": "sample", "clip": 1.0}
    return read_settings(Privacy, values, "the privacy of a description")
