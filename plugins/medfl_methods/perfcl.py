"""PerFCL: FENDA-FL with contrastive losses that separate the personal from the global body."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field

from medfl.contract import Capability, ReducesTo
from medfl.toolkit.fit import Fit
from medfl.toolkit.local_training import cpu_state
from medfl.toolkit.losses import contrastive
from medfl.toolkit.participant_state import auxiliary_state, set_auxiliary_state
from medfl.toolkit.teacher import Teacher
from medfl.training.loop import Batch
from medfl_methods.fenda import GLOBAL_BODY_PREFIX, Fenda

PREVIOUS_BODY_PREFIX = "previous/"
"""Prefix, in a site's state, of the global body as the site trained it last."""


class PerFCL(Fenda):
    """FENDA-FL with two contrastive losses (PerFCL) that separate the personal from the global body.

    The first loss keeps the features of the global body near the features of the received global body. The second keeps
    the features of the personal body near its features at the start of the round. Networks and averaging are the same
    as in `fenda`.

    Update rule:
        c and o are the features by the global and the personal body in training, and r by the received global body. p
        are the features by the global body as this site trained it last, and q by the personal body at the start of the
        round. A site minimises

            F + mu con(c; r | p) + gamma con(o; q | r)
            con(z; a | b) = mean over images of -log(A / (A + B)),  A = exp(cos(z, a) / tau),  B = exp(cos(z, b) / tau)

        The features r, p and q come from fixed bodies in evaluation mode. In a site's first training, the contrastive
        terms are omitted.

    When to use it: As `fenda`, when its two bodies learn nearly the same features.

    Limits: Each batch needs the features of five bodies.

    Attributes:
        mu: Weight of the contrastive loss of the global body, >= 0. Values to try: 0.1, 1, 5, 10.
        gamma: Weight of the contrastive loss of the personal body, >= 0. Values to try: 0.1, 1, 5, 10.
        tau: Temperature, > 0.

    Source: Zhang, Xu, Wei, Wang, Li, Shang, Pattern Recognition 2023.
    """

    name = "perfcl"
    family = "personal"
    paper = "Zhang et al., Pattern Recognition 2023"
    summary = "FENDA-FL with contrastive losses that separate the personal from the global body"
    supports = frozenset({Capability.DIFFERENT_HEADS, Capability.ROBUST})

    reduces_to: ClassVar[tuple[ReducesTo, ...]] = (ReducesTo("fenda", {"mu": 0.0, "gamma": 0.0}),)

    mu: float = Field(1.0, ge=0, allow_inf_nan=False)
    gamma: float = Field(1.0, ge=0, allow_inf_nan=False)
    tau: float = Field(0.5, gt=0, allow_inf_nan=False)

    def before_fit(self, fit: Fit) -> None:
        """Prepare a training: load the received global, the previous global and the personal body as fixed teachers."""
        previous = auxiliary_state(fit.site, PREVIOUS_BODY_PREFIX)
        if (self.mu or self.gamma) and previous:
            old = fit.site.task.load(cpu_state(fit.model) | previous, fit.site.network)
            fit.extra["others"] = [Teacher(body, fit.site) for body in (fit.model.body, old.body, fit.model.own)]  # type: ignore[arg-type]

    def regulariser(self, fit: Fit, batch: Batch, own: torch.Tensor, common: torch.Tensor) -> torch.Tensor | float:
        """Compute both contrastive terms plus the regulariser of `fenda`.

        Args:
            fit: Training at the site.
            batch: The batch.
            own: Features (B, d) by the personal body.
            common: Features (B, d) by the global body.
        """
        term = super().regulariser(fit, batch, own, common)
        if "others" not in fit.extra:
            return term
        received, previous, before = (teacher(batch).flatten(1) for teacher in fit.extra["others"])
        near_received = contrastive(common, received, previous, self.tau)
        return term + self.mu * near_received + self.gamma * contrastive(own, before, received, self.tau)

    def after_fit(self, fit: Fit) -> None:
        """Store the trained global body as the previous one."""
        if self.mu or self.gamma:
            tensors = cpu_state(fit.model)
            set_auxiliary_state(
                fit.site,
                PREVIOUS_BODY_PREFIX,
                {name: tensor for name, tensor in tensors.items() if name.startswith(GLOBAL_BODY_PREFIX)},
            )
