"""What of a bundle a federation leaves out, why, and how to say it otherwise."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from medfl.bundle.adopted import Used
from medfl_adopt.config import Config, base_name
from medfl_adopt.parts import Parts
from medfl_adopt.used import unused_ids

HANDLERS = {
    "ValidationHandler": ("a federation scores after rounds", "the setting evaluate_every"),
    "StatsHandler": ("it prints in the middle of a round", "metrics.csv and report.html of the run"),
    "TensorBoardStatsHandler": ("it writes in the middle of a round", "metrics.csv of the run, or --tracking mlflow"),
    "TensorBoardImageHandler": ("it writes pictures in the middle of a round", "the report"),
    "MLFlowHandler": ("it writes in the middle of a round", "--tracking mlflow"),
    "CheckpointSaver": (
        "it would save a model that the next round overwrites",
        "the run folder, where every round is saved, and the setting best_round",
    ),
    "CheckpointLoader": (
        "it would put weights in place of the round's",
        "initial weights in the network's constructor, loaded with weights_only=True",
    ),
    "EarlyStopHandler": ("a site can't end a federation", "the setting patience"),
    "LrScheduleHandler": (
        "it counts the epochs of one site",
        "its scheduler takes a step after each round (--schedule), or the setting lr_decay",
    ),
    "SegmentationSaver": ("it writes images of patients", "the bundle that the site takes home, with inference"),
    "MetricsSaver": ("it writes rows of patients", "metrics.csv of the run"),
    "ClassificationSaver": ("it writes rows of patients", "the predictions of the run"),
    "PostProcessing": ("it belongs to the engine", "'postprocessing' of the evaluator"),
    "GarbageCollector": ("it changes no number", "nothing"),
    "GradientBasedLR": ("it counts the epochs of one site", "the setting lr_decay"),
    "ParamSchedulerHandler": ("it counts the epochs of one site", "the setting lr_decay"),
    "SmartCacheHandler": ("cases are read by medfl", "nothing"),
    "MetricLogger": ("it writes in the middle of a round", "metrics.csv of the run"),
}
"""MONAI's handlers: why each is left out, and what stands in its place."""

UNKNOWN_HANDLER = ("nobody knows what it does in the middle of a round", "a method or an observer of medfl's plugins")

TRAINER = {
    "max_epochs": ("a run goes over rounds", "the settings rounds and epochs"),
    "epoch_length": ("a round is whole passes or a number of batches", "the settings epochs and steps"),
    "key_train_metric": ("training is not scored batch by batch", "the setting moments: trained"),
    "additional_metrics": ("training is not scored batch by batch", "the setting moments: trained"),
    "postprocessing": ("training is not scored batch by batch", "the setting moments: trained"),
    "accumulation_steps": ("every batch is a step", "a larger batch_size"),
    "event_names": ("there is no engine in training", "nothing"),
    "event_to_attr": ("there is no engine in training", "nothing"),
    "compile": ("networks of a run must have one form at all sites", "nothing"),
    "compile_kwargs": ("networks of a run must have one form at all sites", "nothing"),
    "amp_kwargs": ("mixed precision is on or off", "the setting precision"),
    "metric_cmp_fn": ("no model is chosen by training scores", "the setting best_round"),
    "to_kwargs": ("batches are moved by medfl", "nothing"),
    "optim_set_to_none": ("it changes no number", "nothing"),
}
"""Arguments of the trainer that are left out."""

LOADER = {
    "shuffle": ("each pass visits the cases in an order of the run's seed", "nothing"),
    "num_workers": ("medfl loads the cases", "--loaders"),
    "sampler": ("each pass visits every case once, in an order of the run's seed", "the settings balance and steps"),
    "batch_sampler": ("each pass visits every case once, in an order of the run's seed", "the setting batch_size"),
    "drop_last": ("no case is left out of a pass", "nothing"),
    "repeats": ("a batch is trained on once", "the setting epochs"),
}
"""Arguments of the training loader that are left out."""

DATASET_REASON = ("medfl reads the cases and keeps them", "--cache")
"""Why the other arguments of a data set are left out."""

HANDLED = {
    "trainer": ("_target_", "device", "network", "loss_function", "optimizer", "train_data_loader", "inferer", "amp")
    + ("prepare_batch", "train_handlers"),
    "train_dataloader": ("_target_", "dataset", "batch_size", "collate_fn"),
    "train_dataset": ("_target_", "data", "transform"),
    "val_dataset": ("_target_", "data", "transform"),
    "val_dataloader": ("_target_",),
}
"""Part to the arguments of its component that a federation takes, or that are listed elsewhere."""

FREEZING = re.compile(r"requires_grad|freeze", re.IGNORECASE)
"""Text that freezes parameters."""

SAVERS = tuple(f"Save{what}{end}" for what in ("Image", "Classification") for end in ("d", "D", "Dict"))
"""MONAI's transforms that write images and tables of patients."""

SEVERAL_GPUS = ("DistributedDataParallel", "DistributedSampler", "init_process_group", "torch.distributed")


@dataclass(frozen=True)
class Ignored:
    """Something that a federation leaves out.

    Attributes:
        what: Its name and where it stands.
        why: Why it is left out.
        instead: What says the same in a federation; ``nothing`` where nothing needs to.
        id: The id that has no effect; empty for a file or a part of an expression.
        is_urgent: Whether the weights that a site trains from, or what it trains, are other ones than in the bundle.
    """

    what: str
    why: str
    instead: str
    id: str = ""
    is_urgent: bool = False

    def facts(self) -> dict[str, str]:
        """Return the entry of ``federate.json``: ``what``, ``why``, ``instead`` and ``id``."""
        return {"what": self.what, "why": self.why, "instead": self.instead, "id": self.id}


def read_ignored(
    config: Config,
    evaluate: Config,
    parts: Parts,
    used: Used,
    content: Mapping[str, Any],
    others: Mapping[str, Any],
) -> list[Ignored]:
    """Return what a federation leaves out of a bundle, the entries that change the weights first.

    Args:
        config: The training configuration.
        evaluate: The same with ``evaluate`` laid over it.
        parts: Its parts.
        used: The ids that a run builds.
        content: Ids at the top of the training configuration to their values.
        others: File name to content of the bundle's further configurations.
    """
    entries = [
        *_handlers(config, parts),
        *_arguments(config, parts, used),
        *_savers(evaluate, parts),
        *_sequences(config, parts),
    ]
    known = [*(entry.id for entry in entries if entry.id), *_containers(config, parts)]
    entries += [*_unused(config, used, content, known), *_launchers(others)]
    return sorted(entries, key=lambda entry: not entry.is_urgent)


def _handlers(config: Config, parts: Parts) -> Iterator[Ignored]:
    for handlers in filter(None, (parts.train_handlers, parts.val_handlers)):
        for id_, handler in config.components(handlers):
            name = base_name(str(handler["_target_"]))
            reasons = HANDLERS.get(name, UNKNOWN_HANDLER)
            urgent = name == "CheckpointLoader" or _freezes(config, id_)
            yield Ignored(f"the handler '{name}' ({id_})", *reasons, id=id_, is_urgent=urgent)


def _arguments(config: Config, parts: Parts, used: Used) -> Iterator[Ignored]:
    """The arguments of the trainer, the loaders and the data sets that a federation does not take."""
    reasons_of = {"trainer": TRAINER, "train_dataloader": LOADER, "val_dataloader": LOADER}
    for part, handled in HANDLED.items():
        id_ = parts.ids()[part]
        value = config.value(id_) if id_ else None
        if part == "val_dataset" and id_ == parts.train_dataset:
            continue
        for name in value if isinstance(value, Mapping) else ():
            place = f"{config.follow(str(id_))}#{name}"
            is_same = config.get(place) is None or (name == "shuffle" and config.literal(place) is True)
            if name in handled or is_same or used.has_effect(place):
                continue
            default = (
                DATASET_REASON if part.endswith("dataset") else ("medfl has a training loop of its own", "nothing")
            )
            yield Ignored(f"'{place}'", *reasons_of.get(part, {}).get(name, default), id=place)


def _containers(config: Config, parts: Parts) -> Iterator[str]:
    """Ids whose parts are listed one by one, or are taken."""
    ids = parts.ids()
    for name in (*HANDLED, "train_handlers", "val_handlers", "evaluator"):
        if id_ := ids[name]:
            yield id_


def _unused(config: Config, used: Used, content: Mapping[str, Any], known: Collection[str]) -> Iterator[Ignored]:
    for id_ in unused_ids(config, used, content, known):
        users = [top for top in content if top != id_ and id_ in config.references(top)]
        why = "only what is left out refers to it" if users else "nothing that a run builds refers to it"
        yield Ignored(f"the id '{id_}'", why, "nothing", id=id_, is_urgent=_freezes(config, id_))


def _freezes(config: Config, id_: str) -> bool:
    return any(FREEZING.search(f"{place} {text}") for place, text in config.texts(id_)) or bool(FREEZING.search(id_))


def _savers(evaluate: Config, parts: Parts) -> Iterator[Ignored]:
    for id_, transform in evaluate.components(parts.val_postprocessing) if parts.val_postprocessing else ():
        if base_name(str(transform["_target_"])) in SAVERS:
            what = f"the transform '{base_name(str(transform['_target_']))}' ({id_})"
            yield Ignored(what, "it writes images or rows of patients", "the bundle that the site takes home")


def _sequences(config: Config, parts: Parts) -> Iterator[Ignored]:
    """The steps of ``run`` and ``finalize``."""
    for name, why in (
        ("run", "a run trains round by round"),
        ("finalize", "a run ends when its last round is saved"),
    ):
        value = config.value(name)
        steps = [f"{name}#{index}" for index in range(len(value))] if isinstance(value, list) else [name]
        for id_ in steps if value else ():
            yield Ignored(f"the step '{id_}'", why, "nothing", id=id_, is_urgent=_freezes(config, id_))


def _launchers(others: Mapping[str, Any]) -> Iterator[Ignored]:
    for file, content in others.items():
        if any(word in str(content) for word in SEVERAL_GPUS):
            yield Ignored(
                f"the launcher of several GPUs 'configs/{file}'",
                "a site trains in one process on one device",
                "the setting device at each site, and workers for several sites on one machine",
            )
