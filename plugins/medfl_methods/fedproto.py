"""FedProto: personal models that share the mean features of each class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch

from medfl.contract import Capability, Server, Site
from medfl.data.pooled import labels_of
from medfl.toolkit.participant_state import set_auxiliary_state
from medfl.toolkit.prototypes import PROTOTYPE_PREFIX, PrototypeSharing, mean_prototypes
from medfl.types import Meta, Tensors
from medfl.utils.metadata import Count, MetaField, list_of


class FedProto(PrototypeSharing):
    """Prototype sharing (FedProto): sites share only the mean features of each class, so networks may differ.

    Each site has a personal model. After training, it sends the prototypes of its classes: the mean features of all its
    training images of a class, in evaluation mode. The global prototype of a class is the mean over the sites that sent
    one. If no site sends a prototype of a class, the class keeps its last global prototype. Networks may differ if
    their bodies give the same number of features.

    Update rule:
        With features f(x) of an image x of class y, and P_y the global prototype of the class, a site minimises

            F(w) + lam mean over the batch of distance(f(x), P_y)

        An image of a class without global prototype adds 0. In the first round there are no prototypes.

    When to use it: When hospitals need different networks, or when traffic must be small: a message has classes x
    features numbers.

    Limits: **If a single site sends a prototype of a class, the global prototype is the mean of that site's patients**,
    who may be few. No model is shared, so a site without images of a class learns little about it.

    Limit cases: With ``lam = 0``, this method is `local` if all sites take part in each round.

    Attributes:
        lam: Weight of the distance to the prototypes, >= 0. Grid of the paper: 0.1 to 10.
        distance: ``mse`` is the squared Euclidean distance divided by the number of features, as in the authors' code;
            ``l2`` is not divided, as in the paper.
        weights: Weights of the mean over sites: ``uniform``, as in the code, or ``counts``, the sites' numbers of
            images of the class, which they then send.

    Source: Tan, Long, Liu, Zhou, Lu, Jiang, Zhang, AAAI 2022, equations 4 to 7, and its released code.
    """

    name = "fedproto"
    family = "personal"
    paper = "Tan et al., AAAI 2022"
    summary = "personal models regularised towards global class prototypes; only prototypes are sent"
    supports = frozenset({Capability.DIFFERENT_NETWORKS})

    sends_meta: ClassVar[Mapping[str, MetaField]] = {"label_counts": MetaField("private", list_of(Count, "classes"))}
    """Mapping from each metadata key of a reply to its type and its disclosure under a privacy setting."""
    presets: ClassVar[Mapping[str, Meta]] = {
        "paper": {"distance": "l2", "weights": "counts", "inference": "prototype"},
        "medfl": {},
    }

    distance: Literal["mse", "l2"] = "mse"
    weights: Literal["uniform", "counts"] = "uniform"

    def scale(self, features: int) -> float:
        """Return the factor of the squared distance besides `lam`: 1 for ``l2``, 1 / d for ``mse`` with d features."""
        return 1.0 if self.distance == "l2" else super().scale(features)

    def reply_metadata(self, site: Site) -> Meta:
        """Return the metadata of a reply: the site's number of images per class, if `weights` uses them."""
        if self.weights == "uniform":
            return {}
        return {"label_counts": torch.bincount(labels_of(site.train), minlength=site.task.objective.classes).tolist()}

    def update_prototypes(self, server: Server, sent: Mapping[str, Tensors], metas: Mapping[str, Meta]) -> None:
        """Store the common prototype of each class: the mean over the sites that sent a prototype."""
        ones = [1] * server.task.objective.classes
        set_auxiliary_state(
            server,
            PROTOTYPE_PREFIX,
            mean_prototypes(sent, lambda site, label: metas[site].get("label_counts", ones)[int(label)]),
        )
