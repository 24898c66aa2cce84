"""Schema, reader and writer of privacy budget ledgers.

A ledger is a file of a site that lists, for each run on one data set, the releases of that run. A release is one noised
value that leaves the site. The privacy unit of a run is the part of the data that its guarantee hides: a site or one
image.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from medfl.errors import StoreError
from medfl.records.record import FileRecord, Record
from medfl.utils.field_descriptions import PluginName

Adjacency = Literal["add_remove", "replace"]
"""Adjacency of data sets: neighbours differ in one unit that is added or removed, or replaced by any other."""

Mechanism = Literal["gaussian", "poisson-subsampled gaussian", "distributed discrete gaussian"]
"""Mechanism of a release.

``gaussian``: one site adds Gaussian noise. ``poisson-subsampled gaussian``: each step draws the images at random (as in
DP-SGD) and adds Gaussian noise. ``distributed discrete gaussian``: several sites add shares of discrete Gaussian noise
to one sum.
"""


class LedgerEntry(Record):
    """Entry of a ledger: the releases that one run made of a data set, and their noise.

    Attributes:
        unit: Name of the privacy unit, for example ``site``.
        mechanism: Mechanism of the releases.
        adjacency: Adjacency of the run's guarantee.
        sigma: Noise multiplier of each step: standard deviation of the noise over the clipping bound. It is infinite if
            there are no steps.
        rate: Probability with which a privacy unit takes part in a step, in (0, 1]; 1 without subsampling.
        steps: Number of noised steps in one release: the steps of one training by DP-SGD, or 1 for an update or a sum.
        delta: Delta of the run's guarantee.
        epsilon: Privacy budget of the run: the epsilon that all planned releases together may spend.
        planned: Maximum number of releases in the run.
        releases: Identifiers of the releases, in the order in which they were made. An identifier contains the round
            and a hash of the values that determine the release, so that a repeated release is recognised.
        threshold: Number of sites whose shares of noise together make up the noise of a sum under secure aggregation;
            None if the site adds the full noise itself.
    """

    unit: PluginName
    mechanism: Mechanism
    adjacency: Adjacency
    sigma: float = Field(ge=0)
    rate: float = Field(gt=0, le=1)
    steps: int = Field(ge=0)
    delta: float = Field(gt=0, lt=1)
    epsilon: float = Field(gt=0, allow_inf_nan=False)
    planned: int = Field(ge=0)
    releases: tuple[str, ...]
    threshold: Annotated[int, Field(ge=1)] | None

    @model_validator(mode="after")
    def _check_noise(self) -> Self:
        if math.isinf(self.sigma) and self.steps:
            raise ValueError("expected finite noise for an entry with steps")
        if (self.mechanism == "poisson-subsampled gaussian") != (self.rate < 1):
            raise ValueError("expected a rate below 1 for the subsampled mechanism, and 1 for any other")
        return self


class Ledger(FileRecord):
    """Content of a ledger file: the releases of one data set over all runs, or the releases of one run.

    The file of one run is in the site's folder of the run and has the name `NAME`. With a ledger over several runs,
    which is named after the fingerprint of its data, the file of the run is a copy of one entry of that ledger.

    Attributes:
        entries: Maps the key of each run to its entry. `medfl.privacy.ledger.Account.key` computes the key.
        copy_of: Path of the ledger if the file is a copy of one of its entries, otherwise None.
    """

    NAME: ClassVar[str] = "privacy.json"
    """Name of the file in a site's folder of a run."""
    HAS_CHECKSUM: ClassVar[bool] = True
    """Whether the file holds a checksum of its other content, which the reader verifies."""

    entries: dict[str, LedgerEntry] = {}
    copy_of: Path | None = None

    @classmethod
    def load(cls, path: Path, site: str) -> Self:
        """Read the ledger of a site. The ledger is empty if there is no file.

        Args:
            path: Path of the file.
            site: Name of the site, for messages.

        Raises:
            StoreError: If the file is damaged, unreadable or of another version, with the code ``damaged_file``,
                ``unreadable_file`` or ``other_version``.
        """
        try:
            return cls.read(path)
        except StoreError as error:
            if error.code == "missing_file":
                return cls()
            raise StoreError(
                error.code,
                f"{error} This is the privacy ledger of site '{site}', which lists all releases of its data. The site "
                "releases nothing until the file can be read again or is restored from a copy.",
                **(error.fields | {"site": site}),
            ) from error
