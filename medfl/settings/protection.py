"""What protects a run, as settings: privacy, compression, robust rules, secure aggregation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator


class Remote:
    """Marks a field that a server may set at a site, as ``Annotated[int, Remote]``; without it the site alone may."""


class Strict(BaseModel):
    """A frozen model that refuses unknown keys; the docstring under a field describes it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Privacy(Strict):
    """Differential privacy of what leaves a site, applied by the site itself."""

    unit: Annotated[Literal["site", "sample"], Remote] = "site"
    """Whose data are hidden. ``site``: each update is clipped and noised as it leaves. ``sample``: each image of a
    site, by DP-SGD in its training (Abadi et al., CCS 2016); a patient with several images is hidden less."""

    adjacency: Annotated[Literal["add_remove", "replace"], Remote] = "replace"
    """Neighbouring data: one unit added or removed, or replaced (twice the sensitivity)."""

    epsilon: Annotated[float, Remote] = Field(gt=0, allow_inf_nan=False)
    """Budget over all releases of the run."""

    delta: Annotated[float, Remote] = Field(1e-5, gt=0, lt=1)
    """Probability that the guarantee fails, below one over the number of units."""

    clip: Annotated[float, Remote] = Field(gt=0, allow_inf_nan=False)
    """L2 bound, over all tensors together: of an update, or of the gradient of one image."""

    accountant: Annotated[Literal["gaussian", "prv"], Remote] = "gaussian"
    """``gaussian`` composes Gaussian releases exactly, for the unit ``site``; ``prv`` composes numerically what is
    drawn at random and noised (Gopi, Lee, Wutschitz, NeurIPS 2021), for ``sample``."""

    ledger: Path | None = Field(None, exclude=True)
    """Folder in which each site keeps account of what was released of its data, over all runs. The run's folder always
    has an account of this run alone. Like ``total_epsilon`` it is the site's affair and no part of a run's identity."""

    total_epsilon: float | None = Field(None, gt=0, allow_inf_nan=False, exclude=True)
    """Budget over all runs in the ledger, at least ``epsilon``; None only keeps account."""

    @model_validator(mode="before")
    @classmethod
    def _accountant_of_unit(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("unit") == "sample":
            return {"accountant": "prv"} | values
        return values

    @field_validator("ledger")
    @classmethod
    def _absolute(cls, folder: Path | None) -> Path | None:
        return None if folder is None else folder.resolve()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        fitting = {"site": "gaussian", "sample": "prv"}[self.unit]
        if self.accountant != fitting:
            raise ValueError(f"unit '{self.unit}' is accounted by '{fitting}', got accountant '{self.accountant}'")
        if self.total_epsilon is not None and self.ledger is None:
            raise ValueError("total_epsilon is a budget over several runs and needs 'ledger', a folder that they share")
        if self.total_epsilon is not None and self.total_epsilon < self.epsilon:
            raise ValueError(f"total_epsilon {self.total_epsilon:g} is less than this run's epsilon {self.epsilon:g}")
        return self


class Compression(Strict):
    """Quantisation of updates: each tensor between its minimum and maximum in ``bits`` bits."""

    bits: Annotated[Literal[4, 8, 16], Remote]
    """Bits of a number."""


_Rule = Literal[
    "median", "trimmed_mean", "krum", "multi_krum", "bulyan", "geometric_median", "norm_clip", "centred_clip"
]


class Robust(Strict):
    """What stands in place of the mean of the updates, where some of the sites may be wrong or not honest."""

    rule: Annotated[_Rule, Remote]
    """The rule. All replies of a round count alike, whatever size a site says that it has."""

    f: Annotated[int, Remote] = Field(1, ge=0)
    """How many replies may be anything, of 2f + 1 at least (``krum``, ``multi_krum``: 2f + 3; ``bulyan``: 4f + 3)."""

    iterations: Annotated[int | None, Remote] = Field(None, ge=0)
    """Of ``geometric_median`` (None is 4) and ``centred_clip`` (None is 1)."""

    radius: Annotated[float | None, Remote] = Field(None, gt=0)
    """Of ``norm_clip`` and ``centred_clip``: longest update, or distance from the last mean; None is the median one."""


class SecureAggregation(Strict):
    """What the server learns of the updates: their sum alone (Bonawitz et al., CCS 2017)."""

    threshold: Annotated[int, Remote] = Field(ge=2)
    """How many participants of a round have to stay until its end, more than half of them. It is also how many of them
    are taken to follow the protocol. Two thirds of them is a usual choice."""

    clip: Annotated[float | None, Remote] = Field(None, gt=0, allow_inf_nan=False)
    """L2 bound of a site's update, over all tensors together; a longer one is shortened to it. None is 100, and under
    ``privacy`` the bound that stands there."""

    bits: Annotated[Literal[32, 40], Remote] = 40
    """Bits of a number on its way. 32 are as many as in a plain update, and coarser."""

    largest_size: Annotated[int, Remote] = Field(65_536, ge=1, le=2**20)
    """The most training images that a site may have, where sites weigh by their sizes."""
