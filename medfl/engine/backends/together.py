"""Which runs can train several sites at once (the setting ``together``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from medfl.contract import Method
from medfl.errors import SettingsError
from medfl.privacy.policy import policy_of
from medfl.settings import Settings
from medfl.task import Task
from medfl.toolkit.averaging import Averaging
from medfl.toolkit.local_training import LocalTraining
from medfl.training.stacked import ALONE, ELEMENTWISE

FREE = {"loss", "start", "full_state"}
"""What a method may override of a site's training: the loss, and what is shared."""

TRAINING = sorted({name for name, part in vars(LocalTraining).items() if callable(part) and name[0] != "_"} - FREE)
WHOLE = [*TRAINING, "work", "train", "orders", "round_steps", "schedule", "task_of"]
"""What a method must have from `Averaging`: all else that a site does."""


def check_together(name: str, method: Method, settings: Settings, task: Task, networks: Sequence[nn.Module]) -> None:
    """Refuse to train sites at once where that is not what each does alone.

    Args:
        name: The method's.
        method: It.
        settings: The run's.
        task: The learning problem.
        networks: One of each kind that sites train.

    Raises:
        SettingsError: Naming what stands in the way.
    """
    if problem := _problem(name, method, settings, task, networks):
        raise problem


def _problem(
    name: str, method: Method, settings: Settings, task: Task, networks: Sequence[nn.Module]
) -> SettingsError | None:
    """Return the error that names the obstacle; None if there is no obstacle."""
    if not isinstance(method, Averaging) or "pooled_data" in method.needs:
        why = f"the method '{name}' is no averaging of what sites train"
        return _unsupported("method_not_supported", why, method=name)
    own = [part for part in WHOLE if getattr(type(method), part) is not getattr(Averaging, part)]
    if own:
        why = f"the method '{name}' changes more of a site's work than its loss and what is shared: {', '.join(own)}"
        return _unsupported("method_not_supported", why, method=name, members=own)
    if len(networks) > 1:
        why = f"the sites have {len(networks)} networks, which make no stack (networks_by_site)"
        return _unsupported("unlike_networks", why, count=len(networks))
    dropout = [path for path, module in networks[0].named_modules() if isinstance(module, _DropoutNd) and module.p > 0]
    if dropout:
        why = f"the network has dropout ({dropout[0]}), which is drawn from streams of each site's own"
        return _unsupported("network_not_supported", why, module=dropout[0])
    optimizer = task.optimizer([nn.Parameter(torch.zeros(1))])
    if type(optimizer) not in ELEMENTWISE:
        known = [kind.__name__ for kind in ELEMENTWISE]
        why = f"the optimizer is {type(optimizer).__name__}; expected one of {', '.join(known)}"
        return _unsupported("unsupported_optimizer", why, optimizer=type(optimizer).__name__, expected=known)
    if settings.precision != "fp32":
        why = f"precision '{settings.precision}' would round a stack by far more than a single model; expected 'fp32'"
        return _unsupported("incompatible_settings", why, settings=["precision", "together"])
    if policy_of(settings).noises_training:
        why = "privacy with the unit 'sample' takes steps of its own"
        return _unsupported("incompatible_settings", why, settings=["privacy.unit", "together"])
    if settings.secure_aggregation is not None:
        why = "under secure_aggregation each site has orders of its own"
        return _unsupported("incompatible_settings", why, settings=["secure_aggregation", "together"])
    return None


def _unsupported(code: str, why: str, **fields: Any) -> SettingsError:
    """Return the error for a run that can't train several sites at once."""
    text = f"The setting 'together' above 1 trains several sites at once, and {why}. {ALONE}"
    return SettingsError(code, text, feature="together", **fields)
