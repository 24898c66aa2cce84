"""FedProto."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch

from medfl.contract import Capability, Server, Site
from medfl.data.pooled import labels_of
from medfl.toolkit.kept import keep
from medfl.toolkit.prototypes import PROTO, PrototypeSharing, mean_prototypes
from medfl.types import Meta, Tensors
from medfl.utils.metadata import Count, MetaField, list_of


class FedProto(PrototypeSharing):
    """Every site has a model of its own; shared are prototypes, the mean features of the images of each class.

    A site minimises its loss plus lam times the mean over a batch of the distance of each image's features to the
    common prototype of its class; an image of a class without one adds 0. Then it sends the prototypes of its classes,
    of all its training images in evaluation mode. A common prototype is the mean over the sites that sent one; a class
    that nobody sent keeps its last. In the first round there are none. Networks may be unlike if their bodies give as
    many features.

    With ``lam = 0`` this is `local`, as long as all sites take part in each round.

    **A prototype that one site alone sends is the mean of that site's patients**, who may be few.

    When to use it: Where hospitals want unlike networks, or can send little: a message has classes times features
    numbers. As no model is shared, a site that lacks images of a class learns little about it.

    Attributes:
        lam: Weight of the distance to prototypes, >= 0. The paper's grid is 0.1 to 10.
        distance: ``mse`` is the squared Euclidean distance divided by the number of features, as in the authors' code;
            ``l2`` is not divided, as in the paper.
        weights: What the mean over sites weighs by: ``uniform``, as in the code, or ``counts`` of a site's images of
            the class, which it then tells.

    Source: Tan, Long, Liu, Zhou, Lu, Jiang, Zhang, AAAI 2022, equations 4 to 7, and its released code.
    """

    name = "fedproto"
    family = "personal"
    paper = "Tan et al., AAAI 2022"
    summary = "own models, held together by the mean features of each class, which are all that is sent"
    supports = frozenset({Capability.DIFFERENT_NETWORKS})

    sends_meta: ClassVar[Mapping[str, MetaField]] = {"label_counts": MetaField("private", list_of(Count, "classes"))}
    presets: ClassVar[Mapping[str, Meta]] = {
        "paper": {"distance": "l2", "weights": "counts", "inference": "prototype"},
        "medfl": {},
    }

    distance: Literal["mse", "l2"] = "mse"
    weights: Literal["uniform", "counts"] = "uniform"

    def scale(self, features: int) -> float:
        """1, or 1/d."""
        return 1.0 if self.distance == "l2" else super().scale(features)

    def tells(self, site: Site) -> Meta:
        """The site's numbers of images of each class, if they are weights."""
        if self.weights == "uniform":
            return {}
        return {"label_counts": torch.bincount(labels_of(site.train), minlength=site.task.objective.classes).tolist()}

    def take_in(self, server: Server, sent: Mapping[str, Tensors], metas: Mapping[str, Meta]) -> None:
        """The mean over the sites that own a class."""
        ones = [1] * server.task.objective.classes
        keep(
            server, PROTO, mean_prototypes(sent, lambda site, label: metas[site].get("label_counts", ones)[int(label)])
        )
