"""FedAS: a shared body that each site first aligns with its previous body, a personal head, and Fisher weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field

from medfl.contract import Capability, Need, Site
from medfl.networks.parts import body_and_head
from medfl.toolkit.body_sharing import BodySharingWithMeanHead
from medfl.toolkit.fisher import Estimator, fisher_at
from medfl.toolkit.fit import Fit
from medfl.toolkit.local_training import on_cpu
from medfl.toolkit.participant_state import auxiliary_state, set_auxiliary_state
from medfl.toolkit.prototypes import prototypes
from medfl.toolkit.training_specs import Training, TrainingBudget
from medfl.training.loop import Batch
from medfl.types import MODEL_PREFIX, Meta, Tensors
from medfl.utils.metadata import Count, MetaField, bounded_number
from medfl.utils.wire import select

ALIGNMENT = "align"
"""Label of the training that aligns the received body."""

PREVIOUS_BODY_PREFIX = "old/"
"""Prefix, in a site's state, of the body that the site trained last."""


class FedAS(BodySharingWithMeanHead):
    """Shared body with personal heads (`fedper`), feature alignment at the sites and Fisher-weighted averaging (FedAS).

    A site trains in two phases. First it aligns the received body with the body from its previous training. Then it
    trains body and head together, as in `fedper`. The server weights the bodies by the trace of their Fisher
    information.

    Update rule:
        Before training, a site computes prototypes p_c with its previous body: the mean features of its training images
        of each class c. It trains the received body by plain SGD, with the head fixed. The loss of a batch, for d
        features f, is

            sum over classes c in the batch of mean over images of class c of (1 / d) ||f - p_c||^2

        In a site's first round there is no previous body, and the alignment is skipped. The released code aligns with
        an untrained body instead.

        The weight of a body is the trace of the diagonal empirical Fisher information of the trained model, as a mean
        over all training images. The released code sums over batches, which gives large sites more weight. If all
        traces are 0, sites are weighted by size. Under a privacy setting, sites do not send traces and are weighted
        equally.

    When to use it: Where `fedper` is useful and few sites take part in each round, so that a site returns to a body
    that other sites have changed. The alignment and the trace each cost additional passes over the training images.

    Attributes:
        align_epochs: Epochs of the alignment, >= 0; 0 disables the alignment.
        align_lr: Learning rate of the alignment, > 0.
        align_batch: Batch size of the alignment, >= 1.
        estimator: ``per_batch`` squares the gradient of each batch's mean loss, as the released code does.
            ``per_sample`` squares the gradient of each image, which is the Fisher information.
        global_head: ``none`` keeps heads at the sites, and there is no global model. With ``average``, the run's global
            model is the global body with the mean of the participants' heads, weighted as their bodies; sites continue
            with their own heads. This needs the same network at all sites.

    Source: Yang, Huang, Ye, CVPR 2024, and its released code.
    """

    name = "fedas"
    family = "personal"
    paper = "Yang, Huang, Ye, CVPR 2024"
    summary = "FedPer whose sites first align the received body with their previous one; weights by Fisher information"
    supports = frozenset({Capability.DIFFERENT_HEADS})

    sends_meta: ClassVar[Mapping[str, MetaField]] = {
        "size": MetaField("private", Count),
        "trace": MetaField("private", bounded_number(0), after=("fit",)),
    }
    """Mapping from each metadata key of a reply to its type and its disclosure under a privacy setting."""
    needs: ClassVar[frozenset[Need]] = frozenset({"class_logits", "linear_head", "trainable_body"})
    """Requirements that the task or the run must meet, otherwise the run is refused before it starts."""

    align_epochs: int = Field(1, ge=0)
    align_lr: float = Field(0.01, gt=0, allow_inf_nan=False)
    align_batch: int = Field(16, ge=1)
    estimator: Estimator = "per_batch"

    def weight(self, meta: Meta) -> float:
        """Return the weight of a reply before normalisation: its trace, or 1 if the reply has none."""
        return float(meta.get("trace", 1.0))

    def trainings(self, site: Site) -> Sequence[Training]:
        """Return the alignment, if it has epochs and the site was trained before, and the training of body and head."""
        if not self.align_epochs or not auxiliary_state(site, PREVIOUS_BODY_PREFIX):
            return (Training(),)
        return Training(ALIGNMENT, TrainingBudget(self.align_epochs), "body", batch_size=self.align_batch), Training()

    def before_trainings(self, site: Site, sent: Tensors) -> dict[str, Any]:
        """Return values that all trainings find in `Fit.extra`: prototypes of the previous body, for an alignment."""
        if len(self.trainings(site)) == 1:
            return {}
        task, old = (
            site.task,
            self.full_state(site, select(sent, MODEL_PREFIX)) | auxiliary_state(site, PREVIOUS_BODY_PREFIX),
        )
        model, classes = task.load(old, site.network), task.objective.classes
        return {"prototypes": prototypes(model, site.train, classes, site.settings.batch_size, task.device)}

    def make_optimizer(self, fit: Fit) -> torch.optim.Optimizer:
        """Create the optimiser of a training: the task's optimiser, or plain SGD for the alignment."""
        if fit.training.label == ALIGNMENT:
            return torch.optim.SGD([parameter for _, parameter in fit.parameters()], lr=self.align_lr)
        return super().make_optimizer(fit)

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """Return the loss of a batch: the task's loss, or the distance to the prototypes in the alignment."""
        if fit.training.label != ALIGNMENT:
            return fit.task_loss(batch)
        features = body_and_head(fit.model)[0](batch.images).float().flatten(1)
        return alignment_loss(features, fit.extra["prototypes"], batch.targets)

    def after_fit(self, fit: Fit) -> None:
        """Compute the trace for the reply, and store the trained body in the site's state for the next round."""
        if fit.training.label == ALIGNMENT:
            return
        trace = 0.0
        if fit.steps:
            names = [name for name, _ in fit.parameters()]
            information = fisher_at(fit.site, fit.model, names, estimator=self.estimator)
            trace = math.fsum(float(values.double().sum()) for values in information.values())
        fit.meta["trace"] = trace
        state, shared = fit.model.state_dict(), select(fit.sent, MODEL_PREFIX)
        set_auxiliary_state(fit.site, PREVIOUS_BODY_PREFIX, on_cpu({name: state[name] for name in shared}))


def alignment_loss(features: torch.Tensor, prototypes: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Compute the distance of features to the prototypes of their classes.

    For each class in the batch, (1 / d) ||f - p||^2 is averaged over the images of the class; the means are summed.

    Args:
        features: Features f, shape (B, d), B >= 1.
        prototypes: Prototypes p, shape (classes, d). The rows of classes in `labels` must be finite.
        labels: Classes of the images, shape (B,), int64.

    Returns:
        Scalar >= 0.
    """
    distances = (features - prototypes[labels]).square().mean(dim=1)
    counts = torch.bincount(labels, minlength=len(prototypes))
    return (distances / counts[labels]).sum()
