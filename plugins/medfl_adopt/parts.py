"""What a bundle's trainer is made of, and what about it no federation can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from medfl.bundle.check.references import required_properties
from medfl.errors import SettingsError
from medfl_adopt.config import Config, base_name, is_expression

TRAINER, EVALUATOR = "SupervisedTrainer", "SupervisedEvaluator"

PLACES = {TRAINER: ("train#trainer", "trainer"), EVALUATOR: ("validate#evaluator", "evaluator")}
"""Ids of engines: MONAI's, and those at the top that older bundles and the zoo's templates have."""

TRAINER_PARTS = {
    "network": "the network that it trains",
    "optimizer": "its optimiser",
    "loss_function": "its loss",
    "train_data_loader": "its data loader",
}
"""Arguments of the trainer without which nothing can be trained, and what they are."""

TOLD_BY_TRAINER = ("train#dataset", "train#inferer")
"""What MONAI requires under ids of their own, and a trainer at the top has by its loader, or need not have."""

LACKS_DATASET_DIR = (
    " A site's folder enters as 'dataset_dir': where another id is the folder of the cases, put '@dataset_dir' there, "
    "and its value under 'dataset_dir'."
)

OPTIMIZERS = ("torch.optim", "monai.optimizers")
"""Packages of optimisers."""


@dataclass(frozen=True)
class Parts:
    """Where in the configuration each part of a site's training stands; None where there is no such part.

    Attributes:
        trainer: MONAI's trainer.
        network: The definition of the network, on no device yet; what can be told of the network is read there.
        trained: The network as the trainer has it: the definition, with what an expression around it does (moving,
            loading weights, freezing, wrapping). This is what a run builds.
        loss: The loss.
        optimizer: The optimiser, with a network's parameters.
        optimizer_params: What the optimiser is given as parameters.
        amp: Whether training is in mixed precision.
        prepare_batch: The function that makes inputs and targets of a batch; None is MONAI's, keys image and label.
        lr_schedule: The scheduler of the learning rate.
        train_dataset: The training data set.
        train_dataloader: The loader of its batches.
        train_inferer: How the network is applied in training.
        train_preprocessing: The transforms of a training case.
        train_postprocessing: The transforms of an output in training.
        train_key_metric: The key metric in training.
        train_handlers: The trainer's handlers.
        evaluator: MONAI's evaluator, None where the bundle does not validate.
        val_dataset: The validation data set.
        val_dataloader: The loader of its batches.
        val_inferer: How the network is applied in validation.
        val_preprocessing: The transforms of a validation case.
        val_postprocessing: The transforms of an output in validation.
        val_key_metric: The key metric in validation.
        val_additional_metrics: Further metrics in validation.
        val_handlers: The evaluator's handlers.
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
        """Name of each part to its id."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def problems_of(config: Config) -> list[SettingsError]:
    """Return why no federation can be made of a training configuration, an error for each reason."""
    problems = []
    id_of_trainer = engine_id(config, TRAINER)
    trainer = config.value(id_of_trainer)
    required = [
        (id_.replace("train#trainer", id_of_trainer), description)
        for id_, description in required_properties("train")
        if id_of_trainer == "train#trainer" or id_ not in TOLD_BY_TRAINER
    ]
    missing = {id_: description for id_, description in required if config.follow(id_) not in config}
    for engine in (TRAINER, EVALUATOR):
        id_ = engine_id(config, engine)
        if config.value(id_) is not None:
            problems += _problems_of_engine(config, id_, engine)
    if isinstance(trainer, Mapping):
        missing |= {
            f"{id_of_trainer}#{name}": what for name, what in TRAINER_PARTS.items() if trainer.get(name) is None
        }
        if trainer.get("iteration_update") is not None:
            step = f"{id_of_trainer}#iteration_update"
            text = (
                f"'{step}' puts a step of its own in place of the trainer's: expected none, "
                "for medfl trains in its own loop, with the method's terms in the loss. Put what differs into the "
                "loss."
            )
            problems.append(SettingsError("unsupported_step", text, id=step))
        problems += _several(config, id_of_trainer, trainer)
    if missing:
        names = ", ".join(f"{id_} ({description})" for id_, description in missing.items())
        text = (
            f"{len(missing)} ids are missing: {names}. Add them; a value that stands elsewhere may be "
            f"named by a reference, as '@other#id'.{LACKS_DATASET_DIR if 'dataset_dir' not in config else ''}"
        )
        problems.insert(0, SettingsError("missing_ids", text, ids=list(missing)))
    return problems


def read_parts(config: Config) -> Parts:
    """The parts of a configuration of which `problems_of` finds none."""
    trainer, evaluator = config.follow(engine_id(config, TRAINER)), None
    if config.value(engine_id(config, EVALUATOR)) is not None:
        evaluator = config.follow(engine_id(config, EVALUATOR))
    optimizer = config.follow(f"{trainer}#optimizer")
    parts: dict[str, str | None] = {
        "trainer": trainer,
        "network": _network(config, trainer),
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
    return Parts(**parts)  # type: ignore[arg-type]


def engine_id(config: Config, engine: str) -> str:
    """The id of an engine: that of `PLACES` where something stands; MONAI's where nothing does."""
    return next((id_ for id_ in PLACES[engine] if config.value(id_) is not None), PLACES[engine][0])


def _network(config: Config, trainer: str) -> str | None:
    """The id of the network's definition: MONAI's ``network_def``, or the component that the trainer's is made of."""
    if "network_def" in config:
        return config.follow("network_def")
    id_ = config.follow(f"{trainer}#network")
    if config.target(id_):
        return id_
    definitions = [config.follow(ref) for ref in config.references(id_) if config.target(ref)]
    return definitions[0] if len(definitions) == 1 else None


def _problems_of_engine(config: Config, id_: str, expected: str) -> list[SettingsError]:
    """Return why an engine is not MONAI's own."""
    target = config.target(id_)
    own = {expected, *(f"monai.engines.{module}{expected}" for module in ("", "trainer.", "evaluator."))}
    if target in own:
        return []
    value = config.value(id_)
    written = target or (value if isinstance(value, str) else f"a {type(value).__name__}")
    text = (
        f"'{id_}' is '{written}': expected MONAI's {expected}. An engine of its own does what medfl can't know: its "
        f"steps would be left out. Write the task for {expected}, or run the bundle alone."
    )
    return [SettingsError("unsupported_engine", text, id=id_, expected=expected, found=written)]


def _several(config: Config, id_: str, trainer: Mapping[str, Any]) -> list[SettingsError]:
    """Return an error if a trainer has several networks or several optimisers, else nothing."""
    problems = []
    fields: dict[str, Any] = {}
    for name in ("network", "optimizer"):
        value = config.value(f"{id_}#{name}")
        if isinstance(value, list) or (isinstance(value, Mapping) and "_target_" not in value):
            problems.append(f"'{id_}#{name}' holds {len(value)} of them")
            fields[name] = len(value)
    if trainer.get("network") is not None and "network_def" not in config and _network(config, id_) is None:
        problems.append(
            f"the network's definition can't be told from '{id_}#network'; name the component 'network_def'"
        )
        fields["missing"] = "network_def"
    used = config.targets(config.reach(id_))
    optimizers = sorted(id_ for id_, target in used.items() if _is_optimizer(target))
    if len(optimizers) > 1:
        problems.append(f"the trainer uses {len(optimizers)} optimisers: {', '.join(optimizers)}")
        fields["optimizers"] = optimizers
    if not problems:
        return []
    text = (
        f"{'; '.join(problems)}: expected one network and one optimiser. A federation trains and shares one network; "
        "train the others elsewhere, and load their weights in the network's constructor."
    )
    return [SettingsError("several_networks", text, id=id_, **fields)]


def _is_optimizer(target: str) -> bool:
    """Whether a target is an optimiser of torch or MONAI."""
    import torch
    from monai import optimizers

    kinds = {**vars(torch.optim), **vars(optimizers)}
    kind = kinds.get(base_name(target)) if "." not in target or target.startswith(OPTIMIZERS) else None
    return isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)


def amp_of(config: Config, parts: Parts) -> bool | None:
    """Whether the bundle trains in mixed precision; None where only running tells."""
    value = config.get(parts.amp) if parts.amp else False
    return None if is_expression(value) or not isinstance(value, bool | int) else bool(value)
