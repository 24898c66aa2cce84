"""What a participant's own file lets a run do. A run can only be stricter than the file, never looser.

Each refusal prints what the run wants and what the participant allows, and no number of its data: it travels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from medfl.engine.evaluation import Row
from medfl.engine.filters import check_method
from medfl.engine.runs.network_assignment import NetworkAssignment
from medfl.engine.runs.summary import COSTS
from medfl.errors import RefusedError, SettingsError
from medfl.networks.ceiling import TooLargeError, bytes_of
from medfl.privacy.policy import mechanism_of, policy_of
from medfl.settings import Privacy, Settings, read_settings
from medfl.task import Task
from medfl.types import Meta
from medfl_flare.records.offer import Offer
from medfl_flare.sites.file import Floor, SiteFile


def check_run(site_file: SiteFile, offer: Offer, settings: Settings, method_name: str, method: Any) -> None:
    """Refuse a run that wants more than this participant allows.

    Args:
        site_file: The participant's own file.
        offer: The run.
        settings: The run's settings, of this participant's bundle and the offer's overrides.
        method_name: Name of the method that would run.
        method: The method.

    Raises:
        RefusedError: With every wish that is not allowed, beside what is.
    """
    site_file.bundle(offer.bundle)
    problems = (
        _method(site_file, offer, method_name)
        | _sites(site_file, offer)
        | _rounds(site_file, settings)
        | _cross_site_evaluation(site_file, settings)
        | _shared_test(site_file, settings)
        | _privacy(site_file.privacy, settings.privacy)
        | _sums(site_file, settings)
        | _needed(site_file, method)
    )
    if not problems:
        try:
            check_method(method, settings, method_name)
        except SettingsError as error:
            problems = {error.code: str(error)}
    if problems:
        raise RefusedError(
            "run_not_allowed",
            f"'{site_file.site}' refuses the run '{offer.run}': " + " ".join(problems.values()),
            site=site_file.site,
            run=offer.run,
            problems=list(problems),
        )


def tightened(site_file: SiteFile, settings: Settings) -> Settings:
    """A run's settings with the participant's own account of privacy in place of any other.

    Raises:
        RefusedError: If the run's epsilon is above the participant's total.
    """
    if settings.privacy is None:
        return settings
    floor = site_file.privacy
    total = None if floor is None else floor.total_epsilon
    account = {"ledger": None if floor is None else floor.ledger, "total_epsilon": total}
    values = settings.privacy.model_dump() | account
    try:
        privacy = read_settings(Privacy, values, "the privacy of the run with the site's account")
    except SettingsError:
        raise RefusedError(
            "epsilon_above_total",
            f"The run wants epsilon {settings.privacy.epsilon:g}; '{site_file.site}' allows a total of {total:g} over "
            "all runs.",
            site=site_file.site,
            found=settings.privacy.epsilon,
            maximum=total,
        ) from None
    return settings.model_copy(update={"privacy": privacy})


def told(site_file: SiteFile, facts: Meta, counts: Sequence[int]) -> Meta:
    """What of its facts a participant tells: a run that asks for more gets less, and no refusal.

    Args:
        site_file: The participant's own file.
        facts: What the run asks for (`medfl.engine.site.SiteRunner.describe`): ``trainable`` and ``validates``, which
            are always told, ``size`` and ``label_counts``.
        counts: Training images of each class. Counts of classes are told only if every class has none or at least
            ``min_count`` of them.
    """
    few = any(0 < count < site_file.min_count for count in counts)
    kept = {"trainable", "validates", *site_file.disclose} - ({"label_counts"} if few else set())
    return {name: value for name, value in facts.items() if name in kept}


def told_profile(site_file: SiteFile, assignment: NetworkAssignment) -> dict[str, float] | None:
    """Return the facts that a participant reports about its machine, or None if its file allows none.

    Args:
        site_file: The participant's own file.
        assignment: Rule that asks for the facts.

    Raises:
        SettingsError: If a fact can't be measured, or the file lacks one or has one that is not possible.
    """
    profile = site_file.profile
    if profile == "live":
        return assignment.measure()
    if profile is None:
        return None
    assignment.check_facts(profile, "the table [profile]")
    return profile


def leaving_rows(settings: Settings, rows: list[Row]) -> list[Row]:
    """Rows that may leave: under a promise of privacy no number that was made of training images, only costs."""
    if policy_of(settings).discloses_training_scores:
        return rows
    costs = {*COSTS.values(), "bytes_up_plain"}
    return [row for row in rows if row.split != "train" or row.metric in costs]


def check_counts(site_file: SiteFile, training: int) -> None:
    """Refuse to train on so few images that a model could tell of them one by one.

    Args:
        site_file: The participant's own file.
        training: Number of training images; none is allowed, for then nothing is trained.

    Raises:
        RefusedError: Without the number itself.
    """
    if 0 < training < site_file.min_count:
        raise RefusedError(
            "too_few_images",
            f"The run wants what is trained on the images of '{site_file.site}'; it allows that from "
            f"{site_file.min_count} training images on and has fewer.",
            site=site_file.site,
            minimum=site_file.min_count,
        )


def check_networks(site_file: SiteFile, task: Task, names: Iterable[str]) -> None:
    """Refuse networks that are larger than the participant allows, before anything that large is made.

    Args:
        site_file: The participant's own file.
        task: The run's.
        names: Of the networks that the run's sites train; those of other sites are built here, too.

    Raises:
        RefusedError: Naming the network.
    """
    for name in sorted(set(names) & set(task.networks)):
        try:
            bytes_of(partial(task.build, name), site_file.max_network_mb * 10**6)
        except TooLargeError:
            raise too_large(site_file, name) from None


def too_large(site_file: SiteFile, name: object) -> RefusedError:
    """The refusal of a network beyond the cap."""
    return RefusedError(
        "network_too_large",
        f"The run wants the network '{name}' for its number of channels and classes; '{site_file.site}' allows "
        f"networks of at most {site_file.max_network_mb} MB (max_network_mb), and it is larger.",
        site=site_file.site,
        network=str(name),
        maximum=site_file.max_network_mb,
    )


def tellable(site_file: SiteFile, sizes: Mapping[str, int]) -> list[str]:
    """The splits that may be scored: those with at least ``min_count`` images.

    Args:
        site_file: The participant's own file.
        sizes: Name of a split to its number of images.
    """
    return [split for split, size in sizes.items() if size >= site_file.min_count]


def at_least(floor: Floor, privacy: Privacy | None) -> bool:
    """Whether a run promises at least what a floor asks for, over all its releases."""
    if privacy is None or privacy.epsilon > floor.epsilon or privacy.delta > floor.delta:
        return False
    return mechanism_of(privacy.unit).covers(privacy.adjacency, floor.unit, floor.adjacency)


def promise(privacy: Floor | Privacy | None) -> str:
    """A promise in words, for example ``unit site, adjacency replace, epsilon 8, delta 1e-05``."""
    if privacy is None:
        return "none"
    return f"unit {privacy.unit}, adjacency {privacy.adjacency}, epsilon {privacy.epsilon!r}, delta {privacy.delta!r}"


def _method(site_file: SiteFile, offer: Offer, name: str) -> dict[str, str]:
    """Return the problems with a run's method. Like the functions below, it maps a problem's code to a sentence."""
    problems = {}
    if offer.method != name:
        problems["different_method"] = (
            f"The run says that its method is '{offer.method}'; its settings make it '{name}' here."
        )
    if name not in site_file.methods:
        allowed = ", ".join(sorted(site_file.methods)) or "none"
        problems["method_not_allowed"] = f"The run wants the method '{name}'; allowed: {allowed}."
    return problems


def _sites(site_file: SiteFile, offer: Offer) -> dict[str, str]:
    if site_file.is_server or not offer.sites or site_file.site in offer.sites:
        return {}
    text = f"The run is for the sites {', '.join(offer.sites)}; this one is '{site_file.site}'."
    return {"wrong_recipient": text}


def _rounds(site_file: SiteFile, settings: Settings) -> dict[str, str]:
    if settings.rounds <= site_file.max_rounds:
        return {}
    return {"too_many_rounds": f"The run wants {settings.rounds} rounds; allowed: at most {site_file.max_rounds}."}


def _cross_site_evaluation(site_file: SiteFile, settings: Settings) -> dict[str, str]:
    if settings.cross_site_evaluation and not policy_of(settings).discloses("weights"):
        text = "The run promises privacy and wants a global test, in which whole models leave a site without noise."
        return {"privacy_with_global_test": text}
    if site_file.cross_site_evaluation or site_file.is_server or not settings.cross_site_evaluation:
        return {}
    text = "The run wants a global test (global_test), which scores each site's model at every site; allowed: no."
    return {"global_test_not_allowed": text}


def _shared_test(site_file: SiteFile, settings: Settings) -> dict[str, str]:
    if site_file.shared_test or site_file.is_server or not settings.shared_test:
        return {}
    text = "The run wants each site's own model scored on a test set that all share (shared_test); allowed: no."
    return {"shared_test_not_allowed": text}


def _needed(site_file: SiteFile, method: Any) -> dict[str, str]:
    """Facts that the method can't do without and this site does not tell."""
    needed = [fact for fact, field in method.sends_meta.items() if field.visibility == "needed"]
    facts = [fact for fact in needed if fact not in site_file.disclose]
    if site_file.is_server or not facts:
        return {}
    allowed = ", ".join(site_file.disclose) or "none"
    text = f"The run's method can't do without the fact {', '.join(sorted(facts))}; told here: {allowed}."
    return {"undisclosed_facts": text}


def _privacy(floor: Floor | None, privacy: Privacy | None) -> dict[str, str]:
    if floor is None or at_least(floor, privacy):
        return {}
    text = f"The run promises privacy: {promise(privacy)}; required at least: {promise(floor)}."
    return {"insufficient_privacy": text}


def _sums(site_file: SiteFile, settings: Settings) -> dict[str, str]:
    """In whose sum updates leave, and whose noise hides this site there."""
    secure, least = settings.secure_aggregation, site_file.least_threshold
    if site_file.is_server:
        return {}
    threshold = 1 if secure is None else secure.resolved_threshold
    if least is not None and threshold < least:
        alone = "alone" if secure is None else f"in a sum of {threshold} sites"
        text = f"The run has updates leave {alone} (secure_aggregation.threshold); required: a sum of at least {least}."
        return {"sum_too_small": text}
    if least is None and secure is not None and site_file.privacy is not None:
        text = (
            "The run's noise is that of all sites together, which holds while enough of them follow the protocol; "
            "required: this site's own, as its file names no 'least_threshold'."
        )
        return {"distributed_noise_only": text}
    return {}
