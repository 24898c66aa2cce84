"""Helpers for tests of FedSDC: quick runs, readers of a run folder, vote counts by hand, and a plain loop."""

from collections import Counter, OrderedDict

import torch
from pfedcdp_toys import mean_change, server_tensors
from torch import nn
from torch.nn import functional as F

from medfl.contract import Server, State
from medfl.plugins import load_plugins
from medfl.settings import Settings
from medfl.testing.cohort import CLASSES, Case, SmallNet, make_task
from medfl.utils.rng import make_generator, seeded_generators
from medfl.utils.wire import select

REGISTRY = load_plugins()
FEATURES = 24
"""Number of features of the small network's body."""

PLAIN = {"beta": 0.0, "diversity": False}
"""Neither momentum nor unlike heads."""


def run(folder, args=None, name="fedsdc", **options):
    """Run the tiny federation for two rounds, scored after the last one only."""
    return Case(REGISTRY, name, args or {}).run(folder, **({"rounds": 2, "evaluate_every": 9} | options))


def dealing_server(sites, **settings):
    """A server of sites that all have training and validation images, before anything was done."""
    names = [f"site-{number}" for number in range(sites)]
    facts = {name: {"trainable": True, "validates": True} for name in names}
    return Server(
        "server", 1, State(), make_task("plain"), Settings(rounds=9, **settings), sites=names, site_info=facts
    )


def body_at(folder):
    """The server's body."""
    return {name: tensor for name, tensor in server_tensors(folder).items() if not name.startswith("kept/")}


def heads_at(folder):
    """The server's heads, in their order."""
    tensors = select(server_tensors(folder), "kept/heads/")
    places = sorted({name.split("/")[0] for name in tensors}, key=int)
    return [select(tensors, place + "/") for place in places]


# ---- votes by hand


def vote(rows):
    """The class that wins: the most votes, then the largest sum, then the first. One row of probabilities a head."""
    chosen = Counter(max(range(len(row)), key=lambda c, row=row: (row[c], -c)) for row in rows)
    most = max(chosen.values())
    tied = [c for c in range(len(rows[0])) if chosen[c] == most]
    return max(tied, key=lambda c: (sum(row[c] for row in rows), -c))


def said_by(body, heads, images, norm=True):
    """Probabilities of the classes by each head on a body: shape (heads, n, classes), float64."""
    parts = []
    with torch.no_grad():
        for head in heads:
            model = network(body | {"head." + name: tensor for name, tensor in head.items()}, norm).eval()
            parts.append(model(images).double().softmax(1))
    return torch.stack(parts)


# ---- a run by hand


def network(tensors, norm):
    """The small network under a linear head or one of two layers, whichever the tensors are of."""
    model = SmallNet(norm)
    if "head.hidden.weight" in tensors:
        width = len(tensors["head.hidden.weight"])
        layers = {"hidden": nn.Linear(FEATURES, width), "dropout": nn.Dropout(0.2), "out": nn.Linear(width, CLASSES)}
        model.head = nn.Sequential(OrderedDict(layers))
    model.load_state_dict(tensors)
    return model.to(memory_format=torch.channels_last)


def trained(model, data, name, round_):
    """All tensors after an epoch of plain steps with momentum on the cross-entropy."""
    model.train()
    moved = list(model.parameters())
    optimizer = torch.optim.SGD(moved, 0.1, 0.9)
    norms = any(isinstance(part, nn.BatchNorm2d) for part in model.modules())
    order = torch.randperm(len(data), generator=make_generator(7, name, round_, "batches"))
    with seeded_generators(7, name, round_, "global"):  # dropout
        for rows in order.split(5):
            if len(rows) == 1 and norms:
                continue
            loss = F.cross_entropy(model(data.images[rows]), data.class_labels[rows])
            for parameter, gradient in zip(moved, torch.autograd.grad(loss, moved), strict=True):
                parameter.grad = gradient
            optimizer.step()
    return {key: t.detach().clone(memory_format=torch.contiguous_format) for key, t in model.state_dict().items()}


def plain_loop(sites, heads, held, beta, norm, missing=()):
    """A run of FedSDC.

    Args:
        sites: Name to splits.
        heads: The heads at first.
        held: Of each round, site to head.
        beta: Momentum.
        norm: Whether the network has batch norm.
        missing: (round, site) of replies that never come.

    Returns:
        Body, velocity, heads.
    """
    torch.set_num_threads(1)  # as a run does
    task = make_task("norm" if norm else "plain")
    body = {key: tensor for key, tensor in task.initial(7).items() if key.startswith("body")}
    parameters = {name for name, _ in SmallNet(norm).named_parameters() if name.startswith("body")}
    velocity = {name: torch.zeros_like(body[name]) for name in parameters}
    heads = list(heads)
    for round_, dealt in enumerate(held, start=1):
        ended = {}
        for name, slot in dealt.items():
            if (round_, name) not in missing:
                model = network(body | {"head." + key: tensor for key, tensor in heads[slot].items()}, norm)
                ended[name] = trained(model, sites[name].train, name, round_)
        sizes = {name: len(sites[name].train) for name in ended}
        new = mean_change(body, ended, sizes)
        for key in parameters:
            towards = sum((ended[n][key] - body[key]).double() * (sizes[n] / sum(sizes.values())) for n in ended)
            step = beta * velocity[key].double() + towards
            velocity[key], new[key] = step.float(), (body[key].double() + step).float()
        for name, after in ended.items():
            before = heads[dealt[name]]
            change = {key: after["head." + key] - tensor for key, tensor in before.items()}
            heads[dealt[name]] = {key: (before[key].double() + change[key].double()).float() for key in before}
        body = new
    return body, velocity, heads
