"""FedKPer."""

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
from medfl.utils.metadata import Count, MetaField, number


class FedKPer(Averaging):
    """Knowledge personalisation: the received model teaches a site as far as it is right there, and sites weigh by
    how reliable and how diverse they are.

    A site minimises CE + lambda KL(teacher || model), where the teacher is the model it received and lambda is
    min(1 / CE(teacher), lambda_cap), without a gradient. The server weighs a site by A (1e-12 + d): A is the accuracy
    of the trained model on the site's own training images, d in [0, 1] the entropy of its labels divided by that of
    uniform ones. A site of one class weighs next to nothing beside any other; if all scores are 0, sites weigh by
    size. Under a privacy setting scores stay at home and the weights are uniform.

    ``distill = false`` with ``aggregation = size`` and no clipping makes this FedAvg.

    The preset ``code`` goes with settings of the run that the released code has and the paper does not: ``lr_decay``
    0.99, and SGD with momentum 0.9 and weight decay 1e-5.

    When to use it: When few sites take part in a round and hold unlike shares of the classes, so that FedAvg forgets
    between rounds what absent sites taught it. It can't help a site that holds one class only, whose update is all but
    ignored.

    Attributes:
        distill: Whether the received model teaches.
        aggregation: What sites weigh by: their ``score`` or their ``size``.
        score: What the score is: ``acc`` A, ``div`` d, or their product.
        lambda_scope: What CE(teacher) is the mean of: each ``batch``, each ``sample`` for itself, or once a round all
            training images of the site (``client``). Images are taken as they are, also where the task changes them at
            random in training; the teacher then still teaches on the changed ones.
        lambda_mode: ``adaptive``, or ``const`` for lambda = lambda_cap.
        lambda_cap: Largest lambda, > 0.
        tau: Temperature of the distillation, > 0; its square weighs the term.
        score_eps: Added to d, >= 0.

    Source: Fowler and AlRegib, ICIP 2026, equations 3 to 6; where the paper is silent, its released code.
    """

    name = "fedkper"
    family = "averaging"
    paper = "Fowler and AlRegib, ICIP 2026"
    summary = "the server's model teaches where it is right; sites weigh by reliability and diversity"
    supports = frozenset({Capability.DP_SGD})

    needs: ClassVar[frozenset[Need]] = frozenset({"class_labels", "soft_targets"})
    sends_meta: ClassVar[Mapping[str, MetaField]] = {
        "size": MetaField("private", Count),
        "score": MetaField("private", number(0)),
    }
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

    @property
    def active_needs(self) -> frozenset[Need]:
        """Soft targets to distil, or for the accuracy; classes for the diversity."""
        needs: set[Need] = {"soft_targets"} if self.distill else set()
        if self.aggregation == "score" and "acc" in self.score:
            needs.add("soft_targets")
        if self.aggregation == "score" and "div" in self.score:
            needs.add("class_labels")
        return frozenset(needs)

    @property
    def active_supports(self) -> frozenset[Capability]:
        """Capabilities of the class; DP-SGD only if lambda depends on a single image or on none."""
        separate = not self.distill or self.lambda_mode == "const" or self.lambda_scope == "sample"
        return super().active_supports - (set() if separate else {Capability.DP_SGD})

    def before_fit(self, fit: Fit) -> None:
        """The received model becomes the teacher."""
        if self.distill:
            fit.extra["teacher"] = Teacher(fit.model, fit.site)

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """The task's loss plus lambda times the distillation term."""
        if not self.distill:
            return super().loss(fit, batch)
        student, teacher, objective = fit.model(batch.images), fit.extra["teacher"], fit.site.task.objective
        weight = self.weight_of(fit, teacher.logits, batch.rows).to(student.device)
        both = objective.alternatives(student.float()), objective.alternatives(teacher(batch))
        term = (weight * distillation(*both, self.tau)).mean()
        return fit.site.task.loss(student, batch.targets) + term

    def after_fit(self, fit: Fit) -> None:
        """The site's score."""
        if self.aggregation == "score":
            objective, targets = fit.site.task.objective, all_targets(fit.site.train)
            accuracy = own_accuracy(fit) if "acc" in self.score else 1.0
            diversity = label_diversity(objective.counts(targets)) if "div" in self.score else 1.0
            fit.meta["score"] = reliability(self.score, accuracy, diversity, self.score_eps)

    def weight(self, meta: Meta) -> float:
        """The score, or the size."""
        return float(meta.get("score", 1.0)) if self.aggregation == "score" else super().weight(meta)

    def weight_of(self, fit: Fit, teacher: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """lambda for a batch: a scalar, or shape (B,) with `lambda_scope` ``sample``."""
        if self.lambda_mode == "const":
            return torch.tensor(self.lambda_cap)
        chosen = torch.arange(len(teacher)) if self.lambda_scope == "client" else rows
        targets, alone = fit.site.train.targets(chosen), self.lambda_scope == "sample"
        return adaptive_weight(fit.site.task.objective, teacher[chosen], targets, self.lambda_cap, alone)


def own_accuracy(fit: Fit) -> float:
    """Share of the site's training images that the model gets right; for masks the mean Dice."""
    task, train = fit.site.task, fit.site.train
    outputs = logits(fit.model, train, fit.site.settings, task.device, evaluation_batch(task.objective))
    return float(task.objective.agreement(outputs, all_targets(train)).mean())


def adaptive_weight(
    objective: Objective, teacher: torch.Tensor, targets: torch.Tensor, cap: float, per_sample: bool = False
) -> torch.Tensor:
    """min(1 / (CE + 1e-8), cap): how far a teacher is trusted, without a gradient (equation 4).

    Args:
        objective: Of the task, with soft targets.
        teacher: Its outputs, shape (B, ...).
        targets: Shape (B, ...).
        cap: Largest value, > 0.
        per_sample: Whether each image has its own CE, or all together their mean.

    Returns:
        A scalar, or shape (B,).
    """
    wrong = objective.cross_entropy(teacher.detach(), targets, per_sample)
    return (1 / (wrong + 1e-8)).clamp(max=cap)


def label_diversity(counts: list[int]) -> float:
    """Entropy of a site's labels divided by that of uniform ones, in [0, 1] (equation 5).

    Classes without images are left out, so the logarithm needs no guard. With the paper's guard of 1e-12 the value of
    a site of one class would not be exactly 0, and mostly negative.

    Args:
        counts: Training images of each class of the task, at least two classes.

    Returns:
        0 for one class, 1 for all classes alike, 0 for no image.
    """
    shares = [n / sum(counts) for n in counts if n]
    return min(math.fsum(-share * math.log(share) for share in shares) / math.log(len(counts)), 1.0)


def reliability(kind: str, accuracy: float, diversity: float, eps: float) -> float:
    """The score of a site: ``acc`` A, ``div`` eps + d, or ``acc*div`` A (eps + d) (equation 6)."""
    return (accuracy if "acc" in kind else 1.0) * (eps + diversity if "div" in kind else 1.0)
