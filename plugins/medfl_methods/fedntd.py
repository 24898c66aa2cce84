"""FedNTD."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field

from medfl.contract import Capability, Need, ReducesTo, Server
from medfl.toolkit.fit import Fit
from medfl.toolkit.losses import distillation
from medfl.toolkit.teacher import Teacher
from medfl.training.loop import Batch
from medfl.types import Meta
from medfl_methods.fedavg import FedAvg

logger = logging.getLogger(__name__)


class FedNTD(FedAvg):
    """FedAvg whose sites keep what the received model says of the classes that an image is not of.

    A site minimises CE + beta tau^2 KL(teacher || model), where the teacher is the model that it received and both are
    softmax outputs over the alternatives but for the true one, at temperature tau. What a voxel or an image of unknown
    truth says is left out.

    ``beta = 0`` makes this FedAvg. So does a task with two alternatives, as `binary` and `multilabel`: once the true
    one is left out a single one remains, of which both models are certain.

    When to use it: When sites hold few of many classes and FedAvg forgets between rounds what absent sites taught it.
    With two classes it does nothing.

    Attributes:
        beta: Weight of the distillation term, >= 0. Worth trying: 0.3, 1, 3.
        tau: Temperature, > 0. Worth trying: 1, 3.

    Source: Lee, Jeong, Shin, Bae, Yun, NeurIPS 2022, equations 3 to 5.
    """

    name = "fedntd"
    family = "averaging"
    paper = "Lee et al., NeurIPS 2022"
    summary = "the received model teaches a site about the classes that an image is not of"
    supports = frozenset({Capability.DP_SGD, Capability.ROBUST})

    needs: ClassVar[frozenset[Need]] = frozenset({"soft_targets"})
    presets: ClassVar[Mapping[str, Meta]] = {"paper": {"beta": 1.0, "tau": 1.0}, "medfl": {}}
    reduces_to: ClassVar[tuple[ReducesTo, ...]] = (ReducesTo("fedavg", {"beta": 0.0}),)

    beta: float = Field(1.0, ge=0, allow_inf_nan=False)
    tau: float = Field(1.0, gt=0, allow_inf_nan=False)

    @property
    def active_needs(self) -> frozenset[Need]:
        """None without the term."""
        return self.needs if self.beta else frozenset()

    def setup(self, server: Server) -> None:
        """The common initial model; a warning where there are two alternatives only."""
        super().setup(server)
        objective = server.task.objective
        if self.beta and objective.alternatives(torch.zeros(1, objective.outputs)).shape[1] == 2:
            logger.warning("Of two classes only the true one and another are left: 'fedntd' is 'fedavg' here.")

    def before_fit(self, fit: Fit) -> None:
        """The received model becomes the teacher."""
        if self.beta:
            fit.extra["teacher"] = Teacher(fit.model, fit.site)

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """The task's loss plus the distillation of what is not true."""
        loss, objective = super().loss(fit, batch), fit.site.task.objective
        if self.beta == 0:
            return loss
        student = objective.alternatives(fit.logits(batch).float())
        if student.shape[1] == 2:
            return loss
        teacher = objective.alternatives(fit.extra["teacher"](batch))
        return loss + self.beta * not_true_distillation(student, teacher, objective.truth(batch.targets), self.tau)


def not_true_distillation(
    student: torch.Tensor, teacher: torch.Tensor, truth: torch.Tensor, tau: float = 1.0
) -> torch.Tensor:
    """tau^2 KL(teacher || student) over all alternatives but the true one, as a mean over the batch.

    Args:
        student: Logits of alternatives, (B, K) or (B, K, ...), K >= 2.
        teacher: Logits, the same shape; no gradient flows into them.
        truth: Which alternative is the true one, (B,) or (B, ...), int64; where it is -1 nothing is distilled.
        tau: Temperature, > 0.

    Returns:
        A scalar >= 0; 0 for K = 2.
    """
    others = torch.arange(student.shape[1] - 1, device=truth.device).reshape(1, -1, *[1] * (truth.dim() - 1))
    places = others + (others >= truth.unsqueeze(1)).long()
    known = (truth >= 0).unsqueeze(1)
    left = [logits.gather(1, places).where(known, 0.0) for logits in (student, teacher)]
    return distillation(left[0], left[1], tau).mean()
