"""The server's own classifier for the body of a cluster, trained on public data.

Source: PFedCDP names "the server's own powerful classification layer" and does not say how it is learned; the widths
are those of its released code, twice and once the number of features.
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
from medfl.networks.parts import Split, body_and_head, features_of, mlp
from medfl.task import Task
from medfl.training.predict import logits
from medfl.types import SERVER, Tensors
from medfl.utils.rng import make_generator, pinned
from medfl_methods.pfedcdp.refinement import held_out, train_head

ClassifierKind = Literal["proxy", "average", "random", "none"]
"""``average`` is like the sites' own classifiers; the others have two hidden layers."""

DROPOUT = (0.3, 0.2)
HELD_OUT = 0.2  # share of the rarest class's public images that no classifier sees, and teachers are weighed by


def make(task: Task, network: str, kind: ClassifierKind) -> nn.Module:
    """An untrained classifier for the features of a network."""
    model = task.build(network)
    features = features_of(model, network)
    if kind == "average":
        return copy.deepcopy(body_and_head(model)[1])
    return mlp(features, (2 * features, features), task.objective.outputs, dropout=DROPOUT)


def check_statistics(model: nn.Module, network: str, shared: list[str]) -> None:
    """Refuse a body whose running statistics the server does not get: its classifier would see other features.

    Args:
        model: The network.
        network: Its name, for the message.
        shared: State-dict names that the server gets.

    Raises:
        SettingsError: If it has any.
    """
    missing = sorted(norm_names(model) & buffer_names(model) - set(shared))
    if missing:
        raise SettingsError(
            "incomplete_model",
            f"The server's classifier needs the running statistics of network '{network}' ({missing[:2]}), which stay "
            "at the sites here. Set norm_sync to 'all', or use networks with group norm or none.",
            network=network,
            missing=missing[:2],
        )


def first(task: Task, network: str, kind: ClassifierKind, seed: int) -> Tensors:
    """Its initial tensors: a function of seed and network."""
    with pinned(seed, "server classifier", network):
        made = make(task, network, kind).state_dict()
    return {name: tensor.detach().clone() for name, tensor in made.items()}


def assemble(task: Task, network: str, kind: ClassifierKind, body: Tensors, classifier: Tensors, seed: int) -> Split:
    """A cluster's body with the server's classifier, in evaluation mode, on the task's device.

    Args:
        task: Has the network.
        network: Its name.
        kind: Of the classifier.
        body: The body's tensors, by their names in the network.
        classifier: Tensors of `make`.
        seed: The run's; what `body` lacks is initial.
    """
    model = task.load(task.initial(seed, network) | body, network)
    with torch.random.fork_rng(devices=[]):  # a constructor draws numbers that are overwritten here
        head = make(task, network, kind)
    head.load_state_dict(classifier)
    return Split(body_and_head(model)[0], head.to(task.device)).eval()


def learn(server: Server, network: str, model: Split, epochs: int) -> Tensors:
    """Train the classifier of `model` on public data, with the body as it is.

    Args:
        server: Has the public data.
        network: Names the stream of the batches.
        model: From `assemble`; its head is trained in place.
        epochs: Passes over the public images, but for those of `weighing_rows`.

    Returns:
        Tensors of the classifier.
    """
    assert server.public is not None
    task = server.task
    features = logits(model.body, server.public, server.settings, task.device)
    known = torch.ones(len(features), dtype=torch.bool)
    known[weighing_rows(server)] = False
    data = TensorData(features[known], labels_of(server.public)[known])
    label, size = f"head/{network}", server.settings.batch_size
    with pinned(server.settings.seed, SERVER, server.round, label):  # dropout, whoever else is trained before
        train_head(model.head, data, epochs, size, 1e-3, server.rng(label), task.device)
    return {name: tensor.detach().cpu().clone() for name, tensor in model.head.state_dict().items()}


def weighing_rows(server: Server) -> torch.Tensor:
    """Class-balanced rows of the public data on which no classifier is trained, the same in every round."""
    assert server.public is not None
    return held_out(labels_of(server.public), HELD_OUT, make_generator(server.settings.seed, SERVER, "held out"))
