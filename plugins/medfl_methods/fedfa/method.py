"""FedFA as a method class: the anchors of the server and of the sites, and the calibration of heads.

An anchor is a point in feature space for each class. The head of a network classifies the features of the body.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch.nn import functional as F

from medfl.contract import Need, PayloadKind, ReducesTo, Replies, Request, Server
from medfl.errors import RefusedError, SettingsError
from medfl.networks.parts import body_and_head, feature_count, features_and_logits
from medfl.task import Task
from medfl.toolkit.fit import Fit
from medfl.toolkit.participant_state import auxiliary_state, set_auxiliary_state
from medfl.toolkit.prototypes import mean_prototypes, prototype_table
from medfl.training.loop import Batch, smallest_batch
from medfl.types import MODEL_PREFIX, Meta, Tensors
from medfl.utils.rng import make_generator
from medfl.utils.wire import prefixed, select
from medfl_methods.fedavg import FedAvg

ANCHORS_PREFIX = "anchors/"
"""Prefix of the anchors' tensor names in messages and in the server's state; the number of the class follows."""


class FedFA(FedAvg):
    """FedAvg with a feature anchor for each class: sites pull features to the anchors and calibrate heads on them.

    With ``lam = 0`` and no calibration this is `fedavg`, and only the model is sent.

    **An anchor is close to the mean of a site's patients of one class**, who may be few; the server sees the anchors of
    each site.

    Update rule:
        A site minimises

            L + lam (1/C) sum_c mean_{i of class c} ||f_i - a_c||^2

        where L is the task's loss, f are the features of a batch, a the received anchors and C is the number of
        classes. After each batch, a step of Adam trains the head to classify all C anchors. A site's own anchors start
        as the received ones. After each epoch an own anchor becomes anchor_momentum times itself plus (1 -
        anchor_momentum) times the mean features of its class in that epoch, averaged over the training batches that
        contain the class. The site sends its own anchors of the classes that it has. The server's new anchor is their
        mean, weighted like the models; the anchor of a class that no site has stays unchanged.

    When to use it: Use it if the distribution of classes differs between sites, so that the features of a class drift
    apart and heads fit only the site's own classes.

    Attributes:
        lam: Weight of the distance to the anchors, >= 0.
        anchor_momentum: Fraction of its own anchors that a site keeps in each epoch, in [0, 1).
        calibration: Whether heads are trained on the anchors.
        calib_lr: Learning rate of the calibration's Adam, > 0; the optimiser is new in each round.
        anchor_init: Anchors of the first round: ``orthogonal`` directions of length 1, or ``one_hot``. Both need at
            least as many features as classes.

    Source: Zhou, Zhang, Tsang, FedFA: Federated Learning with Feature Anchors, IEEE Transactions on Mobile Computing
    2023, and its released code, which divides an epoch's features by the number of all batches.
    """

    name = "fedfa"
    family = "averaging"
    paper = "Zhou, Zhang, Tsang, IEEE TMC 2023"
    summary = "FedAvg with an anchor for each class, which attracts features and calibrates heads"
    supports = frozenset()

    sends: ClassVar[Mapping[str, PayloadKind]] = {MODEL_PREFIX: "update", ANCHORS_PREFIX: "statistic"}
    """Tensors in a site's reply: mapping from each name prefix to the kind of payload, such as an update."""
    needs: ClassVar[frozenset[Need]] = frozenset({"class_labels", "linear_head"})
    """Properties that the task, its data and its networks must have for this method."""
    presets: ClassVar[Mapping[str, Meta]] = {"paper": {}, "medfl": {}}
    reduces_to: ClassVar[tuple[ReducesTo, ...]] = (ReducesTo("fedavg", {"lam": 0.0, "calibration": False}),)

    lam: float = Field(0.1, ge=0, allow_inf_nan=False)
    anchor_momentum: float = Field(0.5, ge=0, lt=1)
    calibration: bool = True
    calib_lr: float = Field(1e-3, gt=0, allow_inf_nan=False)
    anchor_init: Literal["orthogonal", "one_hot"] = "orthogonal"

    @property
    def uses_anchors(self) -> bool:
        """True if the settings use anchors."""
        return self.lam > 0 or self.calibration

    @property
    def active_needs(self) -> frozenset[Need]:
        """Properties that the task must have with these settings: classes and features if anchors are used."""
        return self.needs if self.uses_anchors else frozenset()

    # ---- the server

    def setup(self, server: Server) -> None:
        """Initialise the model and the first anchors in the server's state.

        Raises:
            SettingsError: If there are more classes than features.
        """
        super().setup(server)
        if not self.uses_anchors:
            return
        task, classes = server.task, server.task.objective.classes
        features = feature_count(task.build(), task.network)
        if features < classes:
            raise SettingsError(
                "too_few_features",
                f"FedFA initialises the anchors of all classes in different directions: expected at least {classes} "
                f"features, got {features}. Choose a network with a wider body.",
                minimum=classes,
                found=features,
            )
        rows = torch.eye(classes, features)
        if self.anchor_init == "orthogonal":
            draws = make_generator(server.settings.seed, "initial", "anchors")
            rows = torch.linalg.qr(torch.randn(features, classes, generator=draws)).Q.T
        set_auxiliary_state(server, ANCHORS_PREFIX, {str(label): row.clone() for label, row in enumerate(rows)})

    def extra_request_tensors(self, server: Server) -> Tensors:
        """Return the tensors that a request contains beside the model: the anchors."""
        return prefixed(auxiliary_state(server, ANCHORS_PREFIX), ANCHORS_PREFIX)

    def check_tensors(self, task: Task, request: Request, tensors: Tensors) -> None:
        """Raise if a reply contains tensors other than updates of the model and anchors of the requested shapes.

        Raises:
            RefusedError: If a tensor does not fit the request.
        """
        super().check_tensors(task, request, tensors)
        for name, tensor in tensors.items():
            old = request.tensors.get(name)
            if name.startswith(ANCHORS_PREFIX) and (
                old is None or (old.shape, old.dtype) != (tensor.shape, tensor.dtype)
            ):
                raise RefusedError(
                    "wrong_tensor",
                    f"The anchor {ascii(name)[:60]} was refused: expected name, shape and type of an anchor in the "
                    f"request, got {tensor.dtype} {list(tensor.shape)}.",
                    tensor=ascii(name)[:60],
                    found=f"{tensor.dtype} {list(tensor.shape)}",
                )

    def aggregate_updates(self, server: Server, replies: Replies) -> None:
        """Aggregate as in FedAvg, and set each anchor to the mean of the anchors of the sites that have the class."""
        self.average(server, replies)
        sent = {site: select(tensors, ANCHORS_PREFIX) for site, tensors in replies}
        set_auxiliary_state(
            server, ANCHORS_PREFIX, mean_prototypes(sent, lambda site, label: self.weight(replies.meta[site]))
        )

    # ---- a site

    def before_fit(self, fit: Fit) -> None:
        """Prepare a training: load the anchors, create the site's own anchors and the optimiser of the calibration."""
        if not self.uses_anchors:
            return
        objective = fit.site.task.objective
        anchors = prototype_table(select(fit.sent, ANCHORS_PREFIX), objective.classes, fit.site.task.device)
        smallest = max(objective.smallest_batch, smallest_batch(fit.model, fit.site.settings))
        full, rest = divmod(len(fit.site.train), fit.site.settings.batch_size)
        fit.extra |= {"anchors": anchors, "own": OwnAnchors(anchors), "batches": full + (rest >= smallest)}  # type: ignore[arg-type]
        if self.calibration:
            fit.extra["calibrator"] = torch.optim.Adam(body_and_head(fit.model)[1].parameters(), lr=self.calib_lr)

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """Return the loss of a batch: the task's loss plus lam times the distance of features to the anchors."""
        if not self.uses_anchors:
            return fit.task_loss(batch)
        task, anchors = fit.site.task, fit.extra["anchors"]
        features, logits = features_and_logits(fit.model, batch.images)
        labels: torch.Tensor = task.objective.class_labels(batch.targets)  # type: ignore[assignment]
        fit.extra["own"].add_batch(features.detach().float(), labels)
        loss = task.loss(logits, batch.targets)
        return loss + self.lam * anchor_loss(features.float(), anchors, labels) if self.lam else loss

    def can_continue(self, fit: Fit) -> bool:
        """Return True if the training does not change anchors."""
        return not self.uses_anchors

    def after_batch(self, fit: Fit) -> None:
        """Calibrate the head after a batch, and update the site's own anchors at the end of an epoch."""
        if self.calibration:
            anchors, task, optimizer = fit.extra["anchors"], fit.site.task, fit.extra["calibrator"]
            outputs = task.objective.alternatives(body_and_head(fit.model)[1](anchors))
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(outputs, torch.arange(len(anchors), device=anchors.device)).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if self.uses_anchors and fit.steps % fit.extra["batches"] == 0:
            fit.extra["own"].update_anchors(self.anchor_momentum)

    def extra_reply_tensors(self, fit: Fit) -> Tensors:
        """Return the tensors that a reply contains beside the update: the own anchors of the site's classes.

        An incomplete last epoch updates the anchors first.
        """
        if not self.uses_anchors:
            return {}
        fit.extra["own"].update_anchors(self.anchor_momentum)
        return prefixed(fit.extra["own"].own_class_anchors(), ANCHORS_PREFIX)


class OwnAnchors:
    """Anchors of a site, and the running class means of features with which they are updated.

    Args:
        anchors: Received anchors of C classes with d features, (C, d).
    """

    def __init__(self, anchors: torch.Tensor) -> None:
        self._rows, self._has_occurred = (
            anchors.clone(),
            torch.zeros(len(anchors), dtype=torch.bool, device=anchors.device),
        )
        self._sums, self._batches = torch.zeros_like(anchors), anchors.new_zeros(len(anchors))

    def add_batch(self, features: torch.Tensor, labels: torch.Tensor) -> None:
        """Add a batch to the running class means: features (B, d), labels (B,)."""
        counts = torch.bincount(labels, minlength=len(self._rows))
        means = torch.zeros_like(self._rows).index_add_(0, labels, features) / counts.clamp(min=1)[:, None]
        self._sums += means
        self._batches += counts > 0

    def update_anchors(self, momentum: float) -> None:
        """Move the anchors toward the class means since the last update, and reset the means.

        Only the anchors of classes that occurred since then change.

        Args:
            momentum: Fraction of the old anchor in the new one, in [0, 1).
        """
        seen = self._batches > 0
        means = self._sums / self._batches.clamp(min=1)[:, None]
        self._rows = torch.where(seen[:, None], momentum * self._rows + (1 - momentum) * means, self._rows)
        self._has_occurred |= seen
        self._sums.zero_()
        self._batches.zero_()

    def own_class_anchors(self) -> Tensors:
        """Return the anchors (d,) of all classes that the site has had, by the number of the class as text."""
        return {str(label): self._rows[label].clone() for label in self._has_occurred.nonzero().flatten().tolist()}


def anchor_loss(features: torch.Tensor, anchors: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return (1/C) times the sum over the batch's classes of the mean squared distance of features to their anchor.

    Args:
        features: Features, (B, d).
        anchors: Anchors, (C, d).
        labels: Class labels, (B,).
    """
    squares = (features - anchors[labels]).square().sum(1)
    counts = torch.bincount(labels, minlength=len(anchors))
    return (squares / counts[labels]).sum() / len(anchors)
