"""What a method needs of a task, and which methods need no more than it has."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import nn

from medfl.contract import Method, Need
from medfl.errors import SettingsError
from medfl.networks.parts import features_of, head_names
from medfl.objectives import Objective
from medfl.task import Task

MEANING: dict[Need, str] = {
    "class_labels": "each case is of a class, as in 'multiclass' and 'binary'",
    "class_logits": "each case is of a class, and a network puts out a logit for each class",
    "soft_targets": "outputs are probabilities of alternatives, which one model can learn from another",
    "images_of_one_shape": "all cases are images or volumes of one shape, which a generator can make",
    "features": "a network lists its stages in `feature_layers`",
    "head": "a network has a classifier `head` of its own",
    "linear_head": "a network is `head(body(images))`, with a linear layer in its head",
    "public_data": "the run has public data (`--public FOLDER`)",
    "pooled_data": "the run is a simulation, where the raw data of all sites are at one place",
}
"""Maps each need to the condition that meets it."""


OF_OBJECTIVE = frozenset({"class_labels", "class_logits", "soft_targets"})
"""Needs that the objective alone decides."""

OF_RUN = frozenset({"public_data", "pooled_data"})
"""Needs that a run meets and no task; `medfl.engine.checks` and the backends check them."""

UNLIKE = "the transforms of a stock bundle say what shape and scale its images have"
"""Why cases of an adopted bundle do not count as images of one shape."""


def objective_lacks(need: str, objective: Objective) -> str | None:
    """What an objective lacks of a need of `OF_OBJECTIVE`, in words; None if it has it."""
    has = {
        "class_labels": objective.has_class_labels,
        "class_logits": objective.has_class_labels and objective.outputs == objective.classes,
        "soft_targets": objective.has_soft_targets,
    }
    return None if has[need] else f"the objective '{objective.name}' has none"


def lacks(need: Need, task: Task, networks: Mapping[str, nn.Module]) -> str | None:
    """What a task lacks, in words; None if it has what is needed, or if the need is one of `OF_RUN`.

    Args:
        need: The need.
        task: The learning problem.
        networks: Those in use, by name.
    """
    if need in OF_RUN:
        return None
    if need in OF_OBJECTIVE:
        return objective_lacks(need, task.objective)
    if need == "images_of_one_shape":
        if task.scale is None or len(task.scale.shape) >= 3:
            return None
        return "the cases are vectors" if task.scale.shape else UNLIKE
    for name, network in networks.items():
        try:
            if need == "head":
                head_names(network, name)
            elif need == "linear_head":
                features_of(network, name)
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
    """Refuse a method that needs what the task has not, and name those that would do.

    Args:
        name: The method's.
        method: It.
        task: The learning problem.
        networks: Those in use, by name.
        others: Name of each known method to what it needs.

    Raises:
        SettingsError: Naming the need, the method, the objective, and the methods that would do.
    """
    for need in sorted(method.active_needs):
        why = lacks(need, task, networks)
        if why is None:
            continue
        missing = {other for other in MEANING if lacks(other, task, networks) is not None}
        fit = sorted(other for other, needs in others.items() if not missing & set(needs))
        hint = f"These would do: {', '.join(fit)}." if fit else "`medfl list methods --long` shows their needs."
        raise SettingsError(
            "unmet_need",
            f"Method '{name}' needs '{need}' ({MEANING[need]}), which a task with the objective "
            f"'{task.objective.name}' lacks here: {why}. {hint}",
            method=name,
            need=need,
            objective=task.objective.name,
            methods=fit,
        )
