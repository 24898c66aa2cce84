"""FedFA, with feature anchors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch.nn import functional as F

from medfl.contract import Need, PayloadKind, ReducesTo, Replies, Request, Server
from medfl.errors import RefusedError, SettingsError
from medfl.networks.parts import body_and_head, features_and_logits, features_of
from medfl.task import Task
from medfl.toolkit.fit import Fit
from medfl.toolkit.kept import keep, kept
from medfl.toolkit.prototypes import mean_prototypes, table
from medfl.training.loop import Batch, smallest_batch
from medfl.types import MODEL, Meta, Tensors
from medfl.utils.rng import make_generator
from medfl.utils.wire import prefixed, select
from medfl_methods.fedavg import FedAvg

ANCHORS = "anchors/"
"""What the names of anchors begin with, in messages and where they are kept; then the number of the class."""


class FedFA(FedAvg):
    """FedAvg with an anchor for each class: sites pull features to it, and calibrate their heads on all anchors.

    A site minimises its loss plus lam (1/C) sum_c mean_{i of c} ||f_i - a_c||^2, where f are the features of a batch
    and a the received anchors. After each batch a step of Adam trains the head to tell the classes of all C anchors.
    A site's own anchors begin as the received ones; after each epoch they become anchor_momentum times themselves plus
    the rest of the mean features of their class in that epoch (the mean over the batches that hold the class, in
    training). Those of the classes that it has images of go to the server, whose new anchor is their mean, weighted as
    the models; a class that nobody has keeps its anchor.

    With ``lam = 0`` and no calibration this is `fedavg`: nothing is sent beside the model then.

    **An anchor is about the mean of a site's patients of a class**, who may be few; the server sees each site's.

    When to use it: When sites hold unlike shares of classes, so that features of one class drift apart and heads fit
    the site's own classes alone.

    Attributes:
        lam: Weight of the distance to anchors, >= 0.
        anchor_momentum: How much of its anchors a site keeps in each epoch, in [0, 1).
        calibration: Whether heads are trained on the anchors.
        calib_lr: Learning rate of its Adam, > 0, which starts anew in each round.
        anchor_init: First anchors: ``orthogonal`` directions of length 1, or ``one_hot``. Both need as many features as
            classes.

    Source: Zhou, Zhang, Tsang, FedFA: Federated Learning with Feature Anchors, IEEE Transactions on Mobile Computing
    2023, and its released code, which divides an epoch's features by the number of all batches.
    """

    name = "fedfa"
    family = "averaging"
    paper = "Zhou, Zhang, Tsang, IEEE TMC 2023"
    summary = "features are pulled to an anchor for each class, on which heads are calibrated"
    supports = frozenset()

    sends: ClassVar[Mapping[str, PayloadKind]] = {MODEL: "update", ANCHORS: "statistic"}
    needs: ClassVar[frozenset[Need]] = frozenset({"class_labels", "linear_head"})
    presets: ClassVar[Mapping[str, Meta]] = {"paper": {}, "medfl": {}}
    reduces_to: ClassVar[tuple[ReducesTo, ...]] = (ReducesTo("fedavg", {"lam": 0.0, "calibration": False}),)

    lam: float = Field(0.1, ge=0, allow_inf_nan=False)
    anchor_momentum: float = Field(0.5, ge=0, lt=1)
    calibration: bool = True
    calib_lr: float = Field(1e-3, gt=0, allow_inf_nan=False)
    anchor_init: Literal["orthogonal", "one_hot"] = "orthogonal"

    @property
    def anchored(self) -> bool:
        """Whether there are anchors."""
        return self.lam > 0 or self.calibration

    @property
    def active_needs(self) -> frozenset[Need]:
        """Classes and features where there are anchors."""
        return self.needs if self.anchored else frozenset()

    # ---- the server

    def setup(self, server: Server) -> None:
        """The common initial model, and the first anchors.

        Raises:
            SettingsError: If there are more classes than features.
        """
        super().setup(server)
        if not self.anchored:
            return
        task, classes = server.task, server.task.objective.classes
        features = features_of(task.build(), task.network)
        if features < classes:
            raise SettingsError(
                "too_few_features",
                f"FedFA begins with an anchor of its own direction for each class: expected at least {classes} "
                f"features, got {features}. Choose a network with a wider body.",
                minimum=classes,
                found=features,
            )
        rows = torch.eye(classes, features)
        if self.anchor_init == "orthogonal":
            draws = make_generator(server.settings.seed, "initial", "anchors")
            rows = torch.linalg.qr(torch.randn(features, classes, generator=draws)).Q.T
        keep(server, ANCHORS, {str(label): row.clone() for label, row in enumerate(rows)})

    def extra_down(self, server: Server) -> Tensors:
        """The anchors."""
        return prefixed(kept(server, ANCHORS), ANCHORS)

    def check_tensors(self, task: Task, request: Request, tensors: Tensors) -> None:
        """Updates of the model, and anchors of the order's shape."""
        super().check_tensors(task, request, tensors)
        for name, tensor in tensors.items():
            old = request.tensors.get(name)
            if name.startswith(ANCHORS) and (old is None or (old.shape, old.dtype) != (tensor.shape, tensor.dtype)):
                raise RefusedError(
                    "wrong_tensor",
                    f"An anchor {ascii(name)[:60]} was refused: expected one of the order's, got {tensor.dtype} "
                    f"{list(tensor.shape)}.",
                    tensor=ascii(name)[:60],
                    found=f"{tensor.dtype} {list(tensor.shape)}",
                )

    def aggregate_updates(self, server: Server, replies: Replies) -> None:
        """FedAvg's, and the mean anchors of the sites that own a class."""
        self.average(server, replies)
        sent = {site: select(tensors, ANCHORS) for site, tensors in replies}
        keep(server, ANCHORS, mean_prototypes(sent, lambda site, label: self.weight(replies.meta[site])))

    # ---- a site

    def before_fit(self, fit: Fit) -> None:
        """The anchors, the own ones, and what of an epoch is known yet."""
        if not self.anchored:
            return
        objective = fit.site.task.objective
        anchors = table(select(fit.sent, ANCHORS), objective.classes, fit.site.task.device)
        smallest = max(objective.smallest_batch, smallest_batch(fit.model, fit.site.settings))
        full, rest = divmod(len(fit.site.train), fit.site.settings.batch_size)
        fit.extra |= {"anchors": anchors, "own": OwnAnchors(anchors), "batches": full + (rest >= smallest)}  # type: ignore[arg-type]
        if self.calibration:
            fit.extra["calibrator"] = torch.optim.Adam(body_and_head(fit.model)[1].parameters(), lr=self.calib_lr)

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """The task's loss plus lam times the distance to the anchors."""
        if not self.anchored:
            return super().loss(fit, batch)
        task, anchors = fit.site.task, fit.extra["anchors"]
        features, logits = features_and_logits(fit.model, batch.images)
        labels: torch.Tensor = task.objective.class_labels(batch.targets)  # type: ignore[assignment]
        fit.extra["own"].note(features.detach().float(), labels)
        loss = task.loss(logits, batch.targets)
        return loss + self.lam * anchor_loss(features.float(), anchors, labels) if self.lam else loss

    def after_batch(self, fit: Fit) -> None:
        """Calibrate the head; at the end of an epoch move the own anchors."""
        if self.calibration:
            anchors, task, optimizer = fit.extra["anchors"], fit.site.task, fit.extra["calibrator"]
            outputs = task.objective.alternatives(body_and_head(fit.model)[1](anchors))
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(outputs, torch.arange(len(anchors), device=anchors.device)).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if self.anchored and fit.steps % fit.extra["batches"] == 0:
            fit.extra["own"].move(self.anchor_momentum)

    def extra_up(self, fit: Fit) -> Tensors:
        """The own anchors of the site's classes; an epoch that was cut short counts, too."""
        if not self.anchored:
            return {}
        fit.extra["own"].move(self.anchor_momentum)
        return prefixed(fit.extra["own"].of_own_classes(), ANCHORS)


class OwnAnchors:
    """A site's anchors, and the means of its features since they were moved last.

    Args:
        anchors: As received, (C, d).
    """

    def __init__(self, anchors: torch.Tensor) -> None:
        self._rows, self._known = anchors.clone(), torch.zeros(len(anchors), dtype=torch.bool, device=anchors.device)
        self._sums, self._batches = torch.zeros_like(anchors), anchors.new_zeros(len(anchors))

    def note(self, features: torch.Tensor, labels: torch.Tensor) -> None:
        """Add the class means of a batch: features (B, d), labels (B,)."""
        counts = torch.bincount(labels, minlength=len(self._rows))
        means = torch.zeros_like(self._rows).index_add_(0, labels, features) / counts.clamp(min=1)[:, None]
        self._sums += means
        self._batches += counts > 0

    def move(self, momentum: float) -> None:
        """Move the anchors of the classes that were seen since, and forget these."""
        seen = self._batches > 0
        means = self._sums / self._batches.clamp(min=1)[:, None]
        self._rows = torch.where(seen[:, None], momentum * self._rows + (1 - momentum) * means, self._rows)
        self._known |= seen
        self._sums.zero_()
        self._batches.zero_()

    def of_own_classes(self) -> Tensors:
        """Anchors (d,) of all classes that were seen, by the number of the class."""
        return {str(label): self._rows[label].clone() for label in self._known.nonzero().flatten().tolist()}


def anchor_loss(features: torch.Tensor, anchors: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """(1/C) times the sum over the batch's classes of the mean squared distance of their features to the anchor.

    Args:
        features: (B, d).
        anchors: (C, d).
        labels: (B,).
    """
    squares = (features - anchors[labels]).square().sum(1)
    counts = torch.bincount(labels, minlength=len(anchors))
    return (squares / counts[labels]).sum() / len(anchors)
