"""Comparison of a run with the participant's own file. A run can be stricter than the file, never looser.

The participant's own file (``medfl-site.toml``) lists its folders and its permissions for runs. A participant is a site
or the server. A ledger is its record of the privacy budget spent over all runs.

Each refusal contains the wish of the run and the permission of the participant, but no number of the participant's
data, as the text is sent to the server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from medfl.engine.evaluation import MetricRow
from medfl.engine.filters import check_method
from medfl.engine.runs.network_assignment import NetworkAssignment
from medfl.engine.runs.summary import COST_METRICS
from medfl.errors import RefusedError, SettingsError
from medfl.networks.memory_limit import TooLargeError, network_bytes
from medfl.privacy.policy import mechanism_of, policy_of
from medfl.settings import Privacy, Settings, read_settings
from medfl.task import Task
from medfl.types import Meta
from medfl_flare.records.offer import Offer
from medfl_flare.sites.site_file import MinimumPrivacy, SiteFile


def check_run(site_file: SiteFile, offer: Offer, settings: Settings, method_name: str, method: Any) -> None:
    """Raise if a run wants more than the participant allows.

    Args:
        site_file: The participant's own file.
        offer: Offer of the run.
        settings: Settings of the run, from the participant's bundle and the offer's overrides.
        method_name: Name of the method that would run.
        method: The method.

    Raises:
        RefusedError: If something is not allowed. The message lists every problem with the wish and the permission.
    """
    site_file.bundle(offer.bundle)
    problems = (
        _method_problems(site_file, offer, method_name)
        | _site_problems(site_file, offer)
        | _round_problems(site_file, settings)
        | _cross_site_evaluation_problems(site_file, settings)
        | _shared_test_problems(site_file, settings)
        | _harmonisation_problems(site_file, settings)
        | _privacy_problems(site_file.privacy, settings.privacy)
        | _secure_sum_problems(site_file, settings)
        | _metadata_problems(site_file, method)
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


def with_own_ledger(site_file: SiteFile, settings: Settings) -> Settings:
    """Return a run's settings with the participant's own privacy ledger and total budget in place of any other.

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


ALWAYS_DISCLOSED = frozenset({"trainable", "validates", "frozen", "start"})
"""Names of the site information that a site always discloses.

They say whether the site can take part in a run, and that it has the run's weights; none is computed from images.
"""


def disclosed_site_info(site_file: SiteFile, facts: Meta, counts: Sequence[int]) -> Meta:
    """Return the part of the site information that the participant's own file discloses.

    A run that asks for more gets less; it is not refused.

    Args:
        site_file: The participant's own file.
        facts: Site information that the run asks for (`medfl.engine.site.SiteRunner.site_info`): those of
            `ALWAYS_DISCLOSED`, ``size`` and ``label_counts``.
        counts: Number of training images of each class. ``label_counts`` are disclosed only if every class has no image
            or at least ``min_count`` images.
    """
    few = any(0 < count < site_file.min_count for count in counts)
    kept = {*ALWAYS_DISCLOSED, *site_file.disclose} - ({"label_counts"} if few else set())
    return {name: value for name, value in facts.items() if name in kept}


def disclosed_profile(site_file: SiteFile, assignment: NetworkAssignment) -> dict[str, float] | None:
    """Return the profile of the participant's machine (a mapping from property to value), or None if it is not allowed.

    Args:
        site_file: The participant's own file.
        assignment: Network assignment that asks for the profile.

    Raises:
        SettingsError: If a property can't be measured, or if the file lacks one or has an invalid one.
    """
    profile = site_file.profile
    if profile == "live":
        return assignment.measure()
    if profile is None:
        return None
    assignment.check_facts(profile, "the table [profile]")
    return profile


def disclosed_rows(settings: Settings, rows: list[MetricRow]) -> list[MetricRow]:
    """Return the rows of metrics that may leave the site.

    If the run has a privacy setting, scores computed from training images are removed. Rows with costs, such as times
    and bytes, remain.
    """
    if policy_of(settings).discloses_training_scores:
        return rows
    costs = {*COST_METRICS.values(), "bytes_up_plain"}
    return [row for row in rows if row.split != "train" or row.metric in costs]


def check_counts(site_file: SiteFile, training: int) -> None:
    """Raise if the site has so few training images that a model could reveal single images.

    Args:
        site_file: The participant's own file.
        training: Number of training images. Zero is allowed, as then nothing is trained.

    Raises:
        RefusedError: If there are too few images. The message does not contain their number.
    """
    if 0 < training < site_file.min_count:
        raise RefusedError(
            "too_few_images",
            f"The run wants a model trained on the images of '{site_file.site}'; the site requires at least "
            f"{site_file.min_count} training images for that and has fewer.",
            site=site_file.site,
            minimum=site_file.min_count,
        )


def check_networks(site_file: SiteFile, task: Task, names: Iterable[str]) -> None:
    """Raise if a network is larger than the participant allows. The size is measured before the network is built.

    Args:
        site_file: The participant's own file.
        task: Task of the run.
        names: Names of the networks that the run's sites train. A site also builds the networks of other sites.

    Raises:
        RefusedError: If a network is too large; names the network.
    """
    for name in sorted(set(names) & set(task.networks)):
        try:
            network_bytes(partial(task.build, name), site_file.max_network_mb * 10**6)
        except TooLargeError:
            raise network_too_large_error(site_file, name) from None


def network_too_large_error(site_file: SiteFile, name: object) -> RefusedError:
    """Return the error for a network that is larger than the participant allows."""
    return RefusedError(
        "network_too_large",
        f"The run wants the network '{name}' with its number of channels and classes; '{site_file.site}' allows "
        f"networks of at most {site_file.max_network_mb} MB (max_network_mb), and this network is larger.",
        site=site_file.site,
        network=str(name),
        maximum=site_file.max_network_mb,
    )


def disclosed_splits(site_file: SiteFile, sizes: Mapping[str, int]) -> list[str]:
    """Return the names of the splits whose scores may be disclosed: those with at least ``min_count`` images.

    Args:
        site_file: The participant's own file.
        sizes: Maps the name of each split to its number of images.
    """
    return [split for split, size in sizes.items() if size >= site_file.min_count]


def is_at_least(floor: MinimumPrivacy, privacy: Privacy | None) -> bool:
    """Return whether the privacy guarantee of a whole run is at least as strong as a participant's minimum.

    Args:
        floor: Minimum privacy in the participant's own file.
        privacy: Privacy setting of the run; None guarantees nothing.
    """
    if privacy is None or privacy.epsilon > floor.epsilon or privacy.delta > floor.delta:
        return False
    return mechanism_of(privacy.unit).covers(privacy.adjacency, floor.unit, floor.adjacency)


def guarantee_text(privacy: MinimumPrivacy | Privacy | None) -> str:
    """Return a privacy guarantee as text, for example ``unit site, adjacency replace, epsilon 8, delta 1e-05``."""
    if privacy is None:
        return "none"
    return f"unit {privacy.unit}, adjacency {privacy.adjacency}, epsilon {privacy.epsilon!r}, delta {privacy.delta!r}"


def _method_problems(site_file: SiteFile, offer: Offer, name: str) -> dict[str, str]:
    """Return the problems with a run's method. Like the functions below, it maps a problem's code to a sentence."""
    problems = {}
    if offer.method != name:
        problems["different_method"] = (
            f"The run declares the method '{offer.method}'; with its settings, this participant's method is '{name}'."
        )
    if name not in site_file.methods:
        allowed = ", ".join(sorted(site_file.methods)) or "none"
        problems["method_not_allowed"] = f"The run wants the method '{name}'; allowed: {allowed}."
    return problems


def _site_problems(site_file: SiteFile, offer: Offer) -> dict[str, str]:
    """Check that the run is for this site."""
    if site_file.is_server or not offer.sites or site_file.site in offer.sites:
        return {}
    text = f"The run is for the sites {', '.join(offer.sites)}; this one is '{site_file.site}'."
    return {"wrong_recipient": text}


def _round_problems(site_file: SiteFile, settings: Settings) -> dict[str, str]:
    """Check the number of rounds."""
    if settings.rounds <= site_file.max_rounds:
        return {}
    return {"too_many_rounds": f"The run wants {settings.rounds} rounds; allowed: at most {site_file.max_rounds}."}


def _cross_site_evaluation_problems(site_file: SiteFile, settings: Settings) -> dict[str, str]:
    """Check that the cross-site evaluation is allowed."""
    if settings.cross_site_evaluation and not policy_of(settings).discloses("weights"):
        text = "The run guarantees privacy and wants a cross-site evaluation, which sends whole models without noise."
        return {"privacy_with_cross_site_evaluation": text}
    if site_file.cross_site_evaluation or site_file.is_server or not settings.cross_site_evaluation:
        return {}
    text = (
        "The run wants a cross-site evaluation (setting 'cross_site_evaluation'): each site's model is scored at every "
        "site; allowed: no."
    )
    return {"cross_site_evaluation_not_allowed": text}


def _shared_test_problems(site_file: SiteFile, settings: Settings) -> dict[str, str]:
    """Check that scores on the shared test set are allowed."""
    if site_file.shared_test or site_file.is_server or not settings.shared_test:
        return {}
    text = "The run wants each site's own model scored on a test set that all share (shared_test); allowed: no."
    return {"shared_test_not_allowed": text}


def _harmonisation_problems(site_file: SiteFile, settings: Settings) -> dict[str, str]:
    """Check that the sums for the harmonisation of features may leave this site."""
    if (
        site_file.is_server
        or settings.harmonise_features == "none"
        or {"size", "feature_sums"} <= {*site_file.disclose}
    ):
        return {}
    text = (
        "The run harmonises features (harmonise_features). It wants the number of training images ('size') and, for "
        "each feature of the frozen encoder, the sum and the sum of squared deviations over these images "
        f"('feature_sums'), without noise; disclosed by this site: {', '.join(site_file.disclose) or 'none'}."
    )
    return {"feature_sums_not_allowed": text}


def _metadata_problems(site_file: SiteFile, method: Any) -> dict[str, str]:
    """Check that this site discloses the metadata that the method requires."""
    needed = [fact for fact, field in method.sends_meta.items() if field.visibility == "needed"]
    facts = [fact for fact in needed if fact not in site_file.disclose]
    if site_file.is_server or not facts:
        return {}
    allowed = ", ".join(site_file.disclose) or "none"
    text = f"The run's method requires {', '.join(sorted(facts))}; disclosed by this site: {allowed}."
    return {"undisclosed_facts": text}


def _privacy_problems(floor: MinimumPrivacy | None, privacy: Privacy | None) -> dict[str, str]:
    """Check that the run's privacy setting is at least the required minimum."""
    if floor is None or is_at_least(floor, privacy):
        return {}
    text = f"The run guarantees privacy: {guarantee_text(privacy)}; required at least: {guarantee_text(floor)}."
    return {"insufficient_privacy": text}


def _secure_sum_problems(site_file: SiteFile, settings: Settings) -> dict[str, str]:
    """Check the sum of updates in which this site's update leaves, and the noise that protects it there."""
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
            "All sites add the run's noise together, which protects only while enough of them follow the protocol; "
            "required: noise of this site alone, as its own file has no 'least_threshold'."
        )
        return {"distributed_noise_only": text}
    return {}
