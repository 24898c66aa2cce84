"""Helpers for tests of FedTPF and FedFed: quick runs, records of all messages, a scripted site and server."""

import csv
from dataclasses import dataclass, field

import torch

from medfl.contract import Reply, Request, Server, Site, State
from medfl.engine.store import Store
from medfl.plugins import load_plugins
from medfl.settings import Settings
from medfl.testing.cohort import Case, make_data, make_site, make_task
from medfl.utils.wire import select
from medfl_methods.fedfed.method import FedFed
from medfl_methods.fedtpf.method import FedTPF

REGISTRY = load_plugins()
TINY = {"width": 2, "distil_rounds": 1}
"""Settings of both methods under which a round takes a moment."""

DATA = make_data(40, "shared", torch.arange(40) % 7 // 3)
"""Images of the classes 0, 1 and 2, which are of unlike size."""


def tpf(**args):
    return FedTPF(**(TINY | args))


def fed(**args):
    return FedFed(**(TINY | args))


def with_scale(scale):
    task = make_task("plain")
    return type(task)(**{**vars(task), "scale": scale})


def run(folder, name="fedtpf", args=None, **options):
    """Two rounds in the tiny federation, scored after the last one only; unlike Case, the method can be a factory."""
    case = Case(REGISTRY, name, TINY | (args or {}) if name != "fedavg" else {})
    return case.run(folder, **({"rounds": 2, "evaluate_every": 9, "sites": small_sites()} | options))


def small_sites(**sizes):
    """Two sites of a batch and a half, unless others are asked for."""
    sizes = sizes or {"site-1": 7, "site-2": 6}
    return {name.replace("_", "-"): make_site(n, name) for name, n in sizes.items()}


def unlike_sites():
    """Three; the third has no validation images."""
    sites = small_sites(site_1=7, site_2=6, site_3=5)
    without_validation(sites["site-3"])
    return sites


def without_validation(splits):
    """The same site, but for its validation images."""
    splits.val = type(splits.val)(torch.empty(0, *splits.val.images.shape[1:]), torch.empty(0, dtype=torch.int64))
    return splits


def state_of(folder, name="server"):
    """The newest state of a participant."""
    return Store(folder / "state" / name).latest().state()


def distiller_at(folder):
    """The common generator and classifier at the server."""
    return select(state_of(folder).tensors, "kept/distiller/")


def shared_at(folder, name="server"):
    """The shared set as a participant holds it, or None."""
    blobs = state_of(folder, name).blobs
    if "shared/" not in blobs:
        return None
    return select(Store(folder / "state" / name).get(blobs["shared/"]), "shared/")


def rows(folder, metric):
    """(round, site) to the values of a metric at training, in their order."""
    values = {}
    with open(folder / "metrics.csv", newline="") as file:
        for row in csv.DictReader(file):
            if row["metric"] == metric:
                values.setdefault((int(row["round"]), row["site"]), []).append(float(row["value"]))
    return values


# ---- records of a run


@dataclass
class Work:
    """Record of a request to a site and of the site's reply."""

    site: str
    round: int
    op: str
    received: dict
    request_meta: dict
    sent: dict
    meta: dict
    peer_messages: int
    kept: set
    """Names in the site's state afterwards."""


@dataclass
class Fold:
    """A fold: its step and the next one, the server's state before and after."""

    round: int
    stage: str
    following: str
    before: dict
    after: dict
    meta: dict


class Log:
    """All messages of a run and all states of its server."""

    def __init__(self):
        self.work: list[Work] = []
        self.folds: list[Fold] = []

    def of(self, op, round_=None):
        """Site to its work of that kind, in a round; sorted."""
        by_site = {work.site: work for work in self.work if work.op == op and round_ in (None, work.round)}
        return dict(sorted(by_site.items()))


def recorded(log, kind, **args):
    """A factory of a method that writes into `log`; it keeps nothing itself."""

    class Recorded(kind):
        def execute(self, site, request):
            received, meta = _copy(request.tensors), dict(request.meta)
            reply = super().execute(site, request)
            facts = (
                received,
                meta,
                _copy(reply.tensors),
                dict(reply.meta),
                len(reply.peer_messages),
                set(site.state.tensors),
            )
            log.work.append(Work(site.name, site.round, request.op, *facts))
            return reply

        def aggregate(self, server, replies):
            stage, before = self.current_step(server).name, _copy(server.state.tensors)
            super().aggregate(server, replies)
            after, following = _copy(server.state.tensors), self.current_step(server).name
            log.folds.append(Fold(server.round, stage, following, before, after, dict(server.state.meta)))

    return lambda: Recorded(**(TINY | args))


def _copy(tensors):
    return {name: tensor.clone() for name, tensor in tensors.items()}


def nothing_learned(site: Site, request: Request) -> Reply:
    """Updates of zeros of the task's network."""
    updates = {name: torch.zeros_like(tensor) for name, tensor in request.tensors.items() if name.startswith("model/")}
    return Reply(updates, {"size": len(site.train)})


class Scripted(FedTPF):
    """Sites train nothing: updates are noise, accuracies and freezing are as `SCRIPT` and `STOPS` say."""

    def distil(self, site, request):
        received, drawn = select(request.tensors, "distiller/"), site.rng("scripted")
        update = {
            f"distiller/{name}": 0.1 * torch.randn(tensor.shape, generator=drawn)
            if tensor.is_floating_point()
            else torch.ones_like(tensor)
            for name, tensor in received.items()
        }
        frozen = bool(received) and site.round >= STOPS.get(site.name, 99)
        update |= nothing_learned(site, request).tensors
        return Reply(update, {"size": len(site.train), "frozen": frozen})

    def train_task(self, site, request):
        return nothing_learned(site, request)

    def execute(self, site, request):
        if request.op == "assess":
            return Reply(meta={"accuracy": SCRIPT[site.name][site.round - 1], "patients": 50})
        return super().execute(site, request)


STOPS = {"site-1": 2, "site-2": 4}
"""Maps each scripted site to the round from which it freezes on request."""

SCRIPT = {
    "site-1": [0.10, 0.20, 0.26, 0.50, 0.45, 0.60, 0.62],
    "site-2": [0.30, 0.31, 0.50, 0.40, 0.80, 0.70, 0.71],
    "site-3": [0.20, 0.23, 0.24, 0.44, 0.30, 0.33, 0.37],
    "site-4": [0.40, 0.50, 0.55, 0.50, 0.60, 0.85, 0.86],
}
"""Accuracies of the scripted sites, round by round."""


def weighted_mean(parts, weights):
    """Name to weighted mean of several sets of tensors, float64."""
    total = sum(weights.values())
    return {
        key: sum(parts[name][key].double() * (weights[name] / total) for name in parts)
        for key, tensor in next(iter(parts.values())).items()
        if tensor.is_floating_point()
    }


# ---- a site and a server by hand


@dataclass
class Told:
    """Replies in memory."""

    tensors: dict
    meta: dict
    missing: list = field(default_factory=list)

    def __iter__(self):
        return iter((name, dict(self.tensors[name])) for name in sorted(self.tensors))

    def __len__(self):
        return len(self.tensors)


def told(replies, missing=()):
    """Return the server's replies by site."""
    tensors, meta = ({name: getattr(reply, part) for name, reply in replies.items()} for part in ("tensors", "meta"))
    return Told(tensors, meta, list(missing))


def federate(make_method, folder, sites, rounds, **settings):
    """A run without carrier and disk; yields the server after each step."""
    names = sorted(sites)
    server = server_of(make_method(), folder / "server", names, rounds=rounds, **settings)
    there = {name: site_of(sites[name].train, name=name, rounds=rounds, **settings) for name in names}
    for name, site in there.items():
        site.val, site.blobs = sites[name].val, Store(folder / name)
        server.site_info[name]["validates"] = len(site.val) > 0
    while True:
        server.round = server.rounds_done + 1
        plan = make_method().plan(server)
        if plan is None:
            return
        replies = {}
        for request in plan.requests:
            there[request.to].round = server.round
            replies[request.to] = make_method().execute(there[request.to], request)
        make_method().aggregate(server, told(replies))
        server.rounds_done += plan.ends_round
        yield server


def site_of(data, task=None, name="site-1", secret=b"a secret of 16 b", run_id="run", round_=3, **settings):
    """A site before its first step; `data` is its training data."""
    settings = Settings(**({"rounds": 9, "batch_size": 5, "seed": 7} | settings))
    site = Site(name, round_, State(), task or make_task("plain"), settings, secret=secret, run_id=run_id)
    site.train, site.val = data, make_data(6, "validation")
    return site


def server_of(method, folder, names=("site-1", "site-2"), task=None, **settings):
    """A server after the method's setup."""
    facts = {name: {"trainable": True, "validates": True} for name in names}
    settings = Settings(**({"rounds": 9, "batch_size": 5, "seed": 7} | settings))
    store = Store(folder)
    server = Server("server", 0, State(), task or make_task("plain"), settings, store, sites=[*names], site_info=facts)
    method.setup(server)
    server.round = 1
    return server


def sent_by(method, site, server):
    """Compute by hand the images that a site shares, and the rest of each before clip and noise."""
    reply = method.execute(site, Request(site.name, "share", method.distiller(server)))
    return select(reply.tensors, "shared/"), parts_of(method, site, server)


def parts_of(method, site, server):
    """x - q(x) of all training images of a site, with the generator in evaluation mode."""
    model = (
        method.with_distiller_network(site.task)
        .load(select(server.state.tensors, "kept/distiller/"), "distiller")
        .eval()
    )
    raw = site.task.scale.to_images(site.train.images)
    with torch.no_grad():
        return raw - model.generator(raw).images
