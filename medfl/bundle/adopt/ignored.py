"""What of a bundle a federation leaves out, why, and how to say it otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from medfl.bundle.adopt.config import Config, base_name
from medfl.bundle.adopt.parts import Parts

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
    "sampler": ("each pass visits every case once, in an order of the run's seed", "the settings balance and steps"),
    "batch_sampler": ("each pass visits every case once, in an order of the run's seed", "the setting batch_size"),
    "drop_last": ("no case is left out of a pass", "nothing"),
    "repeats": ("a batch is trained on once", "the setting epochs"),
}
"""Arguments of the training loader that are left out."""

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
    """

    what: str
    why: str
    instead: str


def read_ignored(config: Config, evaluate: Config, parts: Parts, others: Mapping[str, Any]) -> list[Ignored]:
    """What a federation leaves out of a bundle.

    Args:
        config: The training configuration.
        evaluate: The same with ``evaluate`` laid over it.
        parts: Its parts.
        others: File name to content of the bundle's further configurations.
    """
    return [
        *_handlers(config, parts),
        *_trainer(config, parts),
        *_loader(config, parts),
        *_savers(evaluate, parts),
        *_sequences(config),
        *_launchers(others),
    ]


def _handlers(config: Config, parts: Parts) -> Iterator[Ignored]:
    for handlers in filter(None, (parts.train_handlers, parts.val_handlers)):
        for id_, handler in config.components(handlers):
            name = base_name(str(handler["_target_"]))
            yield Ignored(f"the handler '{name}' ({id_})", *HANDLERS.get(name, UNKNOWN_HANDLER))


def _trainer(config: Config, parts: Parts) -> Iterator[Ignored]:
    for name, reasons in TRAINER.items():
        if config.child(parts.trainer, name) is not None:
            yield Ignored(f"'{parts.trainer}#{name}'", *reasons)


def _loader(config: Config, parts: Parts) -> Iterator[Ignored]:
    loader = parts.train_dataloader
    for name, reasons in LOADER.items() if loader else ():
        if loader and config.child(loader, name) is not None:
            yield Ignored(f"'{loader}#{name}'", *reasons)


def _savers(evaluate: Config, parts: Parts) -> Iterator[Ignored]:
    for id_, transform in evaluate.components(parts.val_postprocessing) if parts.val_postprocessing else ():
        if base_name(str(transform["_target_"])) in SAVERS:
            what = f"the transform '{base_name(str(transform['_target_']))}' ({id_})"
            yield Ignored(what, "it writes images or rows of patients", "the bundle that the site takes home")


def _sequences(config: Config) -> Iterator[Ignored]:
    for name, why in (
        ("run", "a run trains round by round"),
        ("finalize", "a run ends when its last round is saved"),
    ):
        if config.value(name):
            yield Ignored(f"the sequence '{name}'", why, "nothing")


def _launchers(others: Mapping[str, Any]) -> Iterator[Ignored]:
    for file, content in others.items():
        if any(word in str(content) for word in SEVERAL_GPUS):
            yield Ignored(
                f"the launcher of several GPUs 'configs/{file}'",
                "a site trains in one process on one device",
                "the setting device at each site, and workers for several sites on one machine",
            )
