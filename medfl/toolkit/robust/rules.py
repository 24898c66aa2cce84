"""Robust rules as functions of numbers alone."""

from __future__ import annotations

import torch

from medfl.errors import SettingsError
from medfl.settings import Robust

SMOOTHING = 1e-6
"""Least distance in the weights of the geometric median (Pillutla et al., section IV)."""

OWN = {
    "iterations": ("geometric_median", "centred_clip"),
    "radius": ("norm_clip", "centred_clip"),
}
"""Setting to the rules that have it."""


def least_replies(robust: Robust | None) -> int:
    """How many replies a round needs: below, f replies could decide alone what comes out. 0 without a rule."""
    if robust is None:
        return 0
    f = robust.f
    least = {
        "median": 2 * f + 1,
        "trimmed_mean": 2 * f + 1,
        "krum": 2 * f + 3,
        "multi_krum": 2 * f + 3,
        "bulyan": 4 * f + 3,
        "geometric_median": 2 * f + 1,
    }
    return least.get(robust.rule, 1)


def check_rule(robust: Robust, replies: int) -> None:
    """Refuse a rule that can't hold.

    Args:
        robust: The rule.
        replies: How many sites are ordered in a round.

    Raises:
        SettingsError: If it needs more replies, or has a setting of another rule.
    """
    for name, rules in OWN.items():
        if getattr(robust, name) is not None and robust.rule not in rules:
            raise SettingsError(
                "unsupported_setting",
                f"'robust.{name}' is a setting of the rule {' and '.join(rules)}, and the rule is '{robust.rule}'. "
                "Leave it out.",
                setting=f"robust.{name}",
                rule=robust.rule,
                rules=list(rules),
            )
    if replies < least_replies(robust):
        raise SettingsError(
            "too_few_replies",
            f"The robust rule '{robust.rule}' with f = {robust.f} needs {least_replies(robust)} replies in a round: "
            f"{replies} of the sites with training data take part. Raise 'fraction', lower 'robust.f', or take another "
            "rule.",
            rule=robust.rule,
            f=robust.f,
            minimum=least_replies(robust),
            found=replies,
        )


def chance_of_more(sites: int, attackers: int, drawn: int, f: int) -> float:
    """How likely more than f attackers are among the sites that are drawn for a round, without replacement; in [0, 1].

    Args:
        sites: Of which sites are drawn.
        attackers: How many of these attack.
        drawn: How many are drawn.
        f: As in the setting.
    """
    from scipy.stats import hypergeom  # takes long to import

    return float(hypergeom.sf(f, sites, attackers, drawn))


# ---- rules that weigh replies


def reply_weights(squares: torch.Tensor, robust: Robust) -> torch.Tensor:
    """Weights of the replies in the rule's value, a weighted sum.

    Args:
        squares: (n + 1, n + 1) float64, squared distances of n replies and, last, of the centre: what centred_clip
            kept, and zero for the rest.
        robust: The rule: krum, multi_krum, geometric_median, norm_clip or centred_clip.

    Returns:
        (n + 1,) float64: of the replies, and of the centre.

    Sources: krum, multi_krum: Blanchard, El Mhamdi, Guerraoui, Stainer, NeurIPS 2017, section 4; geometric_median:
    Pillutla, Kakade, Harchaoui, IEEE TSP 2022, Algorithm 2; norm_clip: Sun, Kairouz, Suresh, McMahan, arXiv 1911.07963;
    centred_clip: Karimireddy, He, Jaggi, ICML 2021, Algorithm 2.
    """
    n = len(squares) - 1
    among = squares[:n, :n]
    weights = torch.zeros(n + 1, dtype=torch.float64)
    if robust.rule in ("krum", "multi_krum"):
        best = 1 if robust.rule == "krum" else n - robust.f - 2
        chosen = krum_scores(among, robust.f).sort(stable=True).indices[:best]
        weights[chosen] = 1 / best
    elif robust.rule == "geometric_median":
        weights[:n] = 1 / n
        for _ in range(4 if robust.iterations is None else robust.iterations):
            pulls = 1 / distances_from(weights, squares)[:n].clamp(min=SMOOTHING)
            weights[:n] = pulls / pulls.sum()
    else:
        weights[n] = 1.0
        for _ in range(1 if robust.iterations is None or robust.rule == "norm_clip" else robust.iterations):
            lengths = distances_from(weights, squares)[:n]
            radius = middle(lengths.sort().values) if robust.radius is None else torch.tensor(robust.radius).double()
            factors = torch.where(lengths > radius, radius / lengths, 1.0)
            weights = weights * (1 - factors.mean())
            weights[:n] += factors / n
    return weights


def krum_scores(squares: torch.Tensor, f: int, least: int = 0) -> torch.Tensor:
    """Krum's score of each of n replies: the sum of the squared distances to the n - f - 2 nearest others.

    Args:
        squares: (n, n), squared distances.
        f: As in the setting.
        least: So many of the nearest are summed at least.
    """
    nearest = max(len(squares) - f - 2, least)
    others = squares.clone().fill_diagonal_(torch.inf).sort(dim=1).values
    return others[:, :nearest].sum(dim=1)


def distances_from(weights: torch.Tensor, squares: torch.Tensor) -> torch.Tensor:
    """Distances of points from their weighted sum; the weights sum to 1.

    |sum w_j x_j - x_i|^2 = sum w_j d_ij - (1/2) sum w_j w_k d_jk, with squared distances d.
    """
    return (squares @ weights - weights @ squares @ weights / 2).clamp(min=0).sqrt()


# ---- rules that look at each coordinate


def median(rows: torch.Tensor) -> torch.Tensor:
    """The median of each column (Yin, Chen, Ramchandran, Bartlett, ICML 2018); of an even count the mean of two."""
    return middle(rows.sort(dim=0).values)


def middle(ordered: torch.Tensor) -> torch.Tensor:
    """The median of columns that are sorted."""
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def trimmed_mean(rows: torch.Tensor, f: int) -> torch.Tensor:
    """The mean of each column without its f highest and f lowest values (Yin et al., ICML 2018)."""
    return rows.sort(dim=0).values[f : len(rows) - f].mean(dim=0)


def bulyan_choice(squares: torch.Tensor, f: int) -> list[int]:
    """The n - 2f replies that Bulyan chooses, in turn the best by Krum of those that are left.

    Args:
        squares: (n, n), squared distances; n is at least 4f + 3.
        f: As in the setting.

    Source: El Mhamdi, Guerraoui, Rouault, ICML 2018, section 4.
    """
    left, chosen = list(range(len(squares))), list[int]()
    while len(chosen) < len(squares) - 2 * f:
        scores = krum_scores(squares[left][:, left], f, least=1)
        chosen.append(left.pop(int(scores.sort(stable=True).indices[0])))
    return chosen


def mean_near_median(rows: torch.Tensor, count: int) -> torch.Tensor:
    """The mean of the `count` values of each column that are nearest to its median."""
    nearest = (rows - median(rows)).abs().sort(dim=0, stable=True).indices[:count]
    return rows.gather(0, nearest).mean(dim=0)
