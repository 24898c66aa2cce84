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
"""Type of an epsilon: finite and at least 0."""


class PrivacyAccount(Record):
    """Releases of one run on a site's data, and the privacy that all runs on the same data spent together.

    A release is one noised value that leaves the site. The privacy unit is the part of the data that the guarantee
    hides, a site or an image (``sample``). A ledger is a file that lists the releases of one data set. With the unit
    ``sample``, the number of a site's images follows from `sigma`, `rate` and `steps`. A site withholds these from the
    server (`medfl.privacy.policy.PrivacyPolicy.redact`); then all three are None,
    and `epsilon` and `composed` are replaced by the budgets, which are public.

    Attributes:
        unit: Name of the privacy unit, for example ``site``.
        adjacency: Adjacency of the guarantee.
        delta: Delta of the guarantee.
        sigma: Noise multiplier of each step: standard deviation of the noise over the clipping bound. It is infinite if
            there are no steps.
        rate: Probability with which a privacy unit takes part in a step, in (0, 1]; 1 without subsampling.
        steps: Number of noised steps in one release: the steps of one training by DP-SGD, or 1 for an update or a sum.
        threshold: Number of sites whose shares of noise together make up the noise of a sum under secure aggregation;
            None if the site adds the full noise itself.
        planned: Maximum number of releases in the run.
        releases: Number of releases that the run has made.
        stated_epsilon: Privacy budget of the run, as its settings state it: epsilon of all planned releases together.
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
