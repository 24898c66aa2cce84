"""Toy methods for tests of the machinery: one that uses every part of the contract, and ways to run and compare it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
from torch import nn

from medfl.contract import (
    Capability,
    Method,
    Model,
    PayloadKind,
    PeerMessage,
    Plan,
    Replies,
    Reply,
    Request,
    Server,
    Site,
)
from medfl.engine.runs.simulation import SimulationResult
from medfl.engine.store import Store
from medfl.plugins import Registry, load_plugins
from medfl.task import Task
from medfl.testing.cohort import Case, SmallNet, bits, make_sites, scores
from medfl.toolkit.averaging import Averaging
from medfl.types import Tensors
from medfl.utils import wire
from medfl.utils.metadata import PEER_MESSAGE, Count, MetaField, Text, list_of

SIZES = {"site-1": 7, "site-2": 5, "site-3": 6}
"""Three sites that train in a millisecond."""

PAIR = {"site-1": 7, "site-2": 5}
"""Two of them, where a test runs very often."""


class Ring(Averaging):
    """Each site posts its model to the next one, then trains from the mean of its own model and the model in its inbox.

    A round is `send`, `train` and, with `alone`, a step of the server alone. A site keeps its first model as a blob.
    """

    sends: ClassVar[Mapping[str, PayloadKind]] = {"model/": "weights"}
    sends_meta: ClassVar[Mapping[str, MetaField]] = {
        "senders": MetaField("public", list_of(Text, 8, shorter=True)),
        "first": MetaField("public", Count),
        "letter": MetaField("public", Text, after=(PEER_MESSAGE,)),
    }
    supports: ClassVar[frozenset[Capability]] = frozenset({Capability.PEER_MESSAGES})

    alone: bool = False
    to_self: bool = False
    backwards: bool = False
    quorum: int | None = None

    def setup(self, server: Server) -> None:
        server.state.meta = {"stage": "send", "missing": []}

    def plan(self, server: Server) -> Plan | None:
        if server.rounds_done >= server.settings.rounds:
            return None
        stage, names = server.state.meta["stage"], server.trainable()
        shift = 0 if self.to_self else -1 if self.backwards else 1
        requests = [
            Request(name, stage, {}, {"next": names[(index + shift) % len(names)]}) for index, name in enumerate(names)
        ]
        last = "count" if self.alone else "train"
        return Plan(server.round, [] if stage == "count" else requests, stage == last, self.quorum)

    def execute(self, site: Site, request: Request) -> Reply:
        own = self.own(site)
        if request.op == "send":
            tensors = {"model/" + name: tensor for name, tensor in own.items()}
            return Reply(peer_messages=[PeerMessage(request.meta["next"], tensors, {"letter": site.name})])
        if "first" not in site.state.blobs:
            site.keep_blob("first", own)
        start = {name: tensor.clone() for name, tensor in own.items()}
        for message in site.inbox:
            for name in start:
                start[name] = ((start[name] + message.tensors["model/" + name]) / 2).to(start[name].dtype)
        done = self.fit(site, start)
        site.state.tensors = done.after
        met = site.state.meta.setdefault("met", [])
        met.append([site.round, [message.sender for message in site.inbox]])
        meta = {
            "senders": [message.sender for message in site.inbox],
            "first": int(site.blob("first").keys() == own.keys()),
        }
        return Reply({}, meta, log=done.log, trained={"personal": Model(site.network, done.after)})

    def aggregate(self, server: Server, replies: Replies) -> None:
        following = {"send": "train", "train": "count" if self.alone else "send", "count": "send"}
        server.state.meta["missing"] += replies.missing
        server.state.meta.setdefault("senders", []).append({name: m.get("senders") for name, m in replies.meta.items()})
        server.state.meta["seen"] = sorted(name for _, tensors in replies for name in tensors)
        server.state.meta["stage"] = following[server.state.meta["stage"]]

    def publish(self, server: Server) -> Tensors:
        return {}

    def models(self, participant: Server | Site) -> dict[str, Model]:
        if isinstance(participant, Server):
            return {}
        return {"personal": Model(participant.network, self.own(participant))}

    def own(self, site: Site) -> Tensors:
        task: Task = site.task
        return site.state.tensors or task.initial(site.settings.seed, site.network, site.name)


class Toy(Case):
    """A method class of a test in the tiny federation; it need not be registered.

    Args:
        kind: The method's class.
        **args: Its settings.
    """

    def __init__(self, kind: type[Method], **args: Any) -> None:
        super().__init__(Registry(), kind.__name__.lower(), args, {"rounds": 2})
        self._kind = kind

    @property
    def kind(self) -> type[Method]:
        return self._kind

    def make_method(self) -> Method:
        return self._kind(**self.args)

    def run(self, folder: Path, **options: Any) -> Any:
        return super().run(folder, **({"sites": make_sites(SIZES)} | options))


class Headed(SmallNet):
    """The tiny network with another head."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head


class Forgetful(SmallNet):
    """The tiny network, whose body drops some features in training."""

    def __init__(self) -> None:
        super().__init__()
        self.body.append(nn.Dropout(0.3))


def metric_rows(folder: Path, **where: Any) -> pd.DataFrame:
    """Return the rows of metrics.csv with these values in their columns."""
    table = pd.read_csv(folder / "metrics.csv")
    for column, value in where.items():
        table = table[table[column] == value]
    return table


def builtin(name: str, **settings: Any) -> Case:
    """A registered method in the tiny federation, two rounds."""
    return Case(load_plugins(), name, {}, {"rounds": 2} | settings)


def snapshot(folder: Path) -> dict[str, Any]:
    """Return the values that two equal runs share: all newest states (tensors by digest, meta, blobs) and the rows."""
    facts: dict[str, Any] = {"rows": scores(folder)}
    for path in sorted((folder / "state").iterdir()):
        record = Store(path).latest()
        state = record.state() if record else None
        facts[path.name] = state and [wire.digest(state.tensors), state.meta, state.blobs]
    return facts


def digests(result: SimulationResult) -> dict[str, str]:
    """The models of all participants, by their hashes."""
    return {participant: wire.digest(tensors) for participant, tensors in bits(result).items()}


def leftovers(folder: Path) -> list[str]:
    """Temporary files that a run left behind."""
    return [str(path) for path in folder.rglob(".*.tmp")]
