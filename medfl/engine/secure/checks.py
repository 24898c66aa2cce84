"""Check before a run that secure aggregation is possible with its method and settings."""

from __future__ import annotations

from collections.abc import Sequence

from medfl.contract import Capability, Method
from medfl.engine.secure.keys import primitives
from medfl.errors import SettingsError
from medfl.privacy.policy import policy_of
from medfl.settings import Settings, participant_count


def check_secure(name: str, method: Method, settings: Settings, sites: Sequence[str], server: tuple[str, str]) -> None:
    """Check that secure aggregation is possible, if the settings ask for it.

    Secure aggregation gives the server only the sum of all updates. It is possible if the server computes one mean of
    all updates and uses nothing else from the replies.

    Args:
        name: Name of the method.
        method: The method.
        settings: Settings of the run.
        sites: Names of the sites.
        server: Difference between the method's aggregation and a mean of updates, as (code, clause for messages).

    Raises:
        SettingsError: If secure aggregation is not possible, or the package ``cryptography`` is not installed.
    """
    secure = settings.secure_aggregation
    if secure is None:
        return
    if Capability.ROBUST not in method.active_supports or {*method.sends.values()} != {"update"}:
        cause, aggregation = server
        raise SettingsError(
            "method_not_supported",
            f"Secure aggregation gives the server the sum of all updates and nothing else, but method '{name}', with "
            f"these settings, aggregates in another way: {aggregation}. Choose a method that averages updates and "
            "nothing else, such as fedavg, fedprox or fedavgm, or leave 'secure_aggregation' out.",
            feature="secure_aggregation",
            method=name,
            cause=cause,
            sends=dict(method.sends),
        )
    if method.filters():
        raise SettingsError(
            "method_not_supported",
            f"Method '{name}' encodes its updates, and encoded updates can't be summed. Choose another method or "
            "setting of it, or leave 'secure_aggregation' out.",
            feature="secure_aggregation",
            method=name,
            cause="filters",
        )
    if needed := sorted(fact for fact, field in method.sends_meta.items() if field.visibility == "needed"):
        raise SettingsError(
            "method_not_supported",
            f"Method '{name}' needs the metadata {', '.join(needed)} of each site, but under secure aggregation the "
            "server learns only sums. Choose another method, or leave 'secure_aggregation' out.",
            feature="secure_aggregation",
            method=name,
            cause="metadata",
            needed=needed,
        )
    _check_others(settings)
    threshold, count = secure.resolved_threshold, participant_count(len(sites), settings.fraction)
    if not count // 2 < threshold <= count:
        raise SettingsError(
            "setting_out_of_range",
            f"'secure_aggregation.threshold' is {threshold}, and {count} of the run's {len(sites)} sites take part in "
            f"a round: expected {count // 2 + 1} to {count}. With {count // 2} or fewer, the server could make two "
            "halves reveal different shares. Leave it out for the smallest number above two thirds.",
            setting="secure_aggregation.threshold",
            found=threshold,
            minimum=count // 2 + 1,
            maximum=count,
        )
    primitives("hazmat")


def _check_others(settings: Settings) -> None:
    """Check the settings that would use single updates, or change masked ones.

    Raises:
        SettingsError: If such a setting is on.
    """
    if settings.robust is not None:
        raise SettingsError(
            "incompatible_settings",
            f"The robust rule '{settings.robust.rule}' compares the updates of single sites, but under secure "
            "aggregation the server sees no single update. Choose one of the two.",
            settings=["robust", "secure_aggregation"],
        )
    if settings.compression is not None:
        raise SettingsError(
            "incompatible_settings",
            "'compression' gives each update its own scale, and codes with different scales can't be summed. Leave "
            "'compression' out and use 'secure_aggregation.bits' instead.",
            settings=["compression", "secure_aggregation"],
        )
    if settings.adversaries:
        raise SettingsError(
            "incompatible_settings",
            "'adversaries' changes the replies of attackers, but masked replies can't be changed usefully. Leave "
            "'adversaries' or 'secure_aggregation' out.",
            settings=["adversaries", "secure_aggregation"],
        )
    policy_of(settings).check_secure_aggregation()
