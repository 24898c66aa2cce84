"""Helpers for tests of PFedCDP: settings for quick runs, readers of a run folder, and a plain loop of a round."""

import math

import torch
from torch.nn import functional as F

from medfl.engine.store import Store
from medfl.plugins import load_plugins
from medfl.testing.cohort import Case, make_data, make_task
from medfl.utils.rng import make_generator
from medfl.utils.wire import select

REGISTRY = load_plugins()
NAMES = ["site-1", "site-2", "site-3"]
SIZES = {"site-1": 21, "site-2": 13, "site-3": 8}
PUBLIC = make_data(12, "public")
"""The public data of the tiny federation."""

SHORT = {"epochs": 1, "probe_epochs": 1}
"""The student's training where it is not looked at."""

QUICK = {"server_epochs": 1, "refine": None}


def run(folder, args=None, **options):
    """Run the tiny federation, scored after its last round only, because no model depends on scores."""
    return Case(REGISTRY, "pfedcdp", QUICK | (args or {})).run(folder, **({"evaluate_every": 9} | options))


def server_tensors(folder):
    """The newest state of the server."""
    return Store(folder / "state" / "server").latest().state().tensors


def bodies(folder, network="norm"):
    """A cluster's body at the server, by its names in the network."""
    return select(server_tensors(folder), f"cluster/{network}/model/")


def classifier(folder, network="norm"):
    """The server's classifier for a cluster."""
    return select(server_tensors(folder), f"cluster/{network}/teacher/")


def personal(result, site):
    """A site's own model."""
    return result.models[site]["personal"].tensors


def sent(folder, site, step):
    """The names of the tensors that left a site."""
    return sorted(Store(folder / "state" / site).read(step, "reply/"))


# ---- one round at a site, by hand


def build(kind, tensors):
    """A network in the layout that runs train it in."""
    model = kind()
    model.load_state_dict(tensors)
    return model.to(memory_format=torch.channels_last)


def largest(model, names, data, rows, share):
    """The mask of the share of coordinates with the largest mean squared gradient over single images."""
    model.eval()
    parts = [dict(model.named_parameters())[name] for name in names]
    sums = [torch.zeros_like(part) for part in parts]
    for x, y in zip(data.images[rows], data.class_labels[rows], strict=True):
        for total, gradient in zip(sums, torch.autograd.grad(F.cross_entropy(model(x[None]), y[None]), parts)):
            total += gradient**2
    values = torch.cat([total.flatten() for total in sums])
    least = values.sort(descending=True).values[: math.ceil(share * len(values))].min()
    return {name: total >= least for name, total in zip(names, sums)}


def descend(model, data, teacher, lam, tau, generator, epochs, whole):
    """Plain gradient steps with momentum on (1 - lam) CE + lam tau^2 KL, of the whole model or its head alone."""
    moved = list((model if whole else model.head).parameters())
    optimizer = torch.optim.SGD(moved, 0.1, 0.9)
    model.train()
    if not whole:
        for part in model.modules():
            if isinstance(part, torch.nn.BatchNorm2d):
                part.eval()
    norms = any(isinstance(part, torch.nn.BatchNorm2d) for part in model.modules())
    for _ in range(epochs):
        for rows in torch.randperm(len(data), generator=generator).split(5):
            if len(rows) == 1 and norms and whole:
                continue
            z = model(data.images[rows])
            loss = F.cross_entropy(z, data.class_labels[rows])
            if teacher is not None:
                aim = (teacher(data.images[rows]).detach() / tau).softmax(1)
                kl = (aim * (aim.log() - (z / tau).log_softmax(1))).sum(1).mean()
                loss = (1 - lam) * loss + lam * tau**2 * kl
            for parameter, gradient in zip(moved, torch.autograd.grad(loss, moved), strict=True):
                parameter.grad = gradient
            optimizer.step()


def plain_loop(sites, networks, rounds, epochs=(1, 0), share=0.0, lam=0.0, tau=3.0, heads=None):
    """All of a run but the server's classifiers, which stay as `heads` gives them.

    Args:
        sites: Name to splits.
        networks: Site to network.
        rounds: Rounds.
        epochs: Of the whole model, and of the head alone.
        share: Of the body's coordinates that stay personal.
        lam: Weight of the distillation.
        tau: Its temperature.
        heads: Network to the server's classifier, in evaluation mode.

    Returns:
        Network to body, and site to model.
    """
    torch.set_num_threads(1)  # as a run does
    task = make_task()
    first = {name: task.initial(7, network) for name, network in networks.items()}
    body = {
        network: {k: v for k, v in task.initial(7, network).items() if k.startswith("body")}
        for network in networks.values()
    }
    own = {}
    for round_ in range(1, rounds + 1):
        ended = {}
        for name, data in sites.items():
            network = networks[name]
            kind, received = task.networks[network], body[network]
            start = (own.get(name) or first[name]) | received
            if name in own and share:
                rows = torch.randperm(len(data.train), generator=make_generator(7, name, round_, "fisher"))
                names = [key for key, _ in kind().named_parameters() if key.startswith("body")]
                mine = largest(build(kind, own[name]), names, data.train, rows, share)
                start |= {key: torch.where(mine[key], own[name][key], received[key]) for key in names}
            teacher = None
            if lam:
                features, head = build(kind, first[name] | received).eval().body, heads[network]
                teacher = lambda images, f=features, h=head: h(f(images))  # noqa: E731
            model = build(kind, start)
            for label, count, whole in (("batches", epochs[0], True), ("batcheshead", epochs[1], False)):
                generator = make_generator(7, name, round_, label)
                descend(model, data.train, teacher, lam, tau, generator, count, whole)
            ended[name] = {
                key: t.detach().clone(memory_format=torch.contiguous_format) for key, t in model.state_dict().items()
            }
        for network, before in body.items():
            members = [name for name in sorted(sites) if networks[name] == network]
            body[network] = mean_change(
                before, {n: ended[n] for n in members}, {n: len(sites[n].train) for n in members}
            )
        own = ended
    return body, own


def mean_change(before, after, sizes):
    """A body plus the mean change by size, in float64; counters take the largest."""
    total = sum(sizes.values())
    new = {}
    for key, old in before.items():
        changes = {name: model[key] - old for name, model in after.items()}
        if old.is_floating_point():
            new[key] = (old.double() + sum(changes[n].double() * (sizes[n] / total) for n in changes)).float()
        else:
            new[key] = old + max(changes.values())
    return new
