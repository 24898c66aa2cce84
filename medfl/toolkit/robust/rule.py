"""The base class of robust rules, which stand in place of the mean of updates: the setting `medfl.settings.Robust`.

A reply is one vector: its floating parameters, concatenated, in float64. Norms and distances see nothing else. Buffers
follow: the choice of replies, or the factor of a reply, acts on floating buffers, too, and rules of coordinates treat
them as parameters; an integer buffer takes the lower median. Sites count alike, as sizes are claims of the sender, and
a tensor that a reply lacks counts as zeros. Ties go to the first name.

A rule bounds the harm of up to f replies. It has a price without any attack: a site whose patients differ from those of
all others looks like an attacker. Noise and bits that sites put on updates pass through.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch

from medfl.contract import Replies, Server
from medfl.errors import SettingsError
from medfl.plugins import look_up
from medfl.settings import Robust
from medfl.types import MODEL, Tensors
from medfl.utils.wire import select

OPTIONS = ("iterations", "radius")
"""Settings of single rules."""


class RobustRule(ABC):
    """A rule that computes one update from the updates of all sites.

    Args:
        robust: Setting of the run.

    Attributes:
        options: Those of `OPTIONS` that the rule has.
    """

    options: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, robust: Robust) -> None:
        self.robust = robust

    @property
    def least_replies(self) -> int:
        """Number of replies that a round needs: with fewer, f replies could decide the value alone."""
        return 1

    @abstractmethod
    def aggregate(self, server: Server, replies: Replies) -> Tensors:
        """Return the value of the floating tensors, in float64.

        Args:
            server: Its meta lists the ``parameters``. A rule may keep tensors in its state (`medfl.toolkit.kept`).
            replies: At least `least_replies`.
        """


def rule_of(robust: Robust) -> RobustRule:
    """Return the rule of a run.

    Raises:
        PluginError: If no plugin, or more than one, has a rule of that name, or if it can't be imported.
    """
    kind: type[RobustRule] = look_up("robust_rule", robust.rule, RobustRule)
    return kind(robust)


def robust_mean(server: Server, replies: Replies, robust: Robust) -> Tensors:
    """Return the value of the rule, in place of `mean_updates`.

    Args:
        server: As in `RobustRule.aggregate`.
        replies: As in `RobustRule.aggregate`.
        robust: Setting of the run.

    Returns:
        Maps each name to a float64 tensor; integer and boolean buffers take the lower median over the replies.
    """
    return rule_of(robust).aggregate(server, replies) | _lower_medians(replies)


def least_replies(robust: Robust | None) -> int:
    """Return the number of replies that a round needs, 0 without a rule."""
    return 0 if robust is None else rule_of(robust).least_replies


def check_rule(robust: Robust, replies: int) -> None:
    """Check that a rule can hold.

    Args:
        robust: Setting of the run.
        replies: Number of sites that take part in a round.

    Raises:
        PluginError: As `rule_of` does.
        SettingsError: If the rule needs more replies, or the setting has an option of another rule.
    """
    rule = rule_of(robust)
    for option in OPTIONS:
        if getattr(robust, option) is not None and option not in rule.options:
            raise SettingsError(
                "unsupported_setting",
                f"The robust rule '{robust.rule}' has no option 'robust.{option}'. Leave it out.",
                setting=f"robust.{option}",
                rule=robust.rule,
                options=sorted(rule.options),
            )
    if replies < rule.least_replies:
        raise SettingsError(
            "too_few_replies",
            f"The robust rule '{robust.rule}' with f = {robust.f} needs {rule.least_replies} replies in a round: "
            f"{replies} of the sites with training data take part. Raise 'fraction', lower 'robust.f', or take another "
            "rule.",
            rule=robust.rule,
            f=robust.f,
            minimum=rule.least_replies,
            found=replies,
        )


def chance_of_more(sites: int, attackers: int, drawn: int, f: int) -> float:
    """Return the probability that more than f attackers are among the sites that are drawn for a round.

    Args:
        sites: Number of sites, of which some are drawn without replacement.
        attackers: Number of attackers among the sites.
        drawn: Number of sites that are drawn.
        f: As in the setting.
    """
    from scipy.stats import hypergeom  # takes long to import

    return float(hypergeom.sf(f, sites, attackers, drawn))


def _lower_medians(replies: Replies) -> Tensors:
    """Return the lower median of each integer or boolean buffer over the replies that have it."""
    values: dict[str, list[torch.Tensor]] = {}
    for _, tensors in replies:
        for name, tensor in select(tensors, MODEL).items():
            if not tensor.is_floating_point():
                values.setdefault(name, []).append(tensor)
    return {
        name: torch.stack(rows).long().sort(dim=0).values[(len(rows) - 1) // 2].to(rows[0].dtype)
        for name, rows in values.items()
    }
