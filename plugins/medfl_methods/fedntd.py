"""FedNTD: not-true distillation from the received model."""

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
"""Logger of this module."""


class FedNTD(FedAvg):
    """FedAvg with not-true distillation (FedNTD): sites preserve the received model's view of the other classes.

    The received model teaches the local model about all classes except the true one. This preserves knowledge of
    classes that are absent at a site. Images or voxels without a known true class add 0 to the distillation, but count
    in its mean.

    Update rule:
        With tau the temperature, and both predictions a softmax over all classes but the true one, a site minimises

            CE(w) + beta tau^2 KL(teacher || w)

    When to use it: When sites hold few of many classes, and `fedavg` forgets absent classes between the rounds.

    Limits: With two classes, the method has no effect.

    Limit cases: The alternatives are the answers that a model chooses among: the classes, or the presence and absence
    of a finding. A task with two alternatives, such as `binary` and `multilabel`, makes this method `fedavg`. Without
    the true alternative, a single one remains, whose probability is 1 in both models.

    Attributes:
        beta: Weight of the distillation term, >= 0. Values to try: 0.3, 1, 3.
        tau: Temperature, > 0. Values to try: 1, 3.

    Source: Lee, Jeong, Shin, Bae, Yun, NeurIPS 2022, equations 3 to 5.
    """

    name = "fedntd"
    family = "averaging"
    paper = "Lee et al., NeurIPS 2022"
    summary = "FedAvg with distillation of the received model's predictions for all classes but the true one"
    supports = frozenset({Capability.DP_SGD, Capability.ROBUST, Capability.EXACT_ADAPTERS})

    needs: ClassVar[frozenset[Need]] = frozenset({"soft_targets"})
    """Requirements that the task or the run must meet, otherwise the run is refused before it starts."""
    presets: ClassVar[Mapping[str, Meta]] = {"paper": {"beta": 1.0, "tau": 1.0}, "medfl": {}}
    reduces_to: ClassVar[tuple[ReducesTo, ...]] = (ReducesTo("fedavg", {"beta": 0.0}),)

    beta: float = Field(1.0, ge=0, allow_inf_nan=False)
    tau: float = Field(1.0, gt=0, allow_inf_nan=False)

    @property
    def active_needs(self) -> frozenset[Need]:
        """Requirements of the method with its current settings: `needs`, or none for ``beta = 0``."""
        return self.needs if self.beta else frozenset()

    def setup(self, server: Server) -> None:
        """Set the server's state to the initial model; log a warning if the task has two alternatives only."""
        super().setup(server)
        objective = server.task.objective
        if self.beta and objective.alternatives(torch.zeros(1, objective.outputs)).shape[1] == 2:
            logger.warning(
                "The task has two classes, so not-true distillation has no effect: 'fedntd' equals 'fedavg' here."
            )

    def before_fit(self, fit: Fit) -> None:
        """Prepare a training: store the received model as the teacher."""
        if self.beta:
            fit.extra["teacher"] = Teacher(fit.model, fit.site)

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """Return the loss of a batch: the task's loss plus beta times the not-true distillation."""
        loss, objective = fit.task_loss(batch), fit.site.task.objective
        if self.beta == 0:
            return loss
        student = objective.alternatives(fit.logits(batch).float())
        if student.shape[1] == 2:
            return loss
        teacher = objective.alternatives(fit.extra["teacher"](batch))
        return loss + self.beta * not_true_distillation(
            student, teacher, objective.true_alternatives(batch.targets), self.tau
        )


def not_true_distillation(
    student: torch.Tensor, teacher: torch.Tensor, truth: torch.Tensor, tau: float = 1.0
) -> torch.Tensor:
    """Compute tau^2 KL(teacher || student) over all alternatives but the true one, as a mean over the batch.

    Alternatives are the K answers that a model chooses among, such as classes. Their probabilities are the softmax over
    all alternatives but the true one, with temperature tau. Entries without a known true alternative add 0, but count
    in the mean.

    Args:
        student: Logits of the alternatives, shape (B, K) or (B, K, ...), K >= 2.
        teacher: Logits of the same shape; no gradient flows into them.
        truth: Index of the true alternative, shape (B,) or (B, ...), int64; -1 if it is unknown.
        tau: Temperature, > 0.

    Returns:
        Scalar >= 0; 0 for K = 2.
    """
    others = torch.arange(student.shape[1] - 1, device=truth.device).reshape(1, -1, *[1] * (truth.dim() - 1))
    places = others + (others >= truth.unsqueeze(1)).long()
    known = (truth >= 0).unsqueeze(1)
    left = [logits.gather(1, places).where(known, 0.0) for logits in (student, teacher)]
    return distillation(left[0], left[1], tau).mean()
