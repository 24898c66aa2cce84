"""Tools of the reference implementations: a tiny federation in float64, its batches, and plain SGD.

A reference implementation is a loop written from a paper, without medfl's methods and training code. It trains the same
sites from the same initial tensors on the same batches as a run of medfl. After three rounds, both must have the same
numbers. All computation is in float64, so a difference of 1e-6 is a difference of the formulas.
"""

import torch
from torch import nn
from torch.nn import functional as F

from medfl.objectives import Multiclass
from medfl.plugins import load_plugins
from medfl.task import Task
from medfl.testing.cohort import CLASSES, Case, make_site
from medfl.utils.rng import make_generator

SEED, LR, BATCH, EPOCHS, ROUNDS = 7, 0.1, 5, 2, 3
LABELS = {
    "site-1": [0, 1, 2, 0, 1, 2, 2, 1, 0, 0, 1, 2, 2, 0, 1, 1, 0],
    "site-2": [0, 0, 1, 1, 0, 0, 1, 0, 1, 0, 0],
    "site-3": [2, 2, 1, 2, 2, 2],
}
"""Labels of three sites with 17, 11 and 6 images, in 4, 3 and 2 batches; site-2 lacks class 2, site-3 lacks class 0."""

SIZES = {site: len(labels) for site, labels in LABELS.items()}
SITES = {site: make_site(len(labels), site, torch.tensor(labels)) for site, labels in LABELS.items()}
REGISTRY = load_plugins()


class Double(nn.Module):
    def forward(self, images):
        return images.double()


class Linear(nn.Linear):
    """Linear layer in float64 that also accepts float32 features, which a method may store."""

    def forward(self, features):
        return super().forward(features.double())


class Net(nn.Module):
    """Network for images (B, 1, 6, 6): a body with a linear layer and, by default, batch norm, and a linear head."""

    def __init__(self, norm=True, width=6):
        super().__init__()
        layers = [
            Double(),
            nn.Flatten(),
            nn.Linear(36, width),
            nn.BatchNorm1d(width) if norm else nn.Identity(),
            nn.Tanh(),
        ]  # the norm is body.3
        self.body = nn.Sequential(*layers).double()
        self.head = Linear(width, CLASSES).double()

    def forward(self, images):
        return self.head(self.body(images))


def task_of(momentum=0.0, norm=True):
    """Return a task with three classes, the network with or without batch norm, and SGD."""
    return Task(
        {"net": lambda: Net(norm)},
        "net",
        nn.CrossEntropyLoss(),
        lambda parameters: torch.optim.SGD(parameters, lr=LR, momentum=momentum),
        Multiclass(CLASSES),
        ("accuracy",),
    )


def run_method(folder, name, args=None, momentum=0.0, norm=True, unavailable=None, **options):
    """Run three rounds of a method of medfl on the sites and return the result.

    Args:
        folder: Folder of the run.
        name: Name of the method.
        args: Settings of the method.
        momentum: Momentum of SGD.
        norm: Whether the network has batch norm.
        unavailable: Name of a site and a step in which it does not reply.
        options: Further options of `Case.run`.
    """
    options = {
        "task": task_of(momentum, norm),
        "sites": SITES,
        "seed": SEED,
        "rounds": ROUNDS,
        "epochs": EPOCHS,
        "batch_size": BATCH,
        "unavailable": lambda site, step: (site, step) == unavailable,
    } | options
    return Case(REGISTRY, name, args or {}).run(folder, **options)


def initial_model(norm=True):
    """Return the parameters and buffers of the initial model, by name."""
    return task_of(norm=norm).initial(SEED)


def parameter_names():
    """Return the names of the trainable tensors of the network with batch norm."""
    return [name for name, _ in Net().named_parameters()]


def network_from(tensors):
    """Return the network with the given tensors, in training mode."""
    model = Net(norm="body.3.weight" in tensors)
    model.load_state_dict(tensors)
    return model


def frozen_model(tensors):
    """Return a model in evaluation mode whose features and logits have no gradient."""
    return network_from(tensors).eval().requires_grad_(False)


def state_of(model):
    """Return copies of a model's parameters and buffers, by name."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def images_of(site):
    """Return all training images of a site and their classes."""
    return SITES[site].train.batch(torch.arange(SIZES[site]))


def batches(site, round_, epochs=EPOCHS, steps=None, phase="", norm=True):
    """Return the row indices of each batch of a site in a round: a permutation for each epoch.

    Args:
        site: Name of the site.
        round_: Number of the round, from 1.
        epochs: Number of epochs; ignored if `steps` is given.
        steps: Number of batches.
        phase: Name of the random stream of an additional training.
        norm: Whether the network has batch norm, which skips batches of one image.
    """
    generator = make_generator(SEED, site, round_, "batches" + phase)
    count = epochs * -(-SIZES[site] // BATCH) if steps is None else steps
    rows = []
    while len(rows) < count:
        rows += torch.randperm(SIZES[site], generator=generator).split(BATCH)
    return [batch for batch in rows[:count] if len(batch) > 1 or not norm]


def plain_sgd(tensors, site, round_, momentum=0.0, term=lambda w: 0.0, part="", rows=None, extra=None, ce=1.0):
    """Train by SGD on the mean cross entropy plus terms, and return the resulting model with its buffers.

    Args:
        tensors: Tensors of the initial model.
        site: Name of the site.
        round_: Number of the round, which selects the batches.
        momentum: Momentum: v <- momentum v + gradient, w <- w - LR v.
        term: Additional loss term, a function of the parameters by name.
        part: Prefix of the trained tensors; the other part is fixed and in evaluation mode.
        rows: Row indices of each batch; by default the batches of the round.
        extra: Additional loss term, a function of a batch's features, logits, images and labels.
        ce: Weight of the cross entropy.
    """
    model = network_from(tensors)
    if part == "head":
        model.body.eval()
    w = {name: p for name, p in model.named_parameters() if name.startswith(part)}
    speed = {name: torch.zeros_like(p) for name, p in w.items()}
    for batch in batches(site, round_, norm="body.3.weight" in tensors) if rows is None else rows:
        images, labels = SITES[site].train.batch(batch)
        features = model.body(images)
        logits = model.head(features)
        loss = ce * F.cross_entropy(logits, labels) + term(w)
        if extra is not None:
            loss = loss + extra(features, logits, images, labels)
        grads = torch.autograd.grad(loss, list(w.values()))
        with torch.no_grad():
            for (name, p), grad in zip(w.items(), grads):
                speed[name] = momentum * speed[name] + grad
                p -= LR * speed[name]
    return state_of(model)


def average_models(models, weights):
    """Return the weighted mean of models; for batch counters, which are integers, the largest value."""
    total = sum(weights)
    return {
        name: sum(w * model[name] for w, model in zip(weights, models)) / total
        if tensor.is_floating_point()
        else max(model[name] for model in models)
        for name, tensor in models[0].items()
    }


def squared_distance(left, right):
    """Return the squared distance of two models over the names of the first."""
    return sum((tensor - right[name]).square().sum() for name, tensor in left.items())


def assert_close(tensors, expected):
    """Assert that all tensors agree to 1e-6."""
    assert tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(
            tensors[name], tensor, atol=1e-6, rtol=0, msg=lambda text, name=name: f"{name}: {text}"
        )
