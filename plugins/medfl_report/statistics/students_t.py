"""Student's t distribution, without the checks of `scipy.stats`, which take most of the time of a single value."""

from __future__ import annotations


def quantile(share: float, freedom: int) -> float:
    """Return the value below which Student's t lies with a probability of `share`.

    Args:
        share: Probability in (0, 1).
        freedom: Degrees of freedom, >= 1.
    """
    from scipy.special import stdtrit

    return float(stdtrit(freedom, share))


def two_sided_p(value: float, freedom: int) -> float:
    """Return the probability that Student's t lies at least as far from 0 as a value.

    Args:
        value: Observed value of the statistic.
        freedom: Degrees of freedom, >= 1.
    """
    from scipy.special import stdtr

    return 2 * float(stdtr(freedom, -abs(value)))
