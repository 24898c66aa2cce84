"""Base class of robust aggregation rules, which replace the mean of the updates (setting `medfl.settings.Robust`).

A reply is treated as one vector: its floating parameters, concatenated, in float64. Norms and distances use only this
vector. A selection of replies, or a factor of a reply, also applies to floating buffers; coordinate-wise rules treat
floating buffers as parameters. An integer buffer takes the lower median. All sites have equal weights, because a site
can claim any size. A tensor that a reply lacks counts as zeros. Ties are resolved by the site's name.

A rule bounds the harm of up to f malicious replies. It has a cost without any attack, too: a site with unusual patients
looks like an attacker. Rules also work on updates with noise or quantization.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch

from medfl.contract import Replies, Server
from medfl.errors import SettingsError
from medfl.plugins import look_up
from medfl.settings import Robust
from medfl.types import MODEL_PREFIX, Tensors
from medfl.utils.wire import select

RULE_OPTIONS = ("iterations", "radius")
"""Names of the settings (fields of `medfl.settings.Robust`) that only some rules support."""


class RobustRule(ABC):
    """Rule that computes one update from the updates of all sites.

    Args:
        robust: Setting of the run: the rule's name, f and options.

    Attributes:
        options: Names of the `RULE_OPTIONS` that the rule supports.
        robust: Setting of the run.
    """

    options: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, robust: Robust) -> None:
        self.robust = robust

    @property
    def least_replies(self) -> int:
        """Number of replies that a round needs. With fewer replies, f of them could determine the result."""
        return 1

    @abstractmethod
    def aggregate(self, server: Server, replies: Replies) -> Tensors:
        """Return the aggregate of the floating tensors, in float64.

        Args:
            server: The server. Its state's metadata list the ``parameters``. A rule may store tensors in its state
                (`medfl.toolkit.participant_state`).
            replies: Replies of at least `least_replies` sites.
        """


def make_rule(robust: Robust) -> RobustRule:
    """Return the robust rule of a run.

    Raises:
        PluginError: If no plugin, or more than one, has a rule of that name, or if the rule can't be imported.
    """
    kind: type[RobustRule] = look_up("robust_rule", robust.rule, RobustRule)
    return kind(robust)


def robust_mean(server: Server, replies: Replies, robust: Robust) -> Tensors:
    """Return the rule's aggregate, which replaces the result of `mean_updates`.

    Args:
        server: The server; a rule may store tensors in its state.
        replies: Replies of at least as many sites as the rule needs.
        robust: Setting of the run.

    Returns:
        Mapping from each name to a float64 tensor; integer and boolean buffers take the lower median over the replies.
    """
    return make_rule(robust).aggregate(server, replies) | _lower_medians(replies)


def least_replies(robust: Robust | None) -> int:
    """Return the number of replies that a round needs under a robust rule; 0 without a rule."""
    return 0 if robust is None else make_rule(robust).least_replies


def check_rule(robust: Robust, replies: int) -> None:
    """Raise if a run does not meet the requirements of its robust rule.

    Args:
        robust: Setting of the run.
        replies: Number of sites that take part in a round.

    Raises:
        PluginError: If `make_rule` raises it.
        SettingsError: If the rule needs more replies, or the setting has an option of another rule.
    """
    rule = make_rule(robust)
    for option in RULE_OPTIONS:
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
            f"The robust rule '{robust.rule}' with f = {robust.f} needs {rule.least_replies} replies in a round, got "
            f"{replies} participating sites with training data. Raise 'fraction', lower 'robust.f', or choose another "
            "rule.",
            rule=robust.rule,
            f=robust.f,
            minimum=rule.least_replies,
            found=replies,
        )


def probability_of_more_attackers(sites: int, attackers: int, drawn: int, f: int) -> float:
    """Return the probability that more than f attackers are among the sites drawn for a round.

    Args:
        sites: Number of sites.
        attackers: Number of attackers among the sites.
        drawn: Number of sites that are drawn without replacement.
        f: Maximum number of attackers, as in the setting.
    """
    from scipy.stats import hypergeom  # takes long to import

    return float(hypergeom.sf(f, sites, attackers, drawn))


def _lower_medians(replies: Replies) -> Tensors:
    """Return the lower median of each integer or boolean buffer over the replies that have it."""
    values: dict[str, list[torch.Tensor]] = {}
    for _, tensors in replies:
        for name, tensor in select(tensors, MODEL_PREFIX).items():
            if not tensor.is_floating_point():
                values.setdefault(name, []).append(tensor)
    return {
        name: torch.stack(rows).long().sort(dim=0).values[(len(rows) - 1) // 2].to(rows[0].dtype)
        for name, rows in values.items()
    }
