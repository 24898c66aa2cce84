"""Server's classifier for the body of a cluster, trained on public data.

A cluster is the set of sites with the same network. The body of a network computes features, from which the classifier
(the head) predicts the class.

Source: PFedCDP names "the server's own powerful classification layer" and does not say how it is trained. The hidden
widths follow its released code: twice and once the number of features.
"""

from __future__ import annotations

import copy
from typing import Literal

import torch
from torch import nn

from medfl.contract import Server
from medfl.data.pooled import TensorData, labels_of
from medfl.errors import SettingsError
from medfl.networks.norms import buffer_names, norm_names
from medfl.networks.parts import SplitNetwork, body_and_head, feature_count, mlp
from medfl.task import Task
from medfl.training.predict import logits
from medfl.types import SERVER, Tensors
from medfl.utils.rng import make_generator, seeded_generators
from medfl_methods.pfedcdp.refinement import draw_held_out_rows, train_head

ClassifierKind = Literal["proxy", "average", "random", "none"]
"""Kind of the server's classifier. ``proxy``: trained on public data; ``average``: mean of the sites' classifiers, with
their form; ``random``: keeps its initial values; ``none``: initialised, but not used. All kinds but
``average`` have two hidden layers."""

DROPOUT = (0.3, 0.2)
"""Dropout rates after the first and the second hidden layer of the classifier."""

HELD_OUT_FRACTION = 0.2
"""Number of held-out images of each class (at least one) as a fraction of the public images of the rarest class that
has more than one, see `held_out_rows`."""


def build_classifier(task: Task, network: str, kind: ClassifierKind) -> nn.Module:
    """Return an untrained classifier for the features of a network."""
    model = task.build(network)
    features = feature_count(model, network)
    if kind == "average":
        return copy.deepcopy(body_and_head(model)[1])
    return mlp(features, (2 * features, features), task.objective.outputs, dropout=DROPOUT)


def check_statistics(model: nn.Module, network: str, shared: list[str]) -> None:
    """Raise if the server does not receive the running statistics of a body.

    The server's classifier would then see other features than the sites' classifiers.

    Args:
        model: Network.
        network: Name of the network, for the message.
        shared: State-dict names of the tensors that the server receives.

    Raises:
        SettingsError: If `shared` lacks a running statistic.
    """
    missing = sorted(norm_names(model) & buffer_names(model) - set(shared))
    if missing:
        raise SettingsError(
            "incomplete_model",
            f"The server's classifier needs the running statistics of network '{network}' ({missing[:2]}), which do "
            "not leave the sites in this run. Set norm_sync to 'all', or use networks with group norm or no norm.",
            network=network,
            missing=missing[:2],
        )


def initial_classifier(task: Task, network: str, kind: ClassifierKind, seed: int) -> Tensors:
    """Return the initial tensors of the server's classifier. They depend only on seed, network and kind."""
    with seeded_generators(seed, "server classifier", network):
        made = build_classifier(task, network, kind).state_dict()
    return {name: tensor.detach().clone() for name, tensor in made.items()}


def assemble_teacher(
    task: Task, network: str, kind: ClassifierKind, body: Tensors, classifier: Tensors, seed: int
) -> SplitNetwork:
    """Return the teacher of a cluster: its body with the server's classifier, in evaluation mode, on the task's device.

    Args:
        task: Task that has the network.
        network: Name of the network.
        kind: Kind of the classifier.
        body: Tensors of the body, by their names in the network.
        classifier: Tensors of the classifier.
        seed: Seed of the run. Tensors that `body` lacks get their initial values.
    """
    model = task.load(task.initial(seed, network) | body, network)
    with torch.random.fork_rng(devices=[]):  # the constructor draws weights that are overwritten below
        head = build_classifier(task, network, kind)
    head.load_state_dict(classifier)
    return SplitNetwork(body_and_head(model)[0], head.to(task.device)).eval()


def train_classifier(server: Server, network: str, model: SplitNetwork, epochs: int) -> Tensors:
    """Train the classifier of `model` on public data in place, with the body frozen.

    Args:
        server: Server with the public data.
        network: Name of the network, which also names the random stream of the batches.
        model: Body and classifier from `assemble_teacher`.
        epochs: Epochs on the public images outside `held_out_rows`.

    Returns:
        Tensors of the classifier.
    """
    assert server.public is not None
    task = server.task
    features = logits(model.body, server.public, server.settings, task.device)
    known = torch.ones(len(features), dtype=torch.bool)
    known[held_out_rows(server)] = False
    data = TensorData(features[known], labels_of(server.public)[known])
    label, size = f"head/{network}", server.settings.batch_size
    with seeded_generators(
        server.settings.seed, SERVER, server.round, label
    ):  # makes dropout independent of earlier training
        train_head(model.head, data, epochs, size, 1e-3, server.rng(label), task.device)
    return {name: tensor.detach().cpu().clone() for name, tensor in model.head.state_dict().items()}


def held_out_rows(server: Server) -> torch.Tensor:
    """Return class-balanced rows of the public data, always the same, on which no server's classifier is trained.

    The Shapley values of the teachers are computed on these rows.
    """
    assert server.public is not None
    return draw_held_out_rows(
        labels_of(server.public), HELD_OUT_FRACTION, make_generator(server.settings.seed, SERVER, "held out")
    )
