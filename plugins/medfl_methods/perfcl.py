"""PerFCL."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field

from medfl.contract import Capability, ReducesTo
from medfl.toolkit.fit import Fit
from medfl.toolkit.kept import keep, kept
from medfl.toolkit.local_training import cpu_state
from medfl.toolkit.losses import contrastive
from medfl.toolkit.teacher import Teacher
from medfl.training.loop import Batch
from medfl_methods.fenda import BODY, Fenda

PREVIOUS = "previous/"
"""Where a site keeps the common body as it trained it last."""


class PerFCL(Fenda):
    """FENDA-FL whose bodies are told apart by contrasts: the common one stays near the received one, the own one near
    what it was.

    A site minimises its loss plus mu con(c; r | p) + gamma con(o; q | r), where con(z; a | b) is the mean over images
    of -log(A / (A + B)), A = exp(cos(z, a) / tau), B = exp(cos(z, b) / tau). c and o are features by the common and the
    own body in training; r is by the received common body, p by the common body as this site trained it last, q by the
    own body as the round began. The latter three stay as they are, in evaluation mode. In a site's first training there
    is no term. ``mu = 0`` with ``gamma = 0`` is `fenda`.

    When to use it: As `fenda`, when its two bodies learn much the same. It computes features by five bodies.

    Attributes:
        mu: Weight of the contrast of the common body, >= 0. Worth trying: 0.1, 1, 5, 10.
        gamma: Weight of the contrast of the own body, >= 0. Worth trying: 0.1, 1, 5, 10.
        tau: Temperature, > 0.

    Source: Zhang, Xu, Wei, Wang, Li, Shang, Pattern Recognition 2023.
    """

    name = "perfcl"
    family = "personal"
    paper = "Zhang et al., Pattern Recognition 2023"
    summary = "FENDA-FL whose common and own bodies are told apart by contrasts"
    supports = frozenset({Capability.DIFFERENT_HEADS, Capability.ROBUST})

    reduces_to: ClassVar[tuple[ReducesTo, ...]] = (ReducesTo("fenda", {"mu": 0.0, "gamma": 0.0}),)

    mu: float = Field(1.0, ge=0, allow_inf_nan=False)
    gamma: float = Field(1.0, ge=0, allow_inf_nan=False)
    tau: float = Field(0.5, gt=0, allow_inf_nan=False)

    def before_fit(self, fit: Fit) -> None:
        """What the three bodies that stay make of the site's images: the received, the previous and the own one."""
        previous = kept(fit.site, PREVIOUS)
        if (self.mu or self.gamma) and previous:
            old = fit.site.task.load(cpu_state(fit.model) | previous, fit.site.network)
            fit.extra["others"] = [Teacher(body, fit.site) for body in (fit.model.body, old.body, fit.model.own)]  # type: ignore[arg-type]

    def term(self, fit: Fit, batch: Batch, own: torch.Tensor, common: torch.Tensor) -> torch.Tensor | float:
        """Both contrasts, and what `fenda` adds."""
        term = super().term(fit, batch, own, common)
        if "others" not in fit.extra:
            return term
        received, previous, before = (teacher(batch).flatten(1) for teacher in fit.extra["others"])
        near_received = contrastive(common, received, previous, self.tau)
        return term + self.mu * near_received + self.gamma * contrastive(own, before, received, self.tau)

    def after_fit(self, fit: Fit) -> None:
        """The trained common body becomes the previous one."""
        if self.mu or self.gamma:
            tensors = cpu_state(fit.model)
            keep(fit.site, PREVIOUS, {name: tensor for name, tensor in tensors.items() if name.startswith(BODY)})
