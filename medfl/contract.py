"""The contract between a method and a carrier. Read this file first.

A **method** says what is computed: which orders the server plans, what a site does with one, how the server folds the
replies. A **carrier** moves the messages: `local` within this process and its forks, `flare` across machines. A method
never sees a carrier, and a carrier never sees inside a method.

One exchange is a **step**: plan, work at each ordered site, fold. A round of a paper is one or more steps.

Promises that a method makes (`medfl.testing.check_method` checks each):

* Nothing lives on the method object. All that outlives a step is in `holder.state`, so every method resumes for free.
* `work` changes nothing but `site.state` and returns what it sends. Asked again, the site answers from disk.
* Random numbers come from `holder.rng(label)`, which depends on (seed, name, round, label) and on nothing else, or from
  torch's global generator, which is pinned in the same way before each step.
* Only tensors whose name begins with a prefix in `sends`, and only declared meta keys, leave a site.
* `fold` can use whatever `sends_meta` and `check_tensors` let through: a site that is not honest ends no run.

This module imports torch and the smallest modules of the package, so that a method author can read it on its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import torch
from torch import nn

from medfl.hooks import Capability
from medfl.types import Dataset, Meta, Tensors
from medfl.utils.metadata import MetaField
from medfl.utils.rng import SecretStream, make_generator

if TYPE_CHECKING:
    from medfl.settings import Settings
    from medfl.task import Task


PayloadKind = Literal["update", "weights", "statistic", "samples"]
"""What a tensor that leaves a site is. Clipping, noise and compression apply to ``update`` only."""


Need = Literal[
    "class_labels",
    "class_logits",
    "soft_targets",
    "features",
    "head",
    "linear_head",
    "images_of_one_shape",
    "public_data",
    "pooled_data",
]
"""Requirement of a method; `medfl.engine.needs` describes when a task or a run meets it."""


@dataclass
class Request:
    """Server to site: do `op` with these tensors."""

    to: str
    op: str
    tensors: Tensors = field(default_factory=dict)
    meta: Meta = field(default_factory=dict)


@dataclass
class PeerMessage:
    """Site to site. It waits at its receiver until the receiver's next step is saved; the server never holds it."""

    to: str
    tensors: Tensors
    meta: Meta = field(default_factory=dict)
    sender: str = ""


@dataclass
class Model:
    """Enough to rebuild a predictor anywhere: the network's name in the task, its tensors, and facts about it.

    The facts are the method's own: `Method.predictor` and `Method.network_config` read them.
    """

    network: str
    tensors: Tensors
    meta: Meta = field(default_factory=dict)


@dataclass
class Findings:
    """What a method found out at the server that people may want to look at. Nothing hangs on it.

    Attributes:
        meta: JSON facts.
        tensors: Pictures and maps, made of nobody's private images.
    """

    meta: Meta = field(default_factory=dict)
    tensors: Tensors = field(default_factory=dict)


@dataclass
class Reply:
    """Site to server: tensors and meta for the server, and parcels for other sites.

    Attributes:
        tensors: Named as the method's `sends` declares.
        meta: Keys as the method's `sends_meta` declares.
        parcels: For other sites; the server gets neither their tensors nor their meta.
        log: Numbers for the metrics file, such as the training loss. Scores only, never data.
        trained: The models right after local training, by names as in `Method.models`, for the core to score at the
            moment ``trained``; a single one is ``personal``. They stay here.
    """

    tensors: Tensors = field(default_factory=dict)
    meta: Meta = field(default_factory=dict)
    peer_messages: list[PeerMessage] = field(default_factory=list)
    log: dict[str, float] = field(default_factory=dict)
    trained: dict[str, Model] = field(default_factory=dict)


@dataclass
class State:
    """All that outlives a step at one participant.

    Attributes:
        tensors: Saved with every step.
        meta: JSON, saved with every step.
        blobs: Name to SHA-256 of a large constant, written once by `Participant.keep_blob`.
    """

    tensors: Tensors = field(default_factory=dict)
    meta: Meta = field(default_factory=dict)
    blobs: dict[str, str] = field(default_factory=dict)


@dataclass
class Plan:
    """The next step.

    Attributes:
        round: The round it belongs to, counted from 1.
        orders: One at most for each site; none makes this a step of the server alone.
        ends_round: Whether the round is over after this step; then it is evaluated when that is due.
        quorum: How many replies are needed to go on; None means all of them.
        folds: Whether `Method.aggregate` makes anything of the replies. Without, sites work for themselves and send nothing.
    """

    round: int
    requests: list[Request]
    ends_round: bool = True
    quorum: int | None = None
    aggregates: bool = True


@dataclass(frozen=True)
class ReducesTo:
    """A case in which a method is another one. It stands in the docstring, warns at run time, and is tested bitwise.

    Attributes:
        args: Settings of the method that lead there, for example ``{"mu": 0.0}``.
        equals: Name of the method that it becomes.
        equals_args: That method's settings.
        equals_settings: Settings of the run under which the other method is the same.
        only_without_norms: Whether it holds only for networks without batch-norm layers.
    """

    equals: str
    args: Meta = field(default_factory=dict)
    equals_args: Meta = field(default_factory=dict)
    equals_settings: Meta = field(default_factory=dict)
    only_without_norms: bool = False


class Blobs(Protocol):
    """Where a participant keeps large constants."""

    def put(self, tensors: Tensors) -> str:
        """Write once; returns the SHA-256."""
        ...

    def get(self, digest: str) -> Tensors:
        """Read by SHA-256."""
        ...


@dataclass
class Participant:
    """What a method sees of a participant. There is one for the server and one for each site.

    Attributes:
        name: Its name.
        round: The round of the current step, from 1; 0 in `setup`.
        state: All that outlives the step. Change it freely; it is saved when the step is.
        task: Networks by name, loss, optimiser, metrics.
        settings: The settings of the run.
    """

    name: str
    round: int
    state: State
    task: Task
    settings: Settings
    blobs: Blobs | None = None

    def rng(self, label: str) -> torch.Generator:
        """A generator that depends on (run seed, name, round, label) only: not on the step, the method or the past."""
        return make_generator(self.settings.seed, self.name, self.round, label)

    def network_of(self, site: str) -> str:
        """The network that a site trains: its own by ``settings.networks_by_site``, otherwise the task's default."""
        return self.settings.networks_by_site.get(site, self.task.network)

    def keep_blob(self, name: str, tensors: Tensors) -> None:
        """Write a large constant once; later steps name it by hash instead of saving it again."""
        if self.blobs is None:
            raise RuntimeError("this holder has no blob store")
        self.state.blobs[name] = self.blobs.put(tensors)

    def blob(self, name: str) -> Tensors:
        """Read a constant written by `keep_blob`."""
        if self.blobs is None:
            raise RuntimeError("this holder has no blob store")
        return self.blobs.get(self.state.blobs[name])


@dataclass
class Server(Participant):
    """The server's side.

    Attributes:
        sites: Names, sorted as strings.
        facts: What each site told about itself at the start, as far as its policy allows: ``trainable`` and
            ``validates``, whether it has training and validation images, always; ``size`` and ``label_counts`` when
            shared.
        rounds_done: How many rounds are over.
        public: Public data, if the run has any; no site sees them.
        watch: In `Method.aggregate`, where the run's ``moments`` ask for ``epochs``: hands the core a model that is trained
            here, with the number of its epoch from 1, to be scored on the server's test sets. Nothing comes back.
    """

    sites: list[str] = field(default_factory=list)
    site_info: dict[str, Meta] = field(default_factory=dict)
    rounds_done: int = 0
    public: Dataset | None = None
    score_epoch: Callable[[Model, int], None] | None = None

    def shared_rng(self, label: str) -> torch.Generator:
        """A generator keyed by (run seed, label, round) for what all methods share, such as who takes part (G-3)."""
        return make_generator(self.settings.seed, label, self.round)

    def trainable(self) -> list[str]:
        """Sites that have training data, sorted (G-11)."""
        return [name for name in self.sites if self.site_info.get(name, {}).get("trainable", True)]

    def networks(self) -> list[str]:
        """Names of the networks that sites train, sorted; the task's own where there are no sites."""
        return sorted({self.network_of(name) for name in self.sites} or {self.task.network})


@dataclass
class Site(Participant):
    """A site's side. Its test data are not here: a method can't reach them.

    Attributes:
        inbox: Parcels that arrived since this site's last step, sorted by sender.
        train: Training data.
        val: Validation data, possibly empty.
        published: In evaluation and installation only: what the server published (`Method.publish`).
    """

    train: Dataset = None  # type: ignore[assignment]
    val: Dataset | None = None
    inbox: list[PeerMessage] = field(default_factory=list)
    published: Tensors = field(default_factory=dict)
    secret: bytes = b""
    run_id: str = ""

    @property
    def network(self) -> str:
        """The network this site trains."""
        return self.network_of(self.name)

    def secret_rng(self, label: str, payload: str) -> SecretStream:
        """Randomness that nobody else can predict, for privacy noise.

        Args:
            label: What it is for.
            payload: A hash of what will be noised, so that two payloads never share their noise.

        Returns:
            A stream keyed by (site secret; run id, round, label, payload).
        """
        return SecretStream(self.secret, self.run_id, self.round, label, payload)


class Replies(Protocol):
    """The replies of a step, sorted by site. It may be iterated twice; tensors are read one reply at a time."""

    meta: dict[str, Meta]
    missing: list[str]

    def __iter__(self) -> Iterator[tuple[str, Tensors]]: ...

    def __len__(self) -> int: ...


class Filter(Protocol):
    """What a method does to tensors on their way out of a site, and undoes where they arrive: it sends fewer bytes.

    At a site a filter takes all tensors of one kind of a reply at once, after the checks and before clip, noise and
    bits; where they arrive it is undone before `Method.aggregate`. It is pure and keeps no state. It may lose what it can't
    send, as a lower precision does.

    Under privacy with the unit ``site`` clip and noise are of the encoded numbers, so the sensitivity that noise is
    reckoned with is that of clipped encoded tensors, and decoding is post-processing: the guarantee is the same one.
    It holds only if nothing but these numbers hangs on the data. A filter whose meta, names, shapes or dtypes do, or
    that sends whole numbers, such as the places of the largest entries, is refused there. With the unit ``sample`` the
    noise is in the training, and all that a filter does comes after it.
    """

    @property
    def kinds(self) -> Collection[PayloadKind]:
        """Which kinds of tensors it takes, out of those that the method sends; all others pass it by."""
        ...

    def encode(self, tensors: Tensors, rng: torch.Generator) -> tuple[Tensors, Meta]:
        """What leaves in place of the tensors.

        Args:
            tensors: Of one kind, at least one, by name; finite.
            rng: For whatever it draws; an order that is carried out again draws the same.

        Returns:
            Finite tensors under any names with prefixes of this kind, and JSON for `decode`.
        """
        ...

    def decode(self, tensors: Tensors, meta: Meta) -> Tensors:
        """The tensors again, of the names, shapes and dtypes that `encode` was given.

        Args:
            tensors: As `encode` gave them, but for noise and rounding.
            meta: As `encode` gave it. Both come from another machine: what raises here counts that site as missing, so
                an index or a size that can't be right should raise rather than take memory.
        """
        ...


class Method(Protocol):
    """A federated algorithm. Most are a few lines on `medfl.toolkit.averaging.Averaging`."""

    sends: ClassVar[Mapping[str, PayloadKind]]
    """Name prefix to kind. A tensor that leaves a site under any other name is refused there."""

    sends_meta: ClassVar[Mapping[str, MetaField]]
    """Meta keys that a reply or a parcel may carry: of which type, shape and range, and whether they may leave."""

    supports: ClassVar[frozenset[Capability]]
    """Capabilities. Some may depend on the settings: see `active_supports`. Each class declares its own set."""

    needs: ClassVar[frozenset[Need]]
    """Requirements with its default settings. Other settings may need more or less: see `active_needs`."""

    reduces_to: ClassVar[tuple[ReducesTo, ...]]
    """Declared limit cases."""

    presets: ClassVar[Mapping[str, Meta]]
    """Name to settings of the method that are given together, for example those of its paper."""

    preset_settings: ClassVar[Mapping[str, Meta]]
    """Preset to the settings of runs that it belongs to. A method can't set them, so a run with others is warned."""

    @property
    def active_supports(self) -> frozenset[Capability]:
        """Capabilities with the method's settings, a subset of `supports`."""
        ...

    @property
    def active_needs(self) -> frozenset[Need]:
        """What it needs of a task with the settings that it has; a run without it is refused before anything begins."""
        ...

    @property
    def gradient_clip(self) -> float | None:
        """Largest L2 norm of a batch's gradient in a site's training, > 0; None if gradients are not clipped."""
        ...

    def setup(self, server: Server) -> None:
        """Once, before the first step."""
        ...

    def plan(self, server: Server) -> Plan | None:
        """The next step, or None when the method is finished."""
        ...

    def execute(self, site: Site, request: Request) -> Reply:
        """What a site does with an order; dispatches on ``order.op``."""
        ...

    def check_tensors(self, task: Task, request: Request, tensors: Tensors) -> None:
        """Called at the site and again at the server, before `fold`: refuse a reply that `fold` could not use.

        Args:
            task: The learning problem.
            order: As the server sent it.
            tensors: Of the reply, finite; their names begin with prefixes in `sends`.

        Raises:
            RefusedError: If names, shapes or dtypes are not what `fold` expects. The site counts as missing.
        """
        ...

    def filters(self) -> tuple[Filter, ...]:
        """What is done to the tensors of replies on their way, in this order; undone in reverse. Most have none."""
        ...

    def aggregate(self, server: Server, replies: Replies) -> None:
        """Take the replies of the step into the server's state."""
        ...

    def publish(self, server: Server) -> Tensors:
        """What every site needs from the server to be evaluated and to take its model home."""
        ...

    def findings(self, server: Server) -> Findings:
        """What to show of the run in the end, beside its scores; most methods have nothing."""
        ...

    def models(self, participant: Participant) -> dict[str, Model]:
        """Return the models by kind: ``global`` at the server; ``personal``, ``global`` or both at a site."""
        ...

    def model_dump(self, *, mode: str = "python") -> Meta:
        """The method's settings by name, as every pydantic model gives them."""
        ...

    def task_of(self, task: Task) -> Task:
        """The task with the method's own networks or heads in place of the run's; most methods leave it as it is.

        Pure: it depends on the method's settings alone. Wherever a method gets a task, in a holder, in `check_tensors`
        or in `predictor`, it is one that this has made.
        """
        ...

    def network_config(self, model: Model, network_def: Any) -> Any:
        """What a bundle that takes a model home builds, if the run's own network is not it.

        Args:
            model: One of `models`.
            network_def: What builds the run's network of this name, JSON as in MONAI's configurations.

        Returns:
            The same for a network that takes `Model.tensors`, with the same logits as `predictor`. Most methods return
            `network_def`.
        """
        ...

    def predictor(self, task: Task, models: list[Model]) -> nn.Module:
        """A network whose outputs are as the task's objective says. Pure: it also runs elsewhere, without the run."""
        ...
