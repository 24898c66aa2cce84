"""Which runs secure aggregation is possible for; the others are refused by name, with what would do."""

from __future__ import annotations

from collections.abc import Sequence

from medfl.contract import Capability, Method
from medfl.engine.secure.keys import primitives
from medfl.errors import SettingsError
from medfl.privacy.policy import policy_of
from medfl.settings import Settings, participants


def check_secure(name: str, method: Method, settings: Settings, sites: Sequence[str], server: tuple[str, str]) -> None:
    """Refuse secure aggregation with a method whose server makes more of replies than one mean, or such settings.

    Args:
        name: The method's.
        method: It.
        settings: The run's.
        sites: Names of the sites.
        server: How the server differs from one that averages updates: a code and a sentence.

    Raises:
        SettingsError: If it is set and not possible.
    """
    secure = settings.secure_aggregation
    if secure is None:
        return
    if Capability.ROBUST not in method.active_supports or {*method.sends.values()} != {"update"}:
        cause, beside = server
        raise SettingsError(
            "method_not_supported",
            f"Secure aggregation gives the server the sum of all updates and nothing else, and method '{name}', with "
            f"these settings, has another server: {beside}. Choose a method that averages updates and nothing beside "
            "them, such as fedavg, fedprox or fedavgm, or leave 'secure_aggregation' out.",
            feature="secure_aggregation",
            method=name,
            cause=cause,
            sends=dict(method.sends),
        )
    if method.filters():
        raise SettingsError(
            "method_not_supported",
            f"Method '{name}' encodes its updates, and sums of encoded updates are none. Choose another method or "
            "setting of it, or leave 'secure_aggregation' out.",
            feature="secure_aggregation",
            method=name,
            cause="filters",
        )
    if needed := sorted(fact for fact, field in method.sends_meta.items() if field.visibility == "needed"):
        raise SettingsError(
            "method_not_supported",
            f"Method '{name}' needs each site's {', '.join(needed)}, and under secure aggregation the server learns "
            "sums alone. Choose another method, or leave 'secure_aggregation' out.",
            feature="secure_aggregation",
            method=name,
            cause="metadata",
            needed=needed,
        )
    _check_others(settings)
    threshold, count = secure.resolved_threshold, participants(len(sites), settings.fraction)
    if not count // 2 < threshold <= count:
        raise SettingsError(
            "setting_out_of_range",
            f"'secure_aggregation.threshold' is {threshold}, and {count} of the run's {len(sites)} sites take part in "
            f"a round: expected {count // 2 + 1} to {count}, as with {count // 2} or fewer the server could have two "
            "halves reveal different shares. Leave it out for the smallest number above two thirds.",
            setting="secure_aggregation.threshold",
            found=threshold,
            minimum=count // 2 + 1,
            maximum=count,
        )
    primitives("hazmat")


def _check_others(settings: Settings) -> None:
    """Refuse settings that look at single updates, or change them after they were masked."""
    if settings.robust is not None:
        raise SettingsError(
            "incompatible_settings",
            f"The robust rule '{settings.robust.rule}' compares the updates of single sites, and under secure "
            "aggregation the server sees none of them. Choose one of the two.",
            settings=["robust", "secure_aggregation"],
        )
    if settings.compression is not None:
        raise SettingsError(
            "incompatible_settings",
            "'compression' gives each update a scale of its own, and numbers of unlike scales have no sum. Secure "
            "aggregation has 'secure_aggregation.bits' in its place: leave 'compression' out.",
            settings=["compression", "secure_aggregation"],
        )
    if settings.adversaries:
        raise SettingsError(
            "incompatible_settings",
            "'poison' changes replies on their way, and masked ones can't be changed in any useful way: leave it or "
            "'secure_aggregation' out.",
            settings=["adversaries", "secure_aggregation"],
        )
    policy_of(settings).check_secure_aggregation()
