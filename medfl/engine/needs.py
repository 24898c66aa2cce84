"""Check that a task meets the requirements of a method, and suggest methods whose requirements the task meets.

A method declares its requirements in `Method.needs`, by the keys of `NEED_CONDITIONS`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import nn

from medfl.contract import Method, Need
from medfl.errors import SettingsError
from medfl.networks.parts import feature_count, head_names, names_without_head
from medfl.objectives import Objective
from medfl.task import Task

NEED_CONDITIONS: dict[Need, str] = {
    "class_labels": "each case has a class, as in 'multiclass' and 'binary'",
    "class_logits": "each case has a class, and a network outputs a logit for each class",
    "soft_targets": "outputs are probabilities of alternatives, which one model can learn from another",
    "images_of_one_shape": "all cases are images or volumes of one shape, which a generator can create",
    "features": "a network lists its stages in `feature_layers`",
    "head": "a network has its own classifier `head`",
    "linear_head": "a network is `head(body(images))`, with a linear layer in its head",
    "trainable_body": "parameters outside a network's head learn, which the method trains or shares separately",
    "raw_images": "the method changes or creates images, so that features of a frozen body can't replace them",
    "public_data": "the run has public data (`--public FOLDER`)",
    "pooled_data": "the run is a simulation, where the raw data of all sites are on one machine",
    "one_learning_rate": "all parameters have one learning rate, which is constant within a round",
}
"""Maps the name of each requirement of a method to the condition that meets it, in words for messages."""


OBJECTIVE_NEEDS = frozenset({"class_labels", "class_logits", "soft_targets"})
"""Requirements whose condition depends only on the objective."""

RUN_NEEDS = frozenset({"raw_images", "public_data", "pooled_data", "one_learning_rate"})
"""Requirements on a run instead of a task. `medfl.engine.checks` and the backends check them."""

_SHAPE_UNKNOWN = "the transforms of a stock bundle decide the shape and scale of its images"
"""Reason why the cases of an adopted bundle do not count as images of one shape.

An adopted bundle is a stock MONAI bundle for which ``medfl adopt`` wrote a federation file.
"""


def unmet_objective_reason(need: str, objective: Objective) -> str | None:
    """Return the reason, in words, why an objective does not meet a requirement; None if the requirement is met.

    Args:
        need: A requirement in `OBJECTIVE_NEEDS`.
        objective: The objective.
    """
    has = {
        "class_labels": objective.has_class_labels,
        "class_logits": objective.has_class_labels and objective.outputs == objective.classes,
        "soft_targets": objective.has_soft_targets,
    }
    return None if has[need] else f"the objective '{objective.name}' has none"


def unmet_reason(need: Need, task: Task, networks: Mapping[str, nn.Module]) -> str | None:
    """Return the reason, in words, why a task does not meet a requirement.

    Args:
        need: The requirement.
        task: The learning problem.
        networks: Maps the name of each network in use to the network.

    Returns:
        None if the task meets the requirement, or if the requirement is in `RUN_NEEDS`.
    """
    if need in RUN_NEEDS:
        return None
    if need in OBJECTIVE_NEEDS:
        return unmet_objective_reason(need, task.objective)
    if need == "images_of_one_shape":
        if task.scale is not None and task.scale.table_features:
            return "the cases are images with table features"
        if task.scale is None or len(task.scale.shape) >= 3:
            return None
        return "the cases are vectors" if task.scale.shape else _SHAPE_UNKNOWN
    for name, network in networks.items():
        try:
            if need == "head":
                head_names(network, name)
            elif need == "linear_head":
                feature_count(network, name)
            elif need == "trainable_body":
                if not names_without_head(network, [key for key, p in network.named_parameters() if p.requires_grad]):
                    return f"only the head of network '{name}' learns (setting 'train_part', or frozen by the bundle)"
            elif not getattr(network, "feature_layers", None):
                return (
                    f"network '{name}' ({type(network).__name__}) has no `feature_layers`: expected a list of the "
                    "modules whose outputs are its features, stage by stage"
                )
        except SettingsError as error:
            return str(error).rstrip(".")
    return None


def check_needs(
    name: str, method: Method, task: Task, networks: Mapping[str, nn.Module], others: Mapping[str, Collection[str]]
) -> None:
    """Raise an error if a task does not meet a requirement of a method.

    Args:
        name: Name of the method.
        method: The method.
        task: The learning problem.
        networks: Maps the name of each network in use to the network.
        others: Maps each known method to its requirements.

    Raises:
        SettingsError: If the task does not meet a requirement. The message names the requirement, the reason and the
            methods whose requirements the task meets.
    """
    for need in sorted(method.active_needs):
        reason = unmet_reason(need, task, networks)
        if reason is None:
            continue
        unmet = {other for other in NEED_CONDITIONS if unmet_reason(other, task, networks) is not None}
        fit = sorted(other for other, needs in others.items() if not unmet & set(needs))
        hint = f"These methods fit: {', '.join(fit)}." if fit else "`medfl list methods --long` shows their needs."
        raise SettingsError(
            "unmet_need",
            f"Method '{name}' needs '{need}' ({NEED_CONDITIONS[need]}), which this task with the objective "
            f"'{task.objective.name}' does not meet: {reason}. {hint}",
            method=name,
            need=need,
            objective=task.objective.name,
            methods=fit,
        )
