"""The base of methods whose models bring heads of their own: what predicts, and what a bundle builds."""

from __future__ import annotations

from typing import Any

from torch import nn

from medfl.contract import Model
from medfl.task import Task
from medfl.toolkit.averaging import Averaging
from medfl_methods.fedsdc.heads import headed


class WithHeads(Averaging):
    """Models bring heads of their own, as JSON in their fact ``head``, for the network that they name."""

    def network_config(self, model: Model, network_def: Any) -> Any:
        """The network with the model's heads in place of its own."""
        head = model.meta["head"]
        return {"_target_": "medfl.networks.parts.with_head", "network": network_def, "head": head}

    def predictor(self, task: Task, models: list[Model]) -> nn.Module:
        """The network with the model's heads in place of its own."""
        return super().predictor(headed(task, models[0].network, models[0].meta["head"]), models)
