"""Recognize the learning objective of a bundle, such as classification or segmentation, from its configuration.

A sign is evidence in the configuration, such as the class of the loss. Each sign allows some kinds of objectives.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from medfl.errors import SettingsError, check_choice
from medfl.objectives import Objective, objective_class, read_objective
from medfl_adopt.config import LOAD_IMAGE, BundleConfig, base_name
from medfl_adopt.parts import PartIds

OBJECTIVE_KINDS = {
    "multiclass": "one of several classes for each image",
    "binary": "one of two classes for each image",
    "multilabel": "several findings for each image, each present or absent",
    "regression": "numbers for each image",
    "survival": "a time and an event for each image",
    "segmentation": "a mask with one class for each voxel",
    "overlapping_segmentation": "masks that may overlap, with a channel for each label",
}
"""Maps each kind of objective that can be recognized, or given as ``--objective``, to its description.

``overlapping_segmentation`` is the objective ``segmentation`` with overlapping labels.
"""

MASK_KINDS = frozenset({"segmentation", "overlapping_segmentation"})
"""Kinds of objectives whose targets are masks."""
CLASS_KINDS = frozenset({"multiclass", "binary", "segmentation"})
"""Kinds of objectives with one class for each image or voxel; the classes exclude each other."""
LABEL_KINDS = frozenset({"binary", "multilabel", "overlapping_segmentation"})
"""Kinds of objectives whose targets are binary labels, each predicted by its own output."""
IMAGE_LEVEL_KINDS = frozenset(OBJECTIVE_KINDS) - MASK_KINDS
"""Kinds of objectives with one target for a whole image."""
CATEGORICAL_KINDS = frozenset(OBJECTIVE_KINDS) - {"regression", "survival"}
"""Kinds of objectives with categorical targets: classes, labels or masks."""

KINDS_BY_LOSS = {
    "CrossEntropyLoss": CLASS_KINDS,
    "NLLLoss": CLASS_KINDS,
    "BCEWithLogitsLoss": LABEL_KINDS,
    "BCELoss": LABEL_KINDS,
    "MultiLabelSoftMarginLoss": frozenset({"multilabel"}),
    "MSELoss": frozenset({"regression"}),
    "L1Loss": frozenset({"regression"}),
    "SmoothL1Loss": frozenset({"regression"}),
    "HuberLoss": frozenset({"regression"}),
    "GaussianNLLLoss": frozenset({"regression"}),
}
"""Maps the class name of each known loss to the kinds of objectives that it allows. Losses for the overlap of masks are
recognized by words in their names (`OVERLAP_LOSS_WORDS`)."""

OVERLAP_LOSS_WORDS = ("dice", "tversky", "hausdorff", "jaccard", "iou", "unifiedfocal")
"""Words in the names of losses for the overlap of masks."""
SURVIVAL_LOSS_WORDS = ("cox", "survival")
"""Words in the names of losses for survival."""

KINDS_BY_METRIC = {
    "MeanDice": MASK_KINDS,
    "DiceMetric": MASK_KINDS,
    "DiceHelper": MASK_KINDS,
    "HausdorffDistance": MASK_KINDS,
    "SurfaceDistance": MASK_KINDS,
    "SurfaceDice": MASK_KINDS,
    "MeanIoUHandler": MASK_KINDS,
    "PanopticQuality": MASK_KINDS,
    "ROCAUC": IMAGE_LEVEL_KINDS & CATEGORICAL_KINDS,
    "AveragePrecision": IMAGE_LEVEL_KINDS & CATEGORICAL_KINDS,
    "ConfusionMatrix": CATEGORICAL_KINDS,
    "Accuracy": CATEGORICAL_KINDS,
    "MeanSquaredError": frozenset({"regression"}),
    "MeanAbsoluteError": frozenset({"regression"}),
    "RootMeanSquaredError": frozenset({"regression"}),
    "RegressionMetrics": frozenset({"regression"}),
}
"""Maps the class name of each known metric to the kinds of objectives that it allows."""

LABEL_REDUCING_TRANSFORMS = ("SetLabelClassd", "SetLabelClassD", "SetLabelClassDict")
"""Transforms that reduce a mask to one class, as in MONAI's bundles for nuclei."""

CLASSIFIER_NAMES = re.compile(
    r"(Dense[nN]et|(SE)?Res[nN]e[xX]?t|SENet|EfficientNet|TorchVisionFCModel|Classifier|Regressor|ViT$)(?!.*(Unet|UNet))"
)
"""Pattern of the names of MONAI's networks that return one vector for an image."""

OUTPUT_ARGUMENTS = ("out_channels", "num_classes", "n_classes", "out_features")
"""Arguments of networks that contain the number of outputs."""


@dataclass(frozen=True)
class ObjectiveSign:
    """Sign: evidence for an objective in a configuration.

    Attributes:
        text: Description of the evidence and its place in the configuration.
        kinds: Kinds of `OBJECTIVE_KINDS` that the evidence allows.
    """

    text: str
    kinds: frozenset[str]


@dataclass(frozen=True)
class RecognizedObjective:
    """Objective of a bundle, as recognized from signs or as given by the user.

    Attributes:
        name: Name of medfl's objective: `kind` without the prefix ``overlapping_``.
        overlapping: Whether the objective is segmentation with masks that may overlap, with a channel for each label.
        outputs: Number of channels of the network's output; None if only running the bundle can tell.
        chosen: Whether the user gave the objective, so that signs did not decide it.
        signs: Evidence for and against the objective.
    """

    name: str
    overlapping: bool
    outputs: int | None
    chosen: bool
    signs: tuple[ObjectiveSign, ...]

    @property
    def kind(self) -> str:
        """Kind of the objective, a key of `OBJECTIVE_KINDS`."""
        return f"overlapping_{self.name}" if self.overlapping else self.name

    def build(self) -> Objective | None:
        """Return medfl's object for the objective, or None if it needs the number of channels and that is unknown."""
        return make_objective(self.name, self.overlapping, self.outputs)


def make_objective(
    name: str, overlapping: bool, outputs: int | None, spacing: str | Sequence[float] | None = None
) -> Objective | None:
    """Return medfl's object for an objective, built from the objective's name and number of channels.

    Return None if the objective needs the number of channels and that is None.

    Args:
        name: Name of the objective.
        overlapping: For segmentation, whether labels may overlap.
        outputs: Number of channels of the network's output.
        spacing: For segmentation, the voxel spacing in which distances between masks are measured, as in
            `medfl.objectives.Segmentation`; None measures them in voxels.
    """
    field = objective_class(name).outputs_field
    if field is not None and outputs is None:
        return None
    values: dict[str, Any] = {} if field is None else {field: outputs}
    values |= {"overlapping": True} if overlapping else {}
    return read_objective({"name": name} | values | ({} if spacing is None else {"spacing": spacing}))


def recognize_objective(
    config: BundleConfig, parts: PartIds, metadata: Mapping[str, Any], chosen: str | None = None
) -> RecognizedObjective:
    """Recognize the objective of a bundle.

    Each sign allows some kinds; the objective is the kind that all signs allow.

    Args:
        config: Training configuration.
        parts: Ids of the parts of the training configuration.
        metadata: Metadata of the bundle, which may contain the number of channels of the network's output.
        chosen: Kind that the user gave, which overrides all signs; None to recognize it.

    Raises:
        SettingsError: If the signs allow several kinds, or none; the message lists all signs.
    """
    if chosen is not None:
        check_choice("objective", chosen, OBJECTIVE_KINDS)
    outputs = _find_output_count(config, parts, metadata)
    signs = [*_find_signs(config, parts), *_find_network_sign(config, parts), *_find_output_sign(outputs)]
    left = set(OBJECTIVE_KINDS)
    for sign in signs:
        left &= sign.kinds
    if chosen is None and len(left) != 1:
        problem = f"the signs allow {', '.join(sorted(left))}" if left else "the signs contradict each other"
        reasons = "".join(f"\n    - {_format_sign(sign)}" for sign in signs) or "\n    - no known sign"
        raise SettingsError(
            "ambiguous_objective",
            f"the objective can't be recognized: {problem}:{reasons}\n    Give it with --objective, one of: "
            f"{', '.join(OBJECTIVE_KINDS)}. medfl doesn't support other tasks (image to image, points, boxes).",
            kinds=left,
            signs=[_format_sign(sign) for sign in signs],
        )
    kind = chosen or left.pop()
    name = kind.removeprefix("overlapping_")
    return RecognizedObjective(name, kind != name, outputs[0] if outputs else None, chosen is not None, tuple(signs))


def _format_sign(sign: ObjectiveSign) -> str:
    """Format a sign with the kinds that it allows."""
    return f"{sign.text}: {', '.join(sorted(sign.kinds))}"


def _find_signs(config: BundleConfig, parts: PartIds) -> Iterator[ObjectiveSign]:
    """Yield the signs of loss, transforms, postprocessing and key metric."""
    yield from _find_loss_signs(config, parts.loss)
    yield from _find_label_signs(config, parts)
    postprocessing = parts.val_postprocessing or parts.train_postprocessing
    if postprocessing:
        yield from _find_postprocessing_signs(config, postprocessing)
    metrics = parts.val_key_metric or parts.train_key_metric
    for id_, metric in config.components(metrics) if metrics else ():
        name = base_name(str(metric["_target_"]))
        if name in KINDS_BY_METRIC:
            yield ObjectiveSign(f"the key metric '{name}' ({id_})", KINDS_BY_METRIC[name])


def _find_loss_signs(config: BundleConfig, id_: str) -> Iterator[ObjectiveSign]:
    """Yield the sign of a loss."""
    loss = config.value(id_)
    name = base_name(config.target(id_))
    if not isinstance(loss, Mapping) or not name:
        return
    if name == "DeepSupervisionLoss":
        yield from _find_loss_signs(config, f"{config.follow(id_)}#loss")
        return
    arguments = {key: config.literal(f"{config.follow(id_)}#{key}") for key in loss}
    written = ", ".join(f"{key} {str(arguments[key]).lower()}" for key in _LOSS_SWITCHES if key in arguments)
    text = f"the loss '{name}'{f' with {written}' if written else ''} ({id_})"
    if name in KINDS_BY_LOSS:
        yield ObjectiveSign(text, KINDS_BY_LOSS[name])
    elif any(word in name.lower() for word in SURVIVAL_LOSS_WORDS):
        yield ObjectiveSign(text, frozenset({"survival"}))
    elif any(word in name.lower() for word in OVERLAP_LOSS_WORDS):
        yield ObjectiveSign(text, MASK_KINDS & _kinds_of_loss_arguments(arguments, frozenset(OBJECTIVE_KINDS)))
    elif name == "FocalLoss":
        yield ObjectiveSign(text, _kinds_of_loss_arguments(arguments, LABEL_KINDS))


_LOSS_SWITCHES = ("to_onehot_y", "sigmoid", "softmax", "use_softmax")
"""Arguments of losses that determine the kind."""


def _kinds_of_loss_arguments(arguments: Mapping[str, Any], otherwise: frozenset[str]) -> frozenset[str]:
    """Return the kinds that the arguments of a loss allow.

    If the loss converts the target to one-hot, the target is one class for each place, whichever activation is used.
    """
    if any(arguments.get(name) is True for name in ("to_onehot_y", "softmax", "use_softmax")):
        return CLASS_KINDS
    return LABEL_KINDS if arguments.get("sigmoid") is True else otherwise


def _find_label_signs(config: BundleConfig, parts: PartIds) -> Iterator[ObjectiveSign]:
    """Yield signs about whether the label is an image.

    If the bundle has its own `prepare_batch`, the label is unknown and there is no sign.
    """
    if parts.train_preprocessing is None or parts.prepare_batch is not None:
        return
    transforms = list(config.components(parts.train_preprocessing))
    loaders = []
    for id_, transform in transforms:
        name = base_name(str(transform["_target_"]))
        if name.startswith("ConvertToMultiChannel"):
            yield ObjectiveSign(
                f"'{name}' makes a channel for each label ({id_})", frozenset({"overlapping_segmentation"})
            )
        if base_name(str(transform["_target_"])) in LOAD_IMAGE:
            loaders.append((id_, config.keys(id_)))
        if name in LABEL_REDUCING_TRANSFORMS and "label" in config.keys(id_):
            yield ObjectiveSign(f"'{name}' reduces the label to one value ({id_})", IMAGE_LEVEL_KINDS)
    if any("label" in keys for _, keys in loaders):
        id_ = next(id_ for id_, keys in loaders if "label" in keys)
        yield ObjectiveSign(f"'label' is read as an image ({id_})", MASK_KINDS)
    elif (
        loaders
        and all(keys for _, keys in loaders)
        and all(_is_monai_transform(transform) for _, transform in transforms)
    ):
        id_, keys = loaders[0]
        yield ObjectiveSign(
            f"only {_quote_all(keys)} is read as an image, 'label' is a value ({id_})", IMAGE_LEVEL_KINDS
        )


def _find_postprocessing_signs(config: BundleConfig, id_: str) -> Iterator[ObjectiveSign]:
    """Yield the signs of activation and discretization of the output."""
    for place, transform in config.components(id_):
        name = base_name(str(transform["_target_"]))
        if name in ("Activationsd", "ActivationsD", "ActivationsDict"):
            if _argument_for_prediction(config, place, "softmax"):
                yield ObjectiveSign(f"the output gets a softmax ({place})", CLASS_KINDS)
            elif _argument_for_prediction(config, place, "sigmoid"):
                yield ObjectiveSign(f"the output gets a sigmoid ({place})", LABEL_KINDS)
        elif name in ("AsDiscreted", "AsDiscreteD", "AsDiscreteDict"):
            if _argument_for_prediction(config, place, "argmax"):
                yield ObjectiveSign(f"the output is reduced to its largest channel ({place})", CLASS_KINDS)
            elif _argument_for_prediction(config, place, "threshold"):
                yield ObjectiveSign(f"a threshold is applied to each channel of the output ({place})", LABEL_KINDS)


def _argument_for_prediction(config: BundleConfig, id_: str, argument: str) -> Any:
    """Return a transform's argument for the key ``pred``; a list contains one value for each key."""
    keys, value = config.keys(id_), config.literal(f"{id_}#{argument}")
    if isinstance(value, list):
        position = keys.index("pred") if "pred" in keys else 0
        return value[position] if position < len(value) else None
    return value if "pred" in keys else None


def _find_network_sign(config: BundleConfig, parts: PartIds) -> Iterator[ObjectiveSign]:
    """Yield a sign if the network returns one vector for an image."""
    target = config.target(parts.network)
    name = base_name(target)
    if CLASSIFIER_NAMES.match(name) and (target == name or target.startswith("monai.networks.")):
        yield ObjectiveSign(
            f"the network '{name}' returns one vector for an image ({parts.network})", IMAGE_LEVEL_KINDS
        )


def _find_output_sign(outputs: tuple[int, str] | None) -> Iterator[ObjectiveSign]:
    """Yield the sign of the number of output channels."""
    if outputs is None:
        return
    number, id_ = outputs
    several = frozenset({"multilabel", "regression"}) | MASK_KINDS
    kinds = {1: frozenset({"binary", "regression", "survival", "overlapping_segmentation"}), 2: several | {"binary"}}
    text = f"the network has {number} output channel{'s' if number != 1 else ''} ({id_})"
    yield ObjectiveSign(text, kinds.get(number, several | {"multiclass"}))


def _find_output_count(config: BundleConfig, parts: PartIds, metadata: Mapping[str, Any]) -> tuple[int, str] | None:
    """Return the number of channels of the network's output, and its place; None if it is unknown."""
    for name in OUTPUT_ARGUMENTS:
        id_ = f"{parts.network}#{name}"
        if id_ in config and _is_integer(number := config.value(id_)):
            return number, id_
    format_: Any = metadata
    for key in ("network_data_format", "outputs", "pred", "num_channels"):
        format_ = format_.get(key) if isinstance(format_, Mapping) else None
    return (format_, "metadata, network_data_format#outputs#pred#num_channels") if _is_integer(format_) else None


def _is_integer(value: Any) -> bool:
    """Return whether a value is an integer and not a boolean."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_monai_transform(transform: Mapping[str, Any]) -> bool:
    """Return whether a transform is MONAI's, so that its name determines its effect."""
    target = str(transform["_target_"])
    return "." not in target or target.startswith("monai.")


def _quote_all(words: Iterable[str]) -> str:
    """Join words, each in quotes."""
    return ", ".join(f"'{word}'" for word in words)
