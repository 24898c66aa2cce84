"""List the entries of a bundle that a federation ignores, with the reason and an alternative."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from medfl.bundle.adopted import UsedIds
from medfl_adopt.config import BundleConfig, base_name
from medfl_adopt.parts import PartIds
from medfl_adopt.used_ids import find_unused_ids

HANDLER_REASONS = {
    "ValidationHandler": ("a federation evaluates after rounds", "the setting evaluate_every"),
    "StatsHandler": ("it prints within a round", "metrics.csv and report.html of the run"),
    "TensorBoardStatsHandler": ("it writes within a round", "metrics.csv of the run, or --tracking mlflow"),
    "TensorBoardImageHandler": ("it writes images within a round", "the report"),
    "MLFlowHandler": ("it writes within a round", "--tracking mlflow"),
    "CheckpointSaver": (
        "it would save a model that the next round overwrites",
        "the run folder, which contains every round, and the setting best_round",
    ),
    "CheckpointLoader": (
        "it would overwrite the weights of the round",
        "the setting start, which loads weights before the first round",
    ),
    "EarlyStopHandler": ("a site can't end a federation", "the setting patience"),
    "LrScheduleHandler": (
        "it counts the epochs of one site",
        "its scheduler takes a step after each round (--schedule), or the setting optimization.schedule",
    ),
    "SegmentationSaver": ("it writes images of patients", "inference with the bundle that the site exports"),
    "MetricsSaver": ("it writes one row for each patient", "metrics.csv of the run"),
    "ClassificationSaver": ("it writes one row for each patient", "the predictions of the run"),
    "PostProcessing": ("it belongs to MONAI's engine", "'postprocessing' of the evaluator"),
    "GarbageCollector": ("it does not change the result", "nothing"),
    "GradientBasedLR": ("it counts the epochs of one site", "the setting optimization.schedule"),
    "ParamSchedulerHandler": ("it counts the epochs of one site", "the setting optimization.schedule"),
    "SmartCacheHandler": ("medfl reads the cases", "nothing"),
    "MetricLogger": ("it writes within a round", "metrics.csv of the run"),
}
"""Maps the name of each of MONAI's handlers to a pair: the reason why a federation ignores it, and the alternative."""

UNKNOWN_HANDLER_REASON = ("its effect within a round is unknown", "a method or an observer in a medfl plugin")
"""Reason and alternative for handlers that are not in `HANDLER_REASONS`."""

TRAINER_REASONS = {
    "max_epochs": ("a run consists of rounds", "the settings rounds and epochs"),
    "epoch_length": ("a round is a number of epochs or of batches", "the settings epochs and steps"),
    "key_train_metric": ("training batches are not evaluated", "the setting moments: trained"),
    "additional_metrics": ("training batches are not evaluated", "the setting moments: trained"),
    "postprocessing": ("training batches are not evaluated", "the setting moments: trained"),
    "accumulation_steps": ("every batch is a step", "a larger batch_size"),
    "event_names": ("medfl trains without MONAI's engine", "nothing"),
    "event_to_attr": ("medfl trains without MONAI's engine", "nothing"),
    "compile": ("the networks of a run must have the same parameters at all sites", "nothing"),
    "compile_kwargs": ("the networks of a run must have the same parameters at all sites", "nothing"),
    "amp_kwargs": ("mixed precision is on or off", "the setting precision"),
    "metric_cmp_fn": ("no model is selected by training scores", "the setting best_round"),
    "to_kwargs": ("medfl moves the batches to the device", "nothing"),
    "optim_set_to_none": ("it does not change the result", "nothing"),
}
"""Maps each argument of the trainer that a federation ignores to a pair of reason and alternative."""

LOADER_REASONS = {
    "shuffle": ("each epoch shuffles the cases with the run's seed", "nothing"),
    "num_workers": ("medfl loads the cases", "--loaders"),
    "sampler": ("each epoch uses every case once, shuffled with the run's seed", "the settings balance and steps"),
    "batch_sampler": ("each epoch uses every case once, shuffled with the run's seed", "the setting batch_size"),
    "drop_last": ("each epoch uses every case", "nothing"),
    "repeats": ("a batch is trained on once", "the setting epochs"),
}
"""Maps each argument of a data loader that a federation ignores to a pair of reason and alternative."""

DATASET_REASON = ("medfl reads and caches the cases", "--cache")
"""Reason and alternative for all arguments of a data set except list and transforms."""

USED_ARGUMENTS = {
    "trainer": ("_target_", "device", "network", "loss_function", "optimizer", "train_data_loader", "inferer", "amp")
    + ("prepare_batch", "train_handlers"),
    "train_dataloader": ("_target_", "dataset", "batch_size", "collate_fn"),
    "train_dataset": ("_target_", "data", "transform"),
    "val_dataset": ("_target_", "data", "transform"),
    "val_dataloader": ("_target_",),
}
"""Maps the name of each part of a training to its arguments that are not ignored, or that are listed separately."""

FREEZING_PATTERN = re.compile(r"requires_grad|freeze", re.IGNORECASE)
"""Pattern of text in a configuration that probably freezes parameters of the network."""

SAVING_TRANSFORMS = tuple(f"Save{what}{end}" for what in ("Image", "Classification") for end in ("d", "D", "Dict"))
"""MONAI's transforms that write images and tables of patients."""

MULTI_GPU_WORDS = ("DistributedDataParallel", "DistributedSampler", "init_process_group", "torch.distributed")
"""Words in configurations that launch training on several GPUs."""


@dataclass(frozen=True)
class IgnoredEntry:
    """An entry of a bundle that a federation ignores.

    Attributes:
        what: Name and place of the entry.
        why: Reason.
        instead: Alternative in a federation; ``nothing`` if none is needed.
        id: Id that has no effect; empty for a file or a part of an expression.
        is_urgent: Whether the entry changes the initial weights or the trained parameters, so that a run differs from
            the bundle.
    """

    what: str
    why: str
    instead: str
    id: str = ""
    is_urgent: bool = False

    def to_json(self) -> dict[str, str]:
        """Return the fields ``what``, ``why``, ``instead`` and ``id`` as JSON values, for ``federate.json``."""
        return {"what": self.what, "why": self.why, "instead": self.instead, "id": self.id}


def list_ignored_entries(
    config: BundleConfig,
    evaluate: BundleConfig,
    parts: PartIds,
    used: UsedIds,
    content: Mapping[str, Any],
    others: Mapping[str, Any],
) -> list[IgnoredEntry]:
    """List the entries of a bundle that a federation ignores; entries that change the weights are first.

    Args:
        config: Training configuration.
        evaluate: Training configuration overlaid with ``evaluate``.
        parts: Ids of the parts of the training configuration.
        used: Ids of components that a run builds.
        content: Top-level ids of the training configuration with their values.
        others: Maps further configuration files of the bundle to their contents.
    """
    entries = [
        *_list_handlers(config, parts),
        *_list_arguments(config, parts, used),
        *_list_savers(evaluate, parts),
        *_list_steps(config, parts),
    ]
    known = [*(entry.id for entry in entries if entry.id), *_list_containers(config, parts)]
    entries += [*_list_unused_ids(config, used, content, known), *_list_launchers(others)]
    return sorted(entries, key=lambda entry: not entry.is_urgent)


def _list_handlers(config: BundleConfig, parts: PartIds) -> Iterator[IgnoredEntry]:
    """Yield the handlers of trainer and evaluator."""
    for handlers in filter(None, (parts.train_handlers, parts.val_handlers)):
        for id_, handler in config.components(handlers):
            name = base_name(str(handler["_target_"]))
            reasons = HANDLER_REASONS.get(name, UNKNOWN_HANDLER_REASON)
            urgent = name == "CheckpointLoader" or _freezes_parameters(config, id_)
            yield IgnoredEntry(f"the handler '{name}' ({id_})", *reasons, id=id_, is_urgent=urgent)


def _list_arguments(config: BundleConfig, parts: PartIds, used: UsedIds) -> Iterator[IgnoredEntry]:
    """Yield the arguments of the trainer, the loaders and the data sets that a federation does not use."""
    reasons_of = {"trainer": TRAINER_REASONS, "train_dataloader": LOADER_REASONS, "val_dataloader": LOADER_REASONS}
    for part, handled in USED_ARGUMENTS.items():
        id_ = parts.ids()[part]
        value = config.value(id_) if id_ else None
        if part == "val_dataset" and id_ == parts.train_dataset:
            continue
        for name in value if isinstance(value, Mapping) else ():
            place = f"{config.follow(str(id_))}#{name}"
            is_same = config.get(place) is None or (name == "shuffle" and config.literal(place) is True)
            if name in handled or is_same or used.has_effect(place):
                continue
            default = DATASET_REASON if part.endswith("dataset") else ("medfl has its own training loop", "nothing")
            yield IgnoredEntry(f"'{place}'", *reasons_of.get(part, {}).get(name, default), id=place)


def _list_containers(config: BundleConfig, parts: PartIds) -> Iterator[str]:
    """Yield the ids whose parts are used, or are listed one by one."""
    ids = parts.ids()
    for name in (*USED_ARGUMENTS, "train_handlers", "val_handlers", "evaluator"):
        if id_ := ids[name]:
            yield id_


def _list_unused_ids(
    config: BundleConfig, used: UsedIds, content: Mapping[str, Any], known: Collection[str]
) -> Iterator[IgnoredEntry]:
    """Yield the ids that no run uses."""
    for id_ in find_unused_ids(config, used, content, known):
        users = [top for top in content if top != id_ and id_ in config.references(top)]
        why = "only ignored ids refer to it" if users else "no id that a run builds refers to it"
        yield IgnoredEntry(f"the id '{id_}'", why, "nothing", id=id_, is_urgent=_freezes_parameters(config, id_))


def _freezes_parameters(config: BundleConfig, id_: str) -> bool:
    """Return whether an id, or text at or below it, freezes parameters."""
    return any(FREEZING_PATTERN.search(f"{place} {text}") for place, text in config.iterate_texts(id_)) or bool(
        FREEZING_PATTERN.search(id_)
    )


def _list_savers(evaluate: BundleConfig, parts: PartIds) -> Iterator[IgnoredEntry]:
    """Yield the transforms that write images or tables of patients."""
    for id_, transform in evaluate.components(parts.val_postprocessing) if parts.val_postprocessing else ():
        if base_name(str(transform["_target_"])) in SAVING_TRANSFORMS:
            what = f"the transform '{base_name(str(transform['_target_']))}' ({id_})"
            yield IgnoredEntry(what, "it writes images or tables of patients", "the bundle that the site exports")


def _list_steps(config: BundleConfig, parts: PartIds) -> Iterator[IgnoredEntry]:
    """Yield the steps of ``run`` and ``finalize``."""
    for name, why in (
        ("run", "medfl's rounds replace it"),
        ("finalize", "a run ends when its last round is saved"),
    ):
        value = config.value(name)
        steps = [f"{name}#{index}" for index in range(len(value))] if isinstance(value, list) else [name]
        for id_ in steps if value else ():
            yield IgnoredEntry(f"the step '{id_}'", why, "nothing", id=id_, is_urgent=_freezes_parameters(config, id_))


def _list_launchers(others: Mapping[str, Any]) -> Iterator[IgnoredEntry]:
    """Yield the configurations that launch training on several GPUs."""
    for file, content in others.items():
        if any(word in str(content) for word in MULTI_GPU_WORDS):
            yield IgnoredEntry(
                f"the multi-GPU launcher 'configs/{file}'",
                "a site trains in one process on one device",
                "the setting device at each site, and workers for several sites on one machine",
            )
