"""Checks of a run's method, task, settings and data before its first step.

An impossible combination raises an error. A combination in which the method equals another method is logged as a
warning.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
from torch import nn

from medfl.contract import Capability, Method, ReducesTo
from medfl.data.pooled import countable_targets
from medfl.engine.encoding import check_filters
from medfl.engine.filters import check_method
from medfl.engine.needs import NEED_CONDITIONS, check_needs
from medfl.engine.secure.checks import check_secure
from medfl.engine.site import Splits
from medfl.errors import DataError, SettingsError
from medfl.networks.norms import has_batch_norm
from medfl.networks.transfer.adapters.layers import has_residuals, trains_factor_a
from medfl.objectives import Objective
from medfl.plugins import Registry
from medfl.privacy.policy import policy_of
from medfl.privacy.statements import describe_secure
from medfl.settings import Optimization, Settings
from medfl.task import Task
from medfl.toolkit.aggregation import check_exact_adapters
from medfl.toolkit.averaging import Averaging, publishes_average
from medfl.training.precision import cpu_has_bf16
from medfl.types import Dataset, Meta, is_augmenting
from medfl.utils.text import name_problem

logger = logging.getLogger(__name__)

TARGETS_PER_BATCH = 1024
"""Number of targets that are read and checked at once."""


def check_plan(
    name: str,
    method: Method,
    task: Task,
    settings: Settings,
    sites: Iterable[str],
    has_public: bool,
    others: Mapping[str, Collection[str]] | None = None,
) -> list[nn.Module]:
    """Check that the method, task and settings of a run are compatible, without the data of any site.

    Log a warning if the method equals another method with these settings, and for settings without the expected effect.

    Args:
        name: Name of the method.
        method: The method.
        task: The learning problem.
        settings: Settings of the run.
        sites: Names of the sites.
        has_public: Whether the server has public data.
        others: Maps each known method to its requirements (`Method.needs`), for messages that suggest other methods;
            None if unknown.

    Returns:
        One newly built network of each kind that the run trains.

    Raises:
        SettingsError: If the combination is not possible.
    """
    names = sorted(sites)
    task.objective.check_metrics(task.metrics)
    check_method(method, settings, name)
    check_filters(method, name)
    check_robust(name, method, settings)
    check_optimization(name, method, task, settings, others or {})
    check_secure(name, method, settings, names, _describe_aggregation(method))
    if problem := name_problem(names):
        raise SettingsError("invalid_site_name", problem, sites=names)
    unknown = sorted(set(settings.networks_by_site) - set(names))
    if unknown:
        raise SettingsError(
            "unknown_site",
            f"'networks_by_site' names sites that the run does not have: {unknown}. Sites: {names}.",
            setting="networks_by_site",
            sites=unknown,
            known=names,
        )
    used = sorted({settings.networks_by_site.get(site, task.network) for site in names})
    if used != [task.network] and not method.supports & {Capability.DIFFERENT_NETWORKS, Capability.DIFFERENT_HEADS}:
        raise SettingsError(
            "unlike_networks",
            f"Method '{name}' needs one architecture at all sites, got {used}. Give all sites the network of the task "
            f"('{task.network}' now), or choose a method that allows different networks (`medfl list methods`).",
            method=name,
            networks=used,
        )
    if settings.precision == "bf16" and task.device == "cpu" and not cpu_has_bf16():
        logger.warning("This CPU computes bf16 in software, many times slower than fp32; use --precision fp32 here.")
    if "public_data" in method.needs and not has_public:
        raise SettingsError(
            "missing_public_data", f"Method '{name}' needs public data. Name their folder with --public.", method=name
        )
    if task.start is not None and (others_than_default := sorted(set(used) - {task.network})):
        logger.warning(
            "'start' is for network '%s'; others start from random weights: %s.",
            task.network,
            ", ".join(others_than_default),
        )
    policy_of(settings).check_objective(task.objective)
    networks = {network: task.build(network) for network in used}
    check_needs(name, method, task, networks, others or {})
    own = method.task_of(task)
    trained = list(networks.values()) if own is task else [own.build(network) for network in used]
    if any(map(has_residuals, trained)):
        check_exact_adapters(name, method, settings)
    check_moving_average(name, method, settings, trained)
    _warn_of_limits(name, method, trained)
    return trained


def check_names(settings: Settings, registry: Registry) -> None:
    """Check that exactly one plugin provides each of the privacy mechanism and the robust rule that the settings name.

    Args:
        settings: Settings of the run.
        registry: Registry of the loaded plugins.

    Raises:
        PluginError: If no plugin, or more than one, provides the name.
    """
    if settings.privacy is not None:
        registry.check_name("privacy_mechanism", settings.privacy.unit)
    if settings.robust is not None:
        registry.check_name("robust_rule", settings.robust.rule)


def check_robust(name: str, method: Method, settings: Settings) -> None:
    """Check that a robust rule (a mean that tolerates outlying updates) can replace the aggregation of a method.

    That requires a method whose server computes one mean of all updates and nothing else from the replies.

    Args:
        name: Name of the method.
        method: The method.
        settings: Settings of the run.

    Raises:
        SettingsError: If the settings have a robust rule and the method does not support it.
    """
    if settings.robust is not None and Capability.ROBUST not in method.active_supports:
        cause, aggregation = _describe_aggregation(method)
        raise SettingsError(
            "method_not_supported",
            f"The robust rule '{settings.robust.rule}' replaces the mean of all updates, but method '{name}', with "
            f"these settings, aggregates in another way: {aggregation}. Choose a method that averages updates and "
            "nothing else, such as fedavg, fedprox or fedavgm, or leave 'robust' out.",
            feature="robust",
            method=name,
            rule=settings.robust.rule,
            cause=cause,
            sends=dict(method.sends),
        )


def check_optimization(
    name: str, method: Method, task: Task, settings: Settings, others: Mapping[str, Collection[str]]
) -> None:
    """Check that the optimisation recipe fits the other settings, the bundle's schedule and the method.

    Log a warning if the recipe has no effect on the weight decay because the optimiser has none.

    Args:
        name: Name of the method.
        method: The method.
        task: The learning problem.
        settings: Settings of the run.
        others: Maps each known method to its requirements, for messages that suggest other methods.

    Raises:
        SettingsError: If they don't fit together.
    """
    recipe = settings.optimization or Optimization()
    if recipe.varies_in_round and task.schedule is not None:
        raise SettingsError(
            "incompatible_settings",
            "The bundle has a learning-rate schedule of its own, and 'optimization' sets another one. Disable the "
            "bundle's with --schedule off, or leave 'optimization.schedule' and 'optimization.warmup_rounds' out.",
            settings=["optimization.schedule", "optimization.warmup_rounds", "schedule"],
        )
    if recipe.schedule == "cosine" and settings.lr_decay != 1:
        raise SettingsError(
            "incompatible_settings",
            f"A cosine schedule and 'lr_decay' both lower the learning rate: expected lr_decay 1, got "
            f"{settings.lr_decay:g}. Leave one of them out.",
            settings=["optimization.schedule", "lr_decay"],
        )
    if recipe.schedule == "cosine" and recipe.warmup_rounds >= settings.rounds:
        raise SettingsError(
            "setting_out_of_range",
            f"Expected fewer rounds of warm-up than rounds ({settings.rounds}), got {recipe.warmup_rounds}: the cosine "
            "starts after the warm-up. Set 'optimization.warmup_rounds' lower.",
            setting="optimization.warmup_rounds",
            expected=settings.rounds - 1,
            found=recipe.warmup_rounds,
        )
    restarts = task.schedule is not None and task.schedule.restarts
    if "one_learning_rate" in method.active_needs and (recipe.varies_in_round or recipe.layer_decay != 1 or restarts):
        fit = sorted(other for other, needs in others.items() if "one_learning_rate" not in needs)
        raise SettingsError(
            "unmet_need",
            f"Method '{name}' needs 'one_learning_rate' ({NEED_CONDITIONS['one_learning_rate']}), because it computes "
            "with the length of the local steps. Leave out 'optimization.schedule', 'optimization.warmup_rounds', "
            "'optimization.layer_decay' and schedules that restart in each round ('lr_decay' is possible), or choose "
            "another method, such as fedavg.",
            method=name,
            need="one_learning_rate",
            methods=fit,
        )
    if not recipe.decay_norms:
        optimizer = task.optimizer([nn.Parameter(torch.zeros(1))])
        if not any(group.get("weight_decay") for group in optimizer.param_groups):
            logger.warning(
                "'optimization.decay_norms' has no effect, because the optimizer has no weight decay: set "
                "--optimizer.weight_decay, or leave it out."
            )


def check_moving_average(name: str, method: Method, settings: Settings, networks: Sequence[nn.Module]) -> None:
    """Check that the run has one global model, if the setting ``optimization.ema`` asks for its moving average.

    Args:
        name: Name of the method.
        method: The method.
        settings: Settings of the run.
        networks: One network of each kind that the run trains.

    Raises:
        SettingsError: If the method computes, sends or evaluates its models in another way than FedAvg, the sites keep
            tensors of normalisation layers to themselves, or the run trains both factors of adapters.
    """
    if settings.optimization is None or settings.optimization.ema is None:
        return
    if not publishes_average(method):
        raise SettingsError(
            "method_not_supported",
            "'optimization.ema' averages the global model over the rounds, but method "
            f"'{name}' computes, sends or evaluates its models in another way than FedAvg. Choose a method such as "
            "fedavg, fedprox or fedadam, or leave 'optimization.ema' out.",
            feature="optimization.ema",
            method=name,
        )
    assert isinstance(method, Averaging)
    if any(len(method.shared_names(network, settings.norm_sync)) < len(network.state_dict()) for network in networks):
        raise SettingsError(
            "incompatible_settings",
            f"'optimization.ema' averages the global model over the rounds, but with method '{name}' and norm_sync "
            f"'{settings.norm_sync}' the sites keep some tensors to themselves, which belong to the model of the last "
            "round. Set norm_sync to 'all' or 'frozen', or leave 'optimization.ema' out.",
            settings=["optimization.ema", "norm_sync"],
            method=name,
        )
    if any(map(trains_factor_a, networks)):
        raise SettingsError(
            "incompatible_settings",
            "'optimization.ema' averages the tensors of the global model over the rounds, but the product of averaged "
            f"factors of adapters is not the averaged weight change (lora.aggregation '{settings.lora.aggregation}'). "
            "Set 'lora.aggregation' to 'frozen_a', for which it is, or leave 'optimization.ema' out.",
            settings=["lora.aggregation", "optimization.ema"],
            method=name,
        )


def _describe_aggregation(method: Method) -> tuple[str, str]:
    """Return why a method's aggregation is not one mean of updates, as a code and a clause for messages."""
    if "pooled_data" in method.needs:
        return "pooled_data", "it trains on the pooled data"
    if Capability.PEER_MESSAGES in method.supports:
        return "no_mean", "sites send their models to each other, and the server computes no mean"
    updates = [prefix for prefix, kind in method.sends.items() if kind == "update"]
    others = [f"'{prefix}' ({kind})" for prefix, kind in method.sends.items() if kind != "update"]
    if not updates:
        return "no_updates", f"sites send {', '.join(others) or 'nothing'} and no updates"
    if others:
        return "other_payloads", f"sites send {', '.join(others)} besides their updates"
    if len(updates) > 1:
        means = ", ".join(map(repr, updates))
        return "several_means", f"it may compute several means, of {means}, or weight replies by metadata of the sites"
    return "own_weights", "it weights replies by metadata of the sites, or computes more from them than one mean"


def check_shared_test(settings: Settings, has_test: bool) -> None:
    """Check that the server has a test set, if the setting ``shared_test`` needs one.

    Args:
        settings: Settings of the run.
        has_test: Whether the server has a test set.

    Raises:
        SettingsError: If the setting is on and the server has no test set.
    """
    if settings.shared_test and not has_test:
        raise SettingsError(
            "missing_test_set",
            "shared_test scores every site's personal model on the server's test set, but there is none: expected "
            "a folder 'global' next to the folders of the sites: create it with `medfl partition`, or leave "
            "shared_test out.",
            setting="shared_test",
        )


def check_privacy(
    settings: Settings,
    method: Method,
    networks: Sequence[nn.Module],
    images: Mapping[str, int],
    sites: int,
    simulated: bool = False,
) -> None:
    """Check that the run can keep its privacy guarantee, and log the guarantee.

    Args:
        settings: Settings of the run.
        method: The method.
        networks: One network of each kind that the run trains.
        images: Maps each site to its number of training images; only sites with a known number > 0.
        sites: Number of sites that are known to have training images.
        simulated: Whether all sites are on this machine.

    Raises:
        SettingsError: If delta is too large for the number of units, or a network can't keep the guarantee.
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
        logger.warning(
            "Privacy: the metadata %s stay at the sites. The server gives all replies the same weight where it would "
            "weight them by these.",
            ", ".join(private),
        )


def check_training(sites: Mapping[str, Splits], objective: Objective) -> None:
    """Check that at least one site can train, and log a warning that names the sites that can't.

    Args:
        sites: Maps each site to its splits.
        objective: Objective of the task. It decides whether a site's targets are informative.

    Raises:
        DataError: If no site has training data with informative targets.
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
        logger.warning("These sites have no training data and won't train: %s.", ", ".join(empty))
    training = {name: data.train for name, data in sorted(sites.items()) if len(data.train)}
    uninformative = [
        name for name, train in training.items() if not objective.can_train_on(countable_targets(train, objective))
    ]
    if len(uninformative) == len(training):
        raise DataError(
            "uninformative_targets",
            f"No site can train: the training targets of {uninformative} are uninformative, such as survival times "
            "without any event. Give at least one site informative targets.",
            sites=uninformative,
        )
    if uninformative:
        logger.warning("These sites have uninformative training targets and won't train: %s.", ", ".join(uninformative))


def check_validation(settings: Settings, validating: Collection[str]) -> None:
    """Check that a run that selects the best round by validation scores has a site with validation images.

    Args:
        settings: Settings of the run.
        validating: Names of the sites that have validation images.

    Raises:
        SettingsError: If the run compares rounds and no site has validation images.
    """
    if settings.needs_validation and not validating:
        raise SettingsError(
            "no_images",
            "'best_round' and 'patience' use scores on the sites' validation images, but no site has any. Partition "
            "with --val-fraction 0.1, or leave both out. Test images never choose a model.",
            split="val",
            settings=["best_round", "patience"],
        )


def check_targets(objective: Objective, sites: Mapping[str, Splits], others: Mapping[str, Dataset | None]) -> None:
    """Read all targets and check that they are valid for the objective.

    Args:
        objective: Objective of the task.
        sites: Maps each site to its splits.
        others: Maps the name of each further data set, as messages show it, to the data or None.

    Raises:
        DataError: If a target is not valid. The message names the site, split, row and value.
    """
    splits = {
        f"Site '{name}', split '{split}'": getattr(data, split)
        for name, data in sorted(sites.items())
        for split in ("train", "val", "test")
    }
    for where, data in (splits | dict(others)).items():
        size = 0 if data is None else len(data)
        count = 1 if is_augmenting(data) else TARGETS_PER_BATCH  # such cases may have different sizes
        for start in range(0, size, count):
            rows = torch.arange(start, min(start + count, size))
            objective.check_targets(data.targets(rows), where, start)


def warn_of_preset(name: str, method: Method, method_args: Meta, settings: Settings) -> None:
    """Log a warning if the chosen preset of the method was made for other settings of the run.

    A preset is a named set of settings of a method. It can't change settings of the run, such as the learning rate.

    Args:
        name: Name of the method.
        method: The method; `Method.preset_settings` maps each preset to settings of the run.
        method_args: Settings of the method as the user gave them.
        settings: Settings of the run.
    """
    preset = method_args.get("preset")
    if other := _differences(method.preset_settings.get(str(preset), {}), settings.model_dump()):
        logger.warning(
            "The preset '%s' of '%s' is for runs with other settings: %s. Set them as expected, or leave the preset "
            "out.",
            preset,
            name,
            "; ".join(other),
        )


def _differences(expected: Meta, actual: Meta, path: str = "") -> list[str]:
    """Return a text with the expected and the actual value of each setting that differs."""
    differences = []
    for key, value in expected.items():
        here = actual.get(key)
        if isinstance(value, dict):
            differences += _differences(value, here or {}, f"{path}{key}.")
        elif here != value:
            differences.append(f"expected {path}{key} = {value}, got {here}")
    return differences


def _warn_of_limits(name: str, method: Method, models: list[nn.Module]) -> None:
    """Log a warning for each declared limit case in which the method equals another method."""
    without_norms = not any(has_batch_norm(model) for model in models)
    for limit in method.reduces_to:
        if not limit.equals_settings and _is_reached(limit, method) and (without_norms or not limit.only_without_norms):
            condition = ", ".join(f"{k} = {v}" for k, v in limit.args.items())
            condition += " on a network without batch-norm layers" if limit.only_without_norms else ""
            equal_args = "".join(f" with {k} = {v}" for k, v in limit.equals_args.items())
            logger.warning("With %s, '%s' is '%s'%s.", condition, name, limit.equals, equal_args)


def _is_reached(limit: ReducesTo, method: Method) -> bool:
    return all(getattr(method, name) == value for name, value in limit.args.items())
