"""Schema of a site's privacy account: the releases of a run, and the privacy that all runs on its data spent."""

from __future__ import annotations

import math
from typing import Annotated, Self

from pydantic import Field, model_validator

from medfl.records.ledger import Adjacency
from medfl.records.record import Record
from medfl.utils.field_descriptions import PluginName
from medfl.utils.metadata import MAX_COUNT, Count

Epsilon = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class PrivacyAccount(Record):
    """Releases of one run on a site's data, and the privacy that all runs on the same data spent together.

    A release is one noised value that leaves the site. With the unit ``sample``, the number of a site's images follows
    from `sigma`, `rate` and `steps`. A site withholds these from the server
    (`medfl.privacy.policy.PrivacyPolicy.redact`); then all three are None.

    Attributes:
        unit: Name of the privacy unit, for example ``site``.
        adjacency: Adjacency of the guarantee.
        delta: Delta of the guarantee.
        sigma: Noise multiplier of each step: standard deviation of the noise over the clipping bound. It is infinite if
            there are no steps.
        rate: Probability with which a unit takes part in a step.
        steps: Number of noised steps in one release.
        threshold: Number of sites whose shares add up to the noise, or None if the noise is the site's own.
        planned: Maximum number of releases in the run.
        releases: Number of releases that the run has made.
        stated_epsilon: Privacy budget of the run.
        epsilon: Epsilon of the releases that the run has made, or None if no bound is known.
        composed: Epsilon of all runs together, or None if no bound is known or the site withholds it.
        runs: Number of runs on the same data that have made a release.
        total_epsilon: Privacy budget of all runs together, or None if the site has none.
        ledger: Whether the site keeps a ledger over several runs.
    """

    unit: PluginName
    adjacency: Adjacency
    delta: float = Field(gt=0, lt=1)
    sigma: Annotated[float, Field(ge=0)] | None
    rate: Annotated[float, Field(gt=0, le=1)] | None
    steps: Count | None
    threshold: Annotated[int, Field(ge=1, le=MAX_COUNT)] | None
    planned: Count
    releases: Count
    stated_epsilon: float = Field(gt=0, allow_inf_nan=False)
    epsilon: Epsilon | None
    composed: Epsilon | None
    runs: Count
    total_epsilon: Epsilon | None
    ledger: bool

    @property
    def withholds_noise(self) -> bool:
        """True if noise, sampling rate and steps stayed at the site."""
        return self.sigma is None

    @model_validator(mode="after")
    def _check_noise(self) -> Self:
        if len({value is None for value in (self.sigma, self.rate, self.steps)}) > 1:
            raise ValueError("expected all of sigma, rate and steps, or none of them")
        if self.sigma is not None and math.isinf(self.sigma) and self.steps:
            raise ValueError("expected finite noise for an account with steps")
        return self
