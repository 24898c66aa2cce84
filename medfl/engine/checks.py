"""What is checked before step 0 of a run: nothing impossible begins, and another method in disguise is named."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
from torch import nn

from medfl.contract import Capability, Method, ReducesTo
from medfl.data.pooled import countable
from medfl.engine.encoding import check_filters
from medfl.engine.filters import check_method
from medfl.engine.needs import check_needs
from medfl.engine.secure.checks import check_secure
from medfl.engine.site import Splits
from medfl.errors import DataError, SettingsError
from medfl.networks.norms import has_batch_norm
from medfl.objectives import Objective
from medfl.plugins import Registry
from medfl.privacy.policy import policy_of
from medfl.privacy.statements import describe_secure
from medfl.settings import Settings
from medfl.task import Task
from medfl.training.precision import cpu_has_bf16
from medfl.types import Dataset, Meta, Visited
from medfl.utils.text import name_problem

logger = logging.getLogger(__name__)

CHECKED = 1024
"""Targets that are looked at at a time."""


def check_plan(
    name: str,
    method: Method,
    task: Task,
    settings: Settings,
    sites: Iterable[str],
    has_public: bool,
    others: Mapping[str, Collection[str]] | None = None,
) -> list[nn.Module]:
    """Refuse an impossible combination, and warn of one that is another method. No site's data are needed for it.

    Args:
        name: The method's.
        method: It.
        task: The learning problem.
        settings: The run's.
        sites: Names of the sites.
        has_public: Whether the server has public data.
        others: Name of each known method to what it needs, to name those that would do; None where nobody knows.

    Returns:
        One network of each kind that is used.

    Raises:
        SettingsError: If the combination is not possible.
    """
    names = sorted(sites)
    task.objective.check_metrics(task.metrics)
    check_method(method, settings, name)
    check_filters(method, name)
    check_robust(name, method, settings)
    check_secure(name, method, settings, names, _beside_the_mean(method))
    if problem := name_problem(names):
        raise SettingsError("invalid_site_name", problem, sites=names)
    unknown = sorted(set(settings.networks_by_site) - set(names))
    if unknown:
        raise SettingsError(
            "unknown_site",
            f"'networks_by_site' names sites that are not there: {unknown}. Sites: {names}.",
            setting="networks_by_site",
            sites=unknown,
            known=names,
        )
    used = sorted({settings.networks_by_site.get(site, task.network) for site in names})
    if used != [task.network] and not method.supports & {Capability.DIFFERENT_NETWORKS, Capability.DIFFERENT_HEADS}:
        raise SettingsError(
            "unlike_networks",
            f"Method '{name}' needs one architecture at all sites; got {used}. Give all sites the "
            f"network of the task ('{task.network}' now), or choose a method that allows unlike ones (`medfl list "
            "methods`).",
            method=name,
            networks=used,
        )
    if settings.precision == "bf16" and task.device == "cpu" and not cpu_has_bf16():
        logger.warning("This CPU computes bf16 in software, many times slower than fp32; use --precision fp32 here.")
    if "public_data" in method.needs and not has_public:
        raise SettingsError(
            "missing_public_data", f"Method '{name}' needs public data; name their folder with --public.", method=name
        )
    _check_weights(task, used)
    policy_of(settings).check_objective(task.objective)
    networks = {network: task.build(network) for network in used}
    check_needs(name, method, task, networks, others or {})
    own = method.task_of(task)
    trained = list(networks.values()) if own is task else [own.build(network) for network in used]
    _warn_of_limits(name, method, trained)
    return trained


def check_names(settings: Settings, registry: Registry) -> None:
    """Check that exactly one plugin has the privacy mechanism and the robust rule that the settings name.

    Raises:
        PluginError: If a name is unknown or ambiguous.
    """
    if settings.privacy is not None:
        registry.check_name("privacy_mechanism", settings.privacy.unit)
    if settings.robust is not None:
        registry.check_name("robust_rule", settings.robust.rule)


def check_robust(name: str, method: Method, settings: Settings) -> None:
    """Refuse a robust rule with a method whose server makes more of replies than one mean of updates.

    Args:
        name: The method's.
        method: It.
        settings: The run's.

    Raises:
        SettingsError: If a rule is set and the method has no place for it.
    """
    if settings.robust is not None and Capability.ROBUST not in method.active_supports:
        cause, beside = _beside_the_mean(method)
        raise SettingsError(
            "method_not_supported",
            f"The robust rule '{settings.robust.rule}' stands in place of the one mean of all updates, and method "
            f"'{name}', with these settings, has another server: {beside}. Choose a method that "
            "averages updates and nothing beside them, such as fedavg, fedprox or fedavgm, or leave 'robust' out.",
            feature="robust",
            method=name,
            rule=settings.robust.rule,
            cause=cause,
            sends=dict(method.sends),
        )


def _beside_the_mean(method: Method) -> tuple[str, str]:
    """Return what the server makes of replies, where that is no mean of updates: a code and a sentence."""
    if "pooled_data" in method.needs:
        return "pooled_data", "it has the data themselves"
    if Capability.PEER_MESSAGES in method.supports:
        return "no_mean", "sites send their models to each other, and there is no mean"
    updates = [prefix for prefix, kind in method.sends.items() if kind == "update"]
    others = [f"'{prefix}' ({kind})" for prefix, kind in method.sends.items() if kind != "update"]
    if not updates:
        return "no_updates", f"sites send {', '.join(others) or 'nothing'}, and no updates"
    if others:
        return "other_payloads", f"sites send {', '.join(others)} beside their updates"
    if len(updates) > 1:
        means = ", ".join(map(repr, updates))
        return "several_means", f"it may have several means, of {means}, or weighs replies by what sites say"
    return "own_weights", "it weighs replies by what sites say of themselves, or makes more of them than one mean"


def check_shared_test(settings: Settings, has_test: bool) -> None:
    """Refuse to score sites' models on a test set that is not there.

    Args:
        settings: The run's.
        has_test: Whether the server has a test set.

    Raises:
        SettingsError: If it is asked for and there is none.
    """
    if settings.shared_test and not has_test:
        raise SettingsError(
            "missing_test_set",
            "shared_test scores every site's personal model on the server's test set, and there is none: expected a "
            "folder 'global' beside the sites. `medfl partition` makes one; or leave shared_test out.",
            setting="shared_test",
        )


def _check_weights(task: Task, networks: list[str]) -> None:
    if task.weights is None:
        return
    task.weights.body_of(task.build(), task.network)
    if others := sorted(set(networks) - {task.network}):
        logger.warning("'weights' is for network '%s'; others begin as drawn: %s.", task.network, ", ".join(others))


def check_privacy(
    settings: Settings,
    method: Method,
    networks: Sequence[nn.Module],
    images: Mapping[str, int],
    sites: int,
    simulated: bool = False,
) -> None:
    """Refuse a promise that is empty for the number of units, or that a network can't keep; log what is promised.

    Args:
        settings: The run's.
        method: The method.
        networks: One of each kind that is used.
        images: Training images of each site that is known here and has any.
        sites: How many sites have training images, as far as is known.
        simulated: Whether all sites are on this machine.

    Raises:
        SettingsError: If it can't be kept.
    """
    policy = policy_of(settings)
    if settings.secure_aggregation is not None:
        text = describe_secure(settings.secure_aggregation, simulated)
        logger.log(logging.WARNING if simulated else logging.INFO, "%s", text)
    policy.check_run(networks, images, sites)
    if statement := policy.statement():
        logger.info("%s", statement)
    private = sorted(key for key, field in method.sends_meta.items() if field.visibility == "private")
    if private and not policy.discloses_metadata("private"):
        logger.warning("Privacy: %s stay at the sites; replies weigh alike where they would.", ", ".join(private))


def check_training(sites: Mapping[str, Splits], objective: Objective) -> None:
    """Refuse a federation in which nobody can train, and name who can't.

    Args:
        sites: Site to its splits.
        objective: Of the task; says whether a site's targets teach anything.

    Raises:
        DataError: If no site has training data.
    """
    empty = [name for name, data in sorted(sites.items()) if not len(data.train)]
    if len(empty) == len(sites):
        raise DataError(
            "no_images",
            f"No site has training data: expected at least one image at one of {sorted(sites)}.",
            split="train",
            sites=sorted(sites),
        )
    if empty:
        logger.warning("Without training data, never asked to train: %s.", ", ".join(empty))
    held = {name: data.train for name, data in sorted(sites.items()) if len(data.train)}
    mute = [name for name, train in held.items() if not objective.teaches(countable(train, objective))]
    if len(mute) == len(held):
        raise DataError(
            "uninformative_targets",
            f"No site can train: the training targets of {mute} teach nothing, such as survival times without any "
            "event. Give at least one site some that do.",
            sites=mute,
        )
    if mute:
        logger.warning("With training targets that teach nothing, never asked to train: %s.", ", ".join(mute))


def check_validation(settings: Settings, validating: Collection[str]) -> None:
    """Refuse to compare rounds where nobody can.

    Args:
        settings: The run's.
        validating: The sites that have validation images.

    Raises:
        SettingsError: If there is none, and the run needs them.
    """
    if settings.validates and not validating:
        raise SettingsError(
            "no_images",
            "'best_round' and 'patience' go by scores on the sites' validation images, and no site has any. Partition "
            "with --val-fraction 0.1, or leave both out. Test images never choose a model.",
            split="val",
            settings=["best_round", "patience"],
        )


def check_targets(objective: Objective, sites: Mapping[str, Splits], others: Mapping[str, Dataset | None]) -> None:
    """Refuse targets that the objective has no place for.

    Args:
        objective: Of the task.
        sites: Site to its splits.
        others: More data, by what to call them.

    Raises:
        DataError: Naming site, split, row and value.
    """
    splits = {
        f"Site '{name}', split '{split}'": getattr(data, split)
        for name, data in sorted(sites.items())
        for split in ("train", "val", "test")
    }
    for where, data in (splits | dict(others)).items():
        size = 0 if data is None else len(data)
        count = 1 if isinstance(data, Visited) else CHECKED  # cases may be of unlike sizes
        for start in range(0, size, count):
            rows = torch.arange(start, min(start + count, size))
            objective.check_targets(data.targets(rows), where, start)


def warn_of_preset(name: str, method: Method, method_args: Meta, settings: Settings) -> None:
    """Warn where a preset belongs to runs with other settings: a method can't set them.

    Args:
        name: The method's.
        method: It; its `preset_settings` say what belongs to a preset.
        method_args: Its settings as given.
        settings: The run's.
    """
    preset = method_args.get("preset")
    if other := _others(method.preset_settings.get(str(preset), {}), settings.model_dump()):
        logger.warning(
            "The preset '%s' of '%s' belongs to runs with other settings than this one: %s. Give these, or leave the "
            "preset out.",
            preset,
            name,
            "; ".join(other),
        )


def _others(expected: Meta, actual: Meta, path: str = "") -> list[str]:
    """What is not as expected, with both values."""
    unlike = []
    for key, value in expected.items():
        here = actual.get(key)
        if isinstance(value, dict):
            unlike += _others(value, here or {}, f"{path}{key}.")
        elif here != value:
            unlike.append(f"expected {path}{key} = {value}, got {here}")
    return unlike


def _warn_of_limits(name: str, method: Method, models: list[nn.Module]) -> None:
    plain = not any(has_batch_norm(model) for model in models)
    for limit in method.reduces_to:
        if not limit.equals_settings and _reached(limit, method) and (plain or not limit.only_without_norms):
            why = ", ".join(f"{k} = {v}" for k, v in limit.args.items())
            why += " on a network without batch-norm layers" if limit.only_without_norms else ""
            but = "".join(f" with {k} = {v}" for k, v in limit.equals_args.items())
            logger.warning("With %s, '%s' is '%s'%s.", why, name, limit.equals, but)


def _reached(limit: ReducesTo, method: Method) -> bool:
    return all(getattr(method, name) == value for name, value in limit.args.items())
