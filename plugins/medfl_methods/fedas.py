"""FedAS."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field

from medfl.contract import Capability, Need, Site
from medfl.networks.parts import body_and_head
from medfl.toolkit.body_sharing import MeanHead
from medfl.toolkit.fisher import Estimator, fisher_at
from medfl.toolkit.fit import Fit
from medfl.toolkit.kept import keep, kept
from medfl.toolkit.local_training import on_cpu
from medfl.toolkit.prototypes import prototypes
from medfl.toolkit.trainings import Budget, Training
from medfl.training.loop import Batch
from medfl.types import MODEL, Meta, Tensors
from medfl.utils.metadata import Count, MetaField, number
from medfl.utils.wire import select

ALIGN = "align"
"""Names the training that aligns the received body."""

OLD = "old/"
"""Where a site keeps the body that it trained last."""


class FedAS(MeanHead):
    """A common body that each site first aligns with the one it trained last, and a head of its own; sites weigh by
    how much their data tell.

    Before it trains, a site computes prototypes, the mean features of each class on its training images, by the body
    that it trained last. It trains the received body, alone and by plain SGD, so that its features come near them: the
    loss of a batch is the sum over its classes of the mean of (1/d) ||f - p_c||^2 over images. In a site's first round
    there is no such body and nothing is aligned; the released code aligns with an untrained one. Then body and head are
    trained together as in `fedper`. The server weighs bodies by the trace of the Fisher information of the trained
    model on all training images. It is a mean over images, not the sum over batches of the released code, by which
    large sites weigh more. Where all traces are 0 sites weigh by size; under a privacy setting traces stay at home and
    sites weigh alike.

    When to use it: Where `fedper` is of use and few sites take part in each round, so that a site comes back to a body
    that others have changed. It costs a pass over the images more, and one for the trace.

    Attributes:
        align_epochs: Epochs of the alignment, >= 0.
        align_lr: Learning rate of the alignment, > 0.
        align_batch: Images in a batch of the alignment, >= 1.
        estimator: ``per_batch`` squares the gradient of each batch's mean loss, as the released code does;
            ``per_sample`` each image's, which is the Fisher information.
        global_head: ``none`` keeps heads at home, and there is no global model. With ``average`` the mean head of the
            round's participants, weighted as their bodies, and the body are the run's global model; sites go on with
            their own heads. It needs one network at all sites.

    Source: Yang, Huang, Ye, CVPR 2024, and its released code.
    """

    name = "fedas"
    family = "personal"
    paper = "Yang, Huang, Ye, CVPR 2024"
    summary = "FedPer whose sites align the received body with their last one, and weigh by Fisher information"
    supports = frozenset({Capability.DIFFERENT_HEADS})

    sends_meta: ClassVar[Mapping[str, MetaField]] = {
        "size": MetaField("private", Count),
        "trace": MetaField("private", number(0), after=("fit",)),
    }
    needs: ClassVar[frozenset[Need]] = frozenset({"class_logits", "linear_head"})

    align_epochs: int = Field(1, ge=0)
    align_lr: float = Field(0.01, gt=0, allow_inf_nan=False)
    align_batch: int = Field(16, ge=1)
    estimator: Estimator = "per_batch"

    def weight(self, meta: Meta) -> float:
        """The trace."""
        return float(meta.get("trace", 1.0))

    def trainings(self, site: Site) -> Sequence[Training]:
        """The alignment, but in the first round of a site; then body and head together."""
        if not self.align_epochs or not kept(site, OLD):
            return (Training(),)
        return Training(ALIGN, Budget(self.align_epochs), "body", batch_size=self.align_batch), Training()

    def before_trainings(self, site: Site, sent: Tensors) -> dict[str, Any]:
        """The prototypes of the body that the site trained last."""
        if len(self.trainings(site)) == 1:
            return {}
        task, old = site.task, self.full_state(site, select(sent, MODEL)) | kept(site, OLD)
        model, classes = task.load(old, site.network), task.objective.classes
        return {"prototypes": prototypes(model, site.train, classes, site.settings.batch_size, task.device)}

    def make_optimizer(self, fit: Fit) -> torch.optim.Optimizer:
        """The run's; for the alignment plain SGD."""
        if fit.training.label == ALIGN:
            return torch.optim.SGD([parameter for _, parameter in fit.parameters()], lr=self.align_lr)
        return super().make_optimizer(fit)

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """The task's loss, or the distance to the prototypes."""
        if fit.training.label != ALIGN:
            return super().loss(fit, batch)
        features = body_and_head(fit.model)[0](batch.images).float().flatten(1)
        return alignment(features, fit.extra["prototypes"], batch.targets)

    def after_fit(self, fit: Fit) -> None:
        """The trace, and the body for the next round."""
        if fit.training.label == ALIGN:
            return
        trace = 0.0
        if fit.steps:
            names = [name for name, _ in fit.parameters()]
            information = fisher_at(fit.site, fit.model, names, estimator=self.estimator)
            trace = math.fsum(float(values.double().sum()) for values in information.values())
        fit.meta["trace"] = trace
        state, shared = fit.model.state_dict(), select(fit.sent, MODEL)
        keep(fit.site, OLD, on_cpu({name: state[name] for name in shared}))


def alignment(features: torch.Tensor, prototypes: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The sum over a batch's classes of the mean, over their images, of (1/d) ||f - p||^2.

    Args:
        features: f, (B, d), B >= 1.
        prototypes: p of each class, (classes, d); those of the labels are present.
        labels: (B,), int64.

    Returns:
        A scalar >= 0.
    """
    distances = (features - prototypes[labels]).square().mean(dim=1)
    counts = torch.bincount(labels, minlength=len(prototypes))
    return (distances / counts[labels]).sum()
