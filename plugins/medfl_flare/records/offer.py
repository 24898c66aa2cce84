"""Record of an offered run. The researcher's job brings the offer to the server, which sends it to the sites.

Each receiver validates the offer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field

from medfl.errors import RefusedError, SettingsError
from medfl.records.record import Record
from medfl.settings import read_settings
from medfl.utils.text import name_problem

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
"""Pattern of the names of runs and bundles."""

MAX_PROBLEM = 2000
"""Maximum number of characters of an error message about an offer, as an untrusted offer may contain long texts."""


def _unique_and_sorted(sites: list[str]) -> list[str]:
    """Raise if site names are invalid, unsorted or duplicate."""
    if problem := name_problem(sites):
        raise ValueError(problem)
    if sites != sorted(set(sites)):
        raise ValueError("expected sorted names of sites without duplicates")
    return sites


Name = Annotated[str, Field(pattern=NAME)]
"""Type of the name of a run or bundle."""

Sites = Annotated[list[str], Field(max_length=10_000), AfterValidator(_unique_and_sorted)]
"""Type of a sorted list of site names without duplicates."""

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""Type of a SHA-256 in hexadecimal."""

Text = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[ -~]*$")]
"""Type of a short text of printable ASCII characters."""


class Offer(Record):
    """An offered run: everything in which server and sites must agree.

    Attributes:
        run: Name of the run; an offer with the name of an earlier run continues it.
        bundle: Name of the bundle, as in each participant's own file.
        bundle_version: ``version`` in the bundle's metadata.
        bundle_hash: Hash of the bundle's configurations and code (`medfl.bundle.bundle_folders.bundle_hash`), 64
            hexadecimal digits.
        medfl: Version of medfl.
        method: Name of the method.
        method_version: Version of the method (`medfl_flare.offer.method_version`).
        overrides: Maps ids of the bundle's configurations to the values that replace those in the bundle's files.
        sites: Names of the sites, sorted; empty means that the connected sites are added on submission.
        reply_timeout: Seconds without progress of a site's work after which the site is unavailable, >= 1.
        given_by: Where the overrides come from, for the record.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    """Options of pydantic: refuse unknown fields and values of another type, as offers come from other machines."""

    run: Name
    bundle: Name
    bundle_version: Text
    bundle_hash: Digest
    medfl: Text
    method: Text
    method_version: Text
    overrides: dict[str, Any] = {}
    sites: Sites = []
    reply_timeout: int = Field(3600, ge=1, le=10**7)
    given_by: Text = "command line"

    @classmethod
    def from_meta(cls, meta: Any) -> Offer:
        """Validate an untrusted JSON value strictly and return the offer.

        Args:
            meta: Values of `to_json`. The values of the overrides are compared with the bundle later, by
                `medfl_flare.overrides.check_overrides`.

        Raises:
            RefusedError: If the value is invalid. The message lists all problems.
        """
        if not isinstance(meta, dict) or not all(isinstance(key, str) for key in meta):
            raise RefusedError(
                "invalid_offer",
                f"Expected an offer as a JSON object, got a {type(meta).__name__}.",
                found=type(meta).__name__,
            )
        try:
            json.dumps(meta, allow_nan=False)
            return read_settings(cls, meta, "an offered run")
        except SettingsError as error:
            raise RefusedError(error.code, _short(str(error)), **error.fields) from None
        except (TypeError, ValueError, RecursionError) as error:
            raise RefusedError(
                "invalid_json", f"Expected an offer that is JSON, got one that is not: {_short(str(error))}."
            ) from None

    def with_sites(self, sites: Sequence[str]) -> Offer:
        """Return a copy of the offer for the given sites, in any order.

        Raises:
            RefusedError: If a name is invalid or a duplicate.
        """
        return Offer.from_meta(self.to_json() | {"sites": sorted(sites)})


def _short(text: str) -> str:
    """Return a text, truncated to `MAX_PROBLEM` characters."""
    return text if len(text) <= MAX_PROBLEM else text[:MAX_PROBLEM] + " ..."
