"""Find the ids of a bundle's parts (trainer, network, loss, data sets and so on), and unsupported parts.

An id is the path of an entry in a bundle's configuration, such as ``train#trainer``. MONAI calls trainer and evaluator
engines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from medfl.bundle.check.references import required_properties
from medfl.errors import SettingsError
from medfl_adopt.config import BundleConfig, base_name, is_expression

TRAINER_CLASS, EVALUATOR_CLASS = "SupervisedTrainer", "SupervisedEvaluator"
"""Class names of MONAI's engines for training and for validation."""

ENGINE_IDS = {TRAINER_CLASS: ("train#trainer", "trainer"), EVALUATOR_CLASS: ("validate#evaluator", "evaluator")}
"""Maps the class name of each engine to the ids at which a bundle may define it.

These are MONAI's id, and the top-level id of older bundles and of the zoo's templates.
"""

REQUIRED_TRAINER_ARGUMENTS = {
    "network": "network to train",
    "optimizer": "optimizer",
    "loss_function": "loss",
    "train_data_loader": "data loader",
}
"""Maps each required argument of the trainer to its description."""

OPTIONAL_IDS = ("train#dataset", "train#inferer")
"""Ids that MONAI requires, but that may be absent if the trainer is defined at the top-level id ``trainer``."""

DATASET_DIR_HINT = (
    " A site's folder replaces 'dataset_dir': if another id is the folder of the cases, set it to '@dataset_dir', and "
    "move its value to 'dataset_dir'."
)
"""Advice in the error for a configuration without the id ``dataset_dir``."""

OPTIMIZER_PACKAGES = ("torch.optim", "monai.optimizers")
"""Packages whose classes are recognized as optimizers."""


@dataclass(frozen=True)
class PartIds:
    """Ids of the parts of a site's training in the configuration; None for an absent part.

    Each field contains the id of the component that the list describes.

    Attributes:
        trainer: MONAI's trainer.
        network: Definition of the network, not yet on a device. `medfl adopt` reads the network's properties from this
            definition.
        trained: Network of the trainer: the definition `network`, possibly within an expression that moves the network
            to a device, loads weights, freezes parameters or wraps the network. A run builds this id.
        loss: Loss.
        optimizer: Optimizer, with the parameters of a network.
        optimizer_params: Parameters that the optimizer is given.
        amp: Whether training is in mixed precision.
        prepare_batch: Function that extracts inputs and targets from a batch; None means MONAI's, with the keys image
            and label.
        lr_schedule: Learning-rate scheduler.
        train_dataset: Training data set.
        train_dataloader: Loader of the training batches.
        train_inferer: Inferer that applies the network in training.
        train_preprocessing: Transforms of a training case.
        train_postprocessing: Transforms of an output in training.
        train_key_metric: Key metric in training.
        train_handlers: Handlers of the trainer.
        evaluator: MONAI's evaluator; None if the bundle has no validation.
        val_dataset: Validation data set.
        val_dataloader: Loader of the validation batches.
        val_inferer: Inferer that applies the network in validation.
        val_preprocessing: Transforms of a validation case.
        val_postprocessing: Transforms of an output in validation.
        val_key_metric: Key metric in validation.
        val_additional_metrics: Further metrics in validation.
        val_handlers: Handlers of the evaluator.
    """

    trainer: str = "train#trainer"
    network: str = ""
    trained: str = ""
    loss: str = ""
    optimizer: str = ""
    optimizer_params: str | None = None
    amp: str | None = None
    prepare_batch: str | None = None
    lr_schedule: str | None = None
    train_dataset: str = ""
    train_dataloader: str | None = None
    train_inferer: str | None = None
    train_preprocessing: str | None = None
    train_postprocessing: str | None = None
    train_key_metric: str | None = None
    train_handlers: str | None = None
    evaluator: str | None = None
    val_dataset: str | None = None
    val_dataloader: str | None = None
    val_inferer: str | None = None
    val_preprocessing: str | None = None
    val_postprocessing: str | None = None
    val_key_metric: str | None = None
    val_additional_metrics: str | None = None
    val_handlers: str | None = None

    def ids(self) -> dict[str, str | None]:
        """Return a mapping from the name of each part to its id."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def find_problems(config: BundleConfig) -> list[SettingsError]:
    """Return an error for each reason why no federation can be made from a training configuration; empty if none."""
    problems = []
    id_of_trainer = engine_id(config, TRAINER_CLASS)
    trainer = config.value(id_of_trainer)
    required = [
        (id_.replace("train#trainer", id_of_trainer), description)
        for id_, description in required_properties("train")
        if id_of_trainer == "train#trainer" or id_ not in OPTIONAL_IDS
    ]
    missing = {id_: description for id_, description in required if config.follow(id_) not in config}
    for engine in (TRAINER_CLASS, EVALUATOR_CLASS):
        id_ = engine_id(config, engine)
        if config.value(id_) is not None:
            problems += _check_engine(config, id_, engine)
    if isinstance(trainer, Mapping):
        missing |= {
            f"{id_of_trainer}#{name}": what
            for name, what in REQUIRED_TRAINER_ARGUMENTS.items()
            if trainer.get(name) is None
        }
        if trainer.get("iteration_update") is not None:
            step = f"{id_of_trainer}#iteration_update"
            text = (
                f"'{step}' replaces the trainer's step: expected no such argument, because medfl has its own training "
                "loop, which adds the method's terms to the loss. Move the difference into the loss."
            )
            problems.append(SettingsError("unsupported_step", text, id=step))
        problems += _check_single_network(config, id_of_trainer, trainer)
    if missing:
        names = ", ".join(f"{id_} ({description})" for id_, description in missing.items())
        text = (
            f"{len(missing)} ids are missing: {names}. Add them; use a reference such as '@other#id' for a value that "
            f"another id contains.{DATASET_DIR_HINT if 'dataset_dir' not in config else ''}"
        )
        problems.insert(0, SettingsError("missing_ids", text, ids=list(missing)))
    return problems


def read_parts(config: BundleConfig) -> PartIds:
    """Return the ids of the parts of a configuration for which `find_problems` returns no errors."""
    trainer, evaluator = config.follow(engine_id(config, TRAINER_CLASS)), None
    if config.value(engine_id(config, EVALUATOR_CLASS)) is not None:
        evaluator = config.follow(engine_id(config, EVALUATOR_CLASS))
    optimizer = config.follow(f"{trainer}#optimizer")
    parts: dict[str, str | None] = {
        "trainer": trainer,
        "network": _find_network_id(config, trainer),
        "trained": config.follow(f"{trainer}#network"),
        "loss": config.follow(f"{trainer}#loss_function"),
        "optimizer": optimizer,
        "optimizer_params": config.child(optimizer, "params"),
        "amp": config.child(trainer, "amp"),
        "prepare_batch": config.child(trainer, "prepare_batch"),
        "evaluator": evaluator,
    }
    for side, engine, names in (
        ("train", trainer, ("train_data_loader", "key_train_metric", "train_handlers")),
        ("val", evaluator, ("val_data_loader", "key_val_metric", "val_handlers")),
    ):
        if engine is None:
            continue
        top = "train" if side == "train" else "validate"
        loader = config.child(engine, names[0])
        dataset = config.child(loader, "dataset") if loader else None
        dataset = dataset or config.child(top, "dataset")
        parts |= {
            f"{side}_dataloader": loader,
            f"{side}_dataset": dataset,
            f"{side}_inferer": config.child(engine, "inferer"),
            f"{side}_preprocessing": config.child(dataset, "transform") if dataset else None,
            f"{side}_postprocessing": config.child(engine, "postprocessing"),
            f"{side}_key_metric": config.child(engine, names[1]),
            f"{side}_handlers": config.child(engine, names[2]),
        }
    if evaluator is not None:
        parts["val_additional_metrics"] = config.child(evaluator, "additional_metrics")
    for handlers in filter(None, (parts["train_handlers"], parts.get("val_handlers"))):
        for id_, handler in config.components(handlers):
            if base_name(str(handler["_target_"])) == "LrScheduleHandler":
                parts["lr_schedule"] = config.child(id_, "lr_scheduler")
    return PartIds(**parts)  # type: ignore[arg-type]


def engine_id(config: BundleConfig, engine: str) -> str:
    """Return the id in `ENGINE_IDS` at which an engine is defined, or MONAI's id if it is not defined."""
    return next((id_ for id_ in ENGINE_IDS[engine] if config.value(id_) is not None), ENGINE_IDS[engine][0])


def _find_network_id(config: BundleConfig, trainer: str) -> str | None:
    """Return the id of the network's definition.

    It is ``network_def``, or the component that the trainer's network refers to.
    """
    if "network_def" in config:
        return config.follow("network_def")
    id_ = config.follow(f"{trainer}#network")
    if config.target(id_):
        return id_
    definitions = [config.follow(ref) for ref in config.references(id_) if config.target(ref)]
    return definitions[0] if len(definitions) == 1 else None


def _check_engine(config: BundleConfig, id_: str, expected: str) -> list[SettingsError]:
    """Return an error if an engine is not MONAI's own, in a list."""
    target = config.target(id_)
    accepted = {expected, *(f"monai.engines.{module}{expected}" for module in ("", "trainer.", "evaluator."))}
    if target in accepted:
        return []
    value = config.value(id_)
    written = target or (value if isinstance(value, str) else f"a {type(value).__name__}")
    text = (
        f"expected MONAI's {expected} at '{id_}', got '{written}'. medfl can't know the steps of another engine and "
        f"would ignore them. Write the task for {expected}, or run the bundle without a federation."
    )
    return [SettingsError("unsupported_engine", text, id=id_, expected=expected, found=written)]


def _check_single_network(config: BundleConfig, id_: str, trainer: Mapping[str, Any]) -> list[SettingsError]:
    """Return an error if a trainer has several networks or several optimizers, in a list."""
    problems = []
    fields: dict[str, Any] = {}
    for name in ("network", "optimizer"):
        value = config.value(f"{id_}#{name}")
        if isinstance(value, list) or (isinstance(value, Mapping) and "_target_" not in value):
            problems.append(f"'{id_}#{name}' contains {len(value)} entries")
            fields[name] = len(value)
    if trainer.get("network") is not None and "network_def" not in config and _find_network_id(config, id_) is None:
        problems.append(
            f"the network's definition can't be found from '{id_}#network'; name the component 'network_def'"
        )
        fields["missing"] = "network_def"
    used = config.targets(config.reachable_ids(id_))
    optimizers = sorted(id_ for id_, target in used.items() if _is_optimizer(target))
    if len(optimizers) > 1:
        problems.append(f"the trainer uses {len(optimizers)} optimizers: {', '.join(optimizers)}")
        fields["optimizers"] = optimizers
    if not problems:
        return []
    text = (
        f"{'; '.join(problems)}: expected one network and one optimizer. A federation trains and shares one network. "
        "Train the other networks separately, and load their weights in the network's constructor."
    )
    return [SettingsError("several_networks", text, id=id_, **fields)]


def _is_optimizer(target: str) -> bool:
    """Return whether a target is an optimizer of torch or MONAI."""
    import torch
    from monai import optimizers

    kinds = {**vars(torch.optim), **vars(optimizers)}
    kind = kinds.get(base_name(target)) if "." not in target or target.startswith(OPTIMIZER_PACKAGES) else None
    return isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)


def read_amp(config: BundleConfig, parts: PartIds) -> bool | None:
    """Return whether the bundle trains in mixed precision; None if only running it can tell."""
    value = config.get(parts.amp) if parts.amp else False
    return None if is_expression(value) or not isinstance(value, bool | int) else bool(value)
