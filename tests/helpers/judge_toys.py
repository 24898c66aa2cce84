"""What a judge needs: sites, a network in float64, the schedule of batches, and plain SGD.

A judge is a loop written from a paper, without medfl's methods and its training. It takes the data and the batches of a
run of medfl, and has to end, after three rounds, in the same numbers to 1e-6.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F

from medfl.objectives import Multiclass
from medfl.plugins import load_plugins
from medfl.task import Task
from medfl.testing.cohort import Case, make_sites
from medfl.utils.rng import make_generator

SEED, LR, BATCH, EPOCHS, ROUNDS = 7, 0.1, 4, 2, 3
SIZES = {"site-1": 12, "site-2": 10, "site-3": 7}  # no batch of one image, which batch norm would not take
SITES = make_sites(SIZES)
REGISTRY = load_plugins()


class Double(nn.Module):
    def forward(self, images):
        return images.double()


class Net(nn.Module):
    """A body of a linear layer and batch norm, and a linear head, all in float64."""

    def __init__(self, norm=True):
        super().__init__()
        layers = [
            Double(),
            nn.Flatten(),
            nn.Linear(36, 6),
            nn.BatchNorm1d(6) if norm else nn.Identity(),
            nn.Tanh(),
        ]  # the norm is body.3
        self.body = nn.Sequential(*layers).double()
        self.head = nn.Linear(6, 3).double()

    def forward(self, images):
        return self.head(self.body(images))


def task_of(momentum=0.0):
    return Task(
        {"net": Net},
        "net",
        nn.CrossEntropyLoss(),
        lambda parameters: torch.optim.SGD(parameters, lr=LR, momentum=momentum),
        Multiclass(3),
        ("accuracy",),
    )


def run(folder, name, args=None, momentum=0.0, **options):
    """Three rounds of a method of medfl on the sites."""
    options = {
        "task": task_of(momentum),
        "sites": SITES,
        "rounds": ROUNDS,
        "epochs": EPOCHS,
        "batch_size": BATCH,
    } | options
    return Case(REGISTRY, name, args or {}).run(folder, **options)


def start():
    """The initial model: parameters and buffers by name."""
    return task_of().initial(SEED)


def parameters():
    """The names of the trainable tensors."""
    return [name for name, _ in Net().named_parameters()]


def batches(site, round_, steps=None, phase=""):
    """Rows of each batch of a site in a round: permutations without end, cut after so many steps (or the epochs)."""
    generator, n = make_generator(SEED, site, round_, "batches" + phase), SIZES[site]
    rows = []
    while len(rows) < (EPOCHS * math.ceil(n / BATCH) if steps is None else steps):
        rows += torch.randperm(n, generator=generator).split(BATCH)
    return rows if steps is None else rows[:steps]


def plain_sgd(tensors, site, round_, momentum=0.0, term=lambda w: 0.0, part="", rows=None, extra=None):
    """SGD on the mean cross entropy plus a term, from a model; the model after it, buffers included.

    Args:
        tensors: Of the model.
        site: Whose images.
        round_: Whose batches.
        momentum: v <- momentum v + gradient, w <- w - LR v.
        term: Of the parameters by name.
        part: Prefix of the names that are trained; the rest is fixed and in evaluation mode.
        rows: Of each batch; those of the round otherwise.
        extra: A further term, of the features and logits of a batch, its images and its labels.
    """
    model = Net()
    model.load_state_dict(tensors)
    model.train()
    if part == "head":
        model.body.eval()
    w = {name: p for name, p in model.named_parameters() if name.startswith(part)}
    speed = {name: torch.zeros_like(p) for name, p in w.items()}
    for batch in batches(site, round_) if rows is None else rows:
        images, labels = SITES[site].train.batch(batch)
        features = model.body(images)
        logits = model.head(features)
        loss = F.cross_entropy(logits, labels) + term(w)
        if extra is not None:
            loss = loss + extra(features, logits, images, labels)
        grads = torch.autograd.grad(loss, list(w.values()))
        with torch.no_grad():
            for (name, p), grad in zip(w.items(), grads):
                speed[name] = momentum * speed[name] + grad
                p -= LR * speed[name]
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def frozen(tensors):
    """A model in evaluation mode, whose features and logits have no gradient."""
    model = Net()
    model.load_state_dict(tensors)
    return model.eval().requires_grad_(False)


def mean(models, weights):
    """The weighted mean of models; of counters of batches, which are no numbers to average, the largest."""
    total = sum(weights)
    return {
        name: sum(w * model[name] for w, model in zip(weights, models)) / total
        if tensor.is_floating_point()
        else max(model[name] for model in models)
        for name, tensor in models[0].items()
    }


def squared(left, right):
    """The squared distance of two models over the names of the first."""
    return sum((tensor - right[name]).square().sum() for name, tensor in left.items())


def agree(tensors, expected):
    """All tensors are equal to 1e-6."""
    assert tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(
            tensors[name], tensor, atol=1e-6, rtol=0, msg=lambda text, name=name: f"{name}: {text}"
        )
