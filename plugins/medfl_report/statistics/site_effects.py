"""Effect of a method over sites by a linear mixed model: score ~ method + (1 | site)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from medfl.errors import SettingsError, pip_install
from medfl_report.statistics.intervals import Interval
from medfl_report.statistics.procedures import MIN_SITES


@dataclass(frozen=True)
class SiteScore:
    """A score of a method at a site, in one run or for one patient.

    Attributes:
        site: Name of the site.
        method: Name of the method.
        value: Score, or 1 if the patient is classified correctly and else 0.
    """

    site: str
    method: str
    value: float


@dataclass(frozen=True)
class SiteEffects:
    """Estimates of a mixed model.

    Attributes:
        effect: Effect of the method against the reference, with its 95 % Wald interval.
        p: Two-sided p-value of the effect.
        site_std: Standard deviation of the sites' intercepts.
        residual_std: Standard deviation of the residuals.
    """

    effect: Interval
    p: float
    site_std: float
    residual_std: float


def site_effects(scores: Sequence[SiteScore], method: str, reference: str) -> SiteEffects:
    """Fit score ~ method + (1 | site) by restricted maximum likelihood.

    Source: Laird and Ware 1982, Random-effects models for longitudinal data.

    Args:
        scores: Scores of both methods; other methods are ignored.
        method: Name of the method.
        reference: Name of the reference.

    Raises:
        SettingsError: If statsmodels is not installed, a method has no score, or there are fewer than `MIN_SITES`
            sites.
    """
    chosen = [score for score in scores if score.method in (method, reference)]
    sites = sorted({score.site for score in chosen})
    if len(sites) < MIN_SITES or {score.method for score in chosen} != {method, reference}:
        raise SettingsError(
            "too_few_sites",
            f"A mixed model of '{method}' against '{reference}' needs scores of both at {MIN_SITES} or more sites, got "
            f"{len(chosen)} scores at {len(sites)} sites. Compare fewer sites one by one.",
            sites=len(sites),
            minimum=MIN_SITES,
        )
    import numpy as np

    model = _load_statsmodels().MixedLM(
        np.array([score.value for score in chosen]),
        np.array([[1.0, score.method == method] for score in chosen]),
        groups=np.array([score.site for score in chosen]),
    )
    fit = model.fit(reml=True)
    low, high = fit.conf_int()[1]
    return SiteEffects(
        effect=Interval(float(fit.fe_params[1]), float(low), float(high)),
        p=float(fit.pvalues[1]),
        site_std=math.sqrt(max(0.0, float(fit.cov_re[0][0]))),
        residual_std=math.sqrt(float(fit.scale)),
    )


def _load_statsmodels() -> Any:
    """Import the regression models of statsmodels.

    Raises:
        SettingsError: If statsmodels is not installed.
    """
    try:
        from statsmodels.regression import mixed_linear_model
    except ModuleNotFoundError as error:
        raise SettingsError(
            "missing_package",
            f"A mixed model needs statsmodels, which is not installed. Install the extra: {pip_install('statistics')}.",
            package="statsmodels",
            extra="statistics",
        ) from error
    return mixed_linear_model
