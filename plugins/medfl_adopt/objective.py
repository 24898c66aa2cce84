"""Which objective a bundle learns, recognised from signs that its configuration gives, each of which says why."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from medfl.errors import SettingsError, check_choice
from medfl.objectives import Objective, objective_class, read_objective
from medfl_adopt.config import LOAD_IMAGE, Config, base_name
from medfl_adopt.parts import Parts

KINDS = {
    "multiclass": "one class of several for an image",
    "binary": "one of two classes for an image",
    "multilabel": "several findings in an image, each there or not",
    "regression": "numbers for an image",
    "survival": "a time and an event for an image",
    "segmentation": "a mask, one class for each voxel",
    "overlapping_segmentation": "masks that may overlap, a channel for each label",
}
"""What can be recognised, and given as ``--objective``. The last one is the objective ``segmentation``, too."""

MASKS = frozenset({"segmentation", "overlapping_segmentation"})
CLASSES = frozenset({"multiclass", "binary", "segmentation"})
LABELS = frozenset({"binary", "multilabel", "overlapping_segmentation"})
IMAGE_VALUES = frozenset(KINDS) - MASKS
CATEGORIES = frozenset(KINDS) - {"regression", "survival"}

LOSSES = {
    "CrossEntropyLoss": CLASSES,
    "NLLLoss": CLASSES,
    "BCEWithLogitsLoss": LABELS,
    "BCELoss": LABELS,
    "MultiLabelSoftMarginLoss": frozenset({"multilabel"}),
    "MSELoss": frozenset({"regression"}),
    "L1Loss": frozenset({"regression"}),
    "SmoothL1Loss": frozenset({"regression"}),
    "HuberLoss": frozenset({"regression"}),
    "GaussianNLLLoss": frozenset({"regression"}),
}
"""Losses that compare a known kind of output; those on the overlap of masks are told by their names."""

OVERLAP = ("dice", "tversky", "hausdorff", "jaccard", "iou", "unifiedfocal")
SURVIVAL = ("cox", "survival")

METRICS = {
    "MeanDice": MASKS,
    "DiceMetric": MASKS,
    "DiceHelper": MASKS,
    "HausdorffDistance": MASKS,
    "SurfaceDistance": MASKS,
    "SurfaceDice": MASKS,
    "MeanIoUHandler": MASKS,
    "PanopticQuality": MASKS,
    "ROCAUC": IMAGE_VALUES & CATEGORIES,
    "AveragePrecision": IMAGE_VALUES & CATEGORIES,
    "ConfusionMatrix": CATEGORIES,
    "Accuracy": CATEGORIES,
    "MeanSquaredError": frozenset({"regression"}),
    "MeanAbsoluteError": frozenset({"regression"}),
    "RootMeanSquaredError": frozenset({"regression"}),
    "RegressionMetrics": frozenset({"regression"}),
}

LABEL_TO_CLASS = ("SetLabelClassd", "SetLabelClassD", "SetLabelClassDict")
"""Transforms that make one class of a mask, as MONAI's for nuclei."""

CLASSIFIERS = re.compile(
    r"(Dense[nN]et|(SE)?Res[nN]e[xX]?t|SENet|EfficientNet|TorchVisionFCModel|Classifier|Regressor|ViT$)(?!.*(Unet|UNet))"
)
"""Names of MONAI's networks that give one vector for an image, from the beginning of the name."""

OUTPUTS = ("out_channels", "num_classes", "n_classes", "out_features")
"""Arguments of networks that say how many outputs there are."""


@dataclass(frozen=True)
class Sign:
    """Something in a configuration that tells of the objective.

    Attributes:
        text: What stands where, for reading.
        kinds: Those of `KINDS` that it allows.
    """

    text: str
    kinds: frozenset[str]


@dataclass(frozen=True)
class Recognition:
    """What a bundle learns.

    Attributes:
        name: The objective's name.
        overlapping: For segmentation, whether there is a channel for each label.
        outputs: Channels of the network's output; None where only running tells.
        chosen: Whether it was given and not recognised.
        signs: What speaks for it, and against it.
    """

    name: str
    overlapping: bool
    outputs: int | None
    chosen: bool
    signs: tuple[Sign, ...]

    @property
    def kind(self) -> str:
        """Which of `KINDS` it is."""
        return f"overlapping_{self.name}" if self.overlapping else self.name

    @property
    def made(self) -> Objective | None:
        """The objective; None where nobody knows how many channels the network puts out."""
        return make_objective(self.name, self.overlapping, self.outputs)


def make_objective(
    name: str, overlapping: bool, outputs: int | None, spacing: str | Sequence[float] | None = None
) -> Objective | None:
    """An objective of its name and the channels of a network's output; None where it needs these and has none.

    Args:
        name: Name of the objective.
        overlapping: For segmentation, whether labels may overlap.
        outputs: The channels.
        spacing: For segmentation, as `medfl.objectives.Segmentation` has it.
    """
    field = objective_class(name).outputs_field
    if field is not None and outputs is None:
        return None
    values: dict[str, Any] = {} if field is None else {field: outputs}
    values |= {"overlapping": True} if overlapping else {}
    return read_objective({"name": name} | values | ({} if spacing is None else {"spacing": spacing}))


def recognise(config: Config, parts: Parts, metadata: Mapping[str, Any], chosen: str | None = None) -> Recognition:
    """Recognise the objective.

    Each sign allows some kinds; the objective is the kind that all signs allow.

    Args:
        config: The training configuration.
        parts: Its parts.
        metadata: The bundle's, which may tell how many channels the network's output has.
        chosen: One of `KINDS`, which then wins over all signs.

    Raises:
        SettingsError: If several kinds are left, or none, with all signs.
    """
    if chosen is not None:
        check_choice("objective", chosen, KINDS)
    outputs = _outputs(config, parts, metadata)
    signs = [*_signs(config, parts), *_sign_of_network(config, parts), *_sign_of_outputs(outputs)]
    left = set(KINDS)
    for sign in signs:
        left &= sign.kinds
    if chosen is None and len(left) != 1:
        problem = f"the signs leave {', '.join(sorted(left))}" if left else "the signs contradict one another"
        reasons = "".join(f"\n    - {_line(sign)}" for sign in signs) or "\n    - none that is known"
        raise SettingsError(
            "ambiguous_objective",
            f"the objective can't be told: {problem}:{reasons}\n    Give it as --objective, one of: "
            f"{', '.join(KINDS)}. Tasks of another kind (images from images, points, boxes) medfl does not have.",
            kinds=left,
            signs=[_line(sign) for sign in signs],
        )
    kind = chosen or left.pop()
    name = kind.removeprefix("overlapping_")
    return Recognition(name, kind != name, outputs[0] if outputs else None, chosen is not None, tuple(signs))


def _line(sign: Sign) -> str:
    return f"{sign.text}: {', '.join(sorted(sign.kinds))}"


def _signs(config: Config, parts: Parts) -> Iterator[Sign]:
    yield from _signs_of_loss(config, parts.loss)
    yield from _signs_of_reading(config, parts)
    postprocessing = parts.val_postprocessing or parts.train_postprocessing
    if postprocessing:
        yield from _signs_of_postprocessing(config, postprocessing)
    metrics = parts.val_key_metric or parts.train_key_metric
    for id_, metric in config.components(metrics) if metrics else ():
        name = base_name(str(metric["_target_"]))
        if name in METRICS:
            yield Sign(f"the key metric '{name}' ({id_})", METRICS[name])


def _signs_of_loss(config: Config, id_: str) -> Iterator[Sign]:
    loss = config.value(id_)
    name = base_name(config.target(id_))
    if not isinstance(loss, Mapping) or not name:
        return
    if name == "DeepSupervisionLoss":
        yield from _signs_of_loss(config, f"{config.follow(id_)}#loss")
        return
    arguments = {key: config.literal(f"{config.follow(id_)}#{key}") for key in loss}
    written = ", ".join(f"{key} {str(arguments[key]).lower()}" for key in _SWITCHES if key in arguments)
    text = f"the loss '{name}'{f' with {written}' if written else ''} ({id_})"
    if name in LOSSES:
        yield Sign(text, LOSSES[name])
    elif any(word in name.lower() for word in SURVIVAL):
        yield Sign(text, frozenset({"survival"}))
    elif any(word in name.lower() for word in OVERLAP):
        yield Sign(text, MASKS & _kinds_of_switches(arguments, frozenset(KINDS)))
    elif name == "FocalLoss":
        yield Sign(text, _kinds_of_switches(arguments, LABELS))


_SWITCHES = ("to_onehot_y", "sigmoid", "softmax", "use_softmax")


def _kinds_of_switches(arguments: Mapping[str, Any], otherwise: frozenset[str]) -> frozenset[str]:
    """A target that the loss itself turns one-hot is a class for each place, whatever the activation is."""
    if any(arguments.get(name) is True for name in ("to_onehot_y", "softmax", "use_softmax")):
        return CLASSES
    return LABELS if arguments.get("sigmoid") is True else otherwise


def _signs_of_reading(config: Config, parts: Parts) -> Iterator[Sign]:
    """Whether the label is an image; with a function of its own for batches nobody can tell what the label is."""
    if parts.train_preprocessing is None or parts.prepare_batch is not None:
        return
    transforms = list(config.components(parts.train_preprocessing))
    loaders = []
    for id_, transform in transforms:
        name = base_name(str(transform["_target_"]))
        if name.startswith("ConvertToMultiChannel"):
            yield Sign(f"'{name}' makes a channel for each label ({id_})", frozenset({"overlapping_segmentation"}))
        if base_name(str(transform["_target_"])) in LOAD_IMAGE:
            loaders.append((id_, config.keys(id_)))
        if name in LABEL_TO_CLASS and "label" in config.keys(id_):
            yield Sign(f"'{name}' makes one value of the label ({id_})", IMAGE_VALUES)
    if any("label" in keys for _, keys in loaders):
        id_ = next(id_ for id_, keys in loaders if "label" in keys)
        yield Sign(f"'label' is read as an image ({id_})", MASKS)
    elif loaders and all(keys for _, keys in loaders) and all(_is_known(transform) for _, transform in transforms):
        id_, keys = loaders[0]
        yield Sign(f"only {_quoted(keys)} is read as an image, 'label' is a value ({id_})", IMAGE_VALUES)


def _signs_of_postprocessing(config: Config, id_: str) -> Iterator[Sign]:
    for place, transform in config.components(id_):
        name = base_name(str(transform["_target_"]))
        if name in ("Activationsd", "ActivationsD", "ActivationsDict"):
            if _for_prediction(config, place, "softmax"):
                yield Sign(f"the output gets a softmax ({place})", CLASSES)
            elif _for_prediction(config, place, "sigmoid"):
                yield Sign(f"the output gets a sigmoid ({place})", LABELS)
        elif name in ("AsDiscreted", "AsDiscreteD", "AsDiscreteDict"):
            if _for_prediction(config, place, "argmax"):
                yield Sign(f"the output's largest channel is taken ({place})", CLASSES)
            elif _for_prediction(config, place, "threshold"):
                yield Sign(f"each channel of the output is cut at a threshold ({place})", LABELS)


def _for_prediction(config: Config, id_: str, argument: str) -> Any:
    """What a transform's argument says for the key ``pred``; a list has one for each key."""
    keys, value = config.keys(id_), config.literal(f"{id_}#{argument}")
    if isinstance(value, list):
        position = keys.index("pred") if "pred" in keys else 0
        return value[position] if position < len(value) else None
    return value if "pred" in keys else None


def _sign_of_network(config: Config, parts: Parts) -> Iterator[Sign]:
    target = config.target(parts.network)
    name = base_name(target)
    if CLASSIFIERS.match(name) and (target == name or target.startswith("monai.networks.")):
        yield Sign(f"the network '{name}' gives one vector for an image ({parts.network})", IMAGE_VALUES)


def _sign_of_outputs(outputs: tuple[int, str] | None) -> Iterator[Sign]:
    if outputs is None:
        return
    number, id_ = outputs
    several = frozenset({"multilabel", "regression"}) | MASKS
    kinds = {1: frozenset({"binary", "regression", "survival", "overlapping_segmentation"}), 2: several | {"binary"}}
    text = f"the network has {number} output channel{'s' if number != 1 else ''} ({id_})"
    yield Sign(text, kinds.get(number, several | {"multiclass"}))


def _outputs(config: Config, parts: Parts, metadata: Mapping[str, Any]) -> tuple[int, str] | None:
    """How many channels the network gives, and where that stands."""
    for name in OUTPUTS:
        id_ = f"{parts.network}#{name}"
        if id_ in config and _is_number(number := config.value(id_)):
            return number, id_
    format_: Any = metadata
    for key in ("network_data_format", "outputs", "pred", "num_channels"):
        format_ = format_.get(key) if isinstance(format_, Mapping) else None
    return (format_, "metadata, network_data_format#outputs#pred#num_channels") if _is_number(format_) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_known(transform: Mapping[str, Any]) -> bool:
    """Whether a transform is MONAI's, so that its name says what it does."""
    target = str(transform["_target_"])
    return "." not in target or target.startswith("monai.")


def _quoted(words: Iterable[str]) -> str:
    return ", ".join(f"'{word}'" for word in words)
