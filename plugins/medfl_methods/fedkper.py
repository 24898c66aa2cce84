"""FedKPer: adaptive distillation from the global model, and aggregation weights by reliability and label diversity."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field

from medfl.contract import Capability, Need, ReducesTo
from medfl.data.pooled import all_targets
from medfl.objectives import Objective
from medfl.toolkit.averaging import Averaging
from medfl.toolkit.fit import Fit
from medfl.toolkit.losses import distillation
from medfl.toolkit.teacher import Teacher
from medfl.training.loop import Batch
from medfl.training.predict import evaluation_batch, logits
from medfl.types import Meta
from medfl.utils.metadata import Count, MetaField, bounded_number


class FedKPer(Averaging):
    """Knowledge personalisation (FedKPer): adaptive distillation at the sites and weights by reliability and diversity.

    The received model teaches a site in local training, with more weight where its predictions are correct. The server
    gives more weight to sites whose trained model is accurate on their own images and whose labels are diverse.

    Update rule:
        A site minimises

            CE(w) + lambda tau^2 KL(teacher || w),    lambda = min(1 / CE(teacher), lambda_cap)

        where the teacher is the received model, both predictions have temperature tau, and lambda has no gradient. The
        weight of a site is

            A (score_eps + d)

        A is the accuracy of the trained model on the site's training images. d in [0, 1] is the entropy of the site's
        labels, divided by the entropy of uniform labels. If all scores are 0, sites are weighted by size. Under a
        privacy setting, sites do not send scores and the weights are uniform.

    When to use it: When few sites take part in a round and they have different class distributions, so that `fedavg`
    forgets the updates of unavailable sites.

    Limits: A site with a single class gets almost no weight beside the others, so the method cannot help it. The preset
    ``code`` belongs to settings of the run that the released code has and the paper does not mention: ``lr_decay``
    0.99, and SGD with momentum 0.9 and weight decay 1e-5.

    Attributes:
        distill: Whether the received model teaches.
        aggregation: Aggregation weights: the sites' ``score`` or their ``size``.
        score: Definition of the score: ``acc`` is A, ``div`` is score_eps + d, ``acc*div`` is their product.
        lambda_scope: Images over which CE(teacher) is averaged: each ``batch``, each ``sample`` on its own, or once per
            round all training images of the site (``client``). CE(teacher) is computed on images without augmentation.
            The distillation itself uses the augmented images.
        lambda_mode: ``adaptive``, or ``const`` for lambda = lambda_cap.
        lambda_cap: Largest lambda, > 0.
        tau: Temperature of the distillation, > 0; the term is multiplied by its square.
        score_eps: Constant added to d, >= 0.

    Source: Fowler and AlRegib, ICIP 2026, equations 3 to 6; where the paper gives no detail, its released code.
    """

    name = "fedkper"
    family = "averaging"
    paper = "Fowler and AlRegib, ICIP 2026"
    summary = "FedAvg with adaptive distillation from the global model, and weights by accuracy and label diversity"
    supports = frozenset({Capability.DP_SGD, Capability.EXACT_ADAPTERS})

    needs: ClassVar[frozenset[Need]] = frozenset({"class_labels", "soft_targets"})
    """Requirements that the task or the run must meet, otherwise the run is refused before it starts."""
    sends_meta: ClassVar[Mapping[str, MetaField]] = {
        "size": MetaField("private", Count),
        "score": MetaField("private", bounded_number(0)),
    }
    """Mapping from each metadata key of a reply to its type and its disclosure under a privacy setting."""
    presets: ClassVar[Mapping[str, Meta]] = {
        "paper": {},
        "code": {"gradient_clip": None, "score_eps": 1e-6},
        "medfl": {},
    }
    reduces_to: ClassVar[tuple[ReducesTo, ...]] = (
        ReducesTo("fedavg", {"distill": False, "aggregation": "size", "gradient_clip": None}),
    )

    distill: bool = True
    aggregation: Literal["score", "size"] = "score"
    score: Literal["acc", "div", "acc*div"] = "acc*div"
    lambda_scope: Literal["batch", "sample", "client"] = "batch"
    lambda_mode: Literal["adaptive", "const"] = "adaptive"
    lambda_cap: float = Field(10.0, gt=0, allow_inf_nan=False)
    tau: float = Field(1.0, gt=0, allow_inf_nan=False)
    score_eps: float = Field(1e-12, ge=0, allow_inf_nan=False)
    gradient_clip: float | None = Field(5.0, gt=0, allow_inf_nan=False)
    """Maximum L2 norm of a batch's gradient over all parameters jointly, > 0; None disables clipping."""

    @property
    def active_needs(self) -> frozenset[Need]:
        """Requirements with the current settings: soft targets, class labels, both or none."""
        needs: set[Need] = {"soft_targets"} if self.distill else set()
        if self.aggregation == "score" and "acc" in self.score:
            needs.add("soft_targets")
        if self.aggregation == "score" and "div" in self.score:
            needs.add("class_labels")
        return frozenset(needs)

    @property
    def active_supports(self) -> frozenset[Capability]:
        """Capabilities with the current settings; DP-SGD only if lambda depends on at most one image."""
        is_per_image = not self.distill or self.lambda_mode == "const" or self.lambda_scope == "sample"
        return super().active_supports - (set() if is_per_image else {Capability.DP_SGD})

    def before_fit(self, fit: Fit) -> None:
        """Prepare a training: store the received model as the teacher."""
        if self.distill:
            fit.extra["teacher"] = Teacher(fit.model, fit.site)

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """Return the task's loss plus lambda times the distillation term."""
        if not self.distill:
            return fit.task_loss(batch)
        student, teacher, objective = fit.model(batch.images), fit.extra["teacher"], fit.site.task.objective
        weight = self.distillation_weight(fit, teacher.logits, batch.rows).to(student.device)
        both = objective.alternatives(student.float()), objective.alternatives(teacher(batch))
        term = (weight * distillation(*both, self.tau)).mean()
        return fit.site.task.loss(student, batch.targets) + term

    def after_fit(self, fit: Fit) -> None:
        """Add the site's score to the metadata of the reply."""
        if self.aggregation == "score":
            objective, targets = fit.site.task.objective, all_targets(fit.site.train)
            accuracy = own_accuracy(fit) if "acc" in self.score else 1.0
            diversity = label_diversity(objective.counts(targets)) if "div" in self.score else 1.0
            fit.meta["score"] = reliability(self.score, accuracy, diversity, self.score_eps)

    def weight(self, meta: Meta) -> float:
        """Return the weight of a reply before normalisation: its score (1 if it has none), or the site's size."""
        return float(meta.get("score", 1.0)) if self.aggregation == "score" else super().weight(meta)

    def distillation_weight(self, fit: Fit, teacher: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return lambda for a batch.

        Args:
            fit: Training at the site.
            teacher: Logits of the teacher for all training images.
            rows: Row indices of the batch.

        Returns:
            Scalar, or a tensor of shape (B,) with `lambda_scope` ``sample``.
        """
        if self.lambda_mode == "const":
            return torch.tensor(self.lambda_cap)
        chosen = torch.arange(len(teacher)) if self.lambda_scope == "client" else rows
        targets, is_per_sample = fit.site.train.targets(chosen), self.lambda_scope == "sample"
        return adaptive_weight(fit.site.task.objective, teacher[chosen], targets, self.lambda_cap, is_per_sample)


def own_accuracy(fit: Fit) -> float:
    """Return the model's accuracy on the site's training images; for masks the mean Dice."""
    task, train = fit.site.task, fit.site.train
    outputs = logits(fit.model, train, fit.site.settings, task.device, evaluation_batch(task.objective))
    return float(task.objective.case_accuracy(outputs, all_targets(train)).mean())


def adaptive_weight(
    objective: Objective, teacher: torch.Tensor, targets: torch.Tensor, cap: float, per_sample: bool = False
) -> torch.Tensor:
    """Compute the weight of the teacher, min(1 / (CE + 1e-8), cap), without a gradient (equation 4).

    CE is the cross entropy of the teacher.

    Args:
        objective: Objective of the task, with soft targets.
        teacher: Logits of the teacher, shape (B, ...).
        targets: Targets, shape (B, ...).
        cap: Largest value, > 0.
        per_sample: Whether each image has its own CE; otherwise CE is the mean over all images.

    Returns:
        Scalar, or a tensor of shape (B,).
    """
    wrong = objective.cross_entropy(teacher.detach(), targets, per_sample)
    return (1 / (wrong + 1e-8)).clamp(max=cap)


def label_diversity(counts: list[int]) -> float:
    """Return the entropy of a site's labels divided by the maximum entropy, in [0, 1] (equation 5).

    Classes without images are left out, so the logarithm needs no guard. With the paper's guard of 1e-12, the value of
    a site with one class would not be exactly 0, and mostly negative.

    Args:
        counts: Number of training images per class of the task, for at least two classes.

    Returns:
        1 for equal counts of all classes; 0 for a single class or no image.
    """
    shares = [n / sum(counts) for n in counts if n]
    return min(math.fsum(-share * math.log(share) for share in shares) / math.log(len(counts)), 1.0)


def reliability(kind: str, accuracy: float, diversity: float, eps: float) -> float:
    """Compute the score of a site (equation 6) from its accuracy A and its label diversity d.

    Args:
        kind: Definition of the score: ``acc`` is A, ``div`` is eps + d, ``acc*div`` is A (eps + d).
        accuracy: Accuracy A.
        diversity: Label diversity d.
        eps: Constant added to d.
    """
    return (accuracy if "acc" in kind else 1.0) * (eps + diversity if "div" in kind else 1.0)
