"""The interfaces between a method, the engine and a backend. Read this file first.

A `Method` is a federated algorithm: it plans requests, computes replies at sites, and aggregates replies at the server.
A backend transports the messages: ``local`` within one machine, ``flare`` between machines. A method does not know
which backend runs it, and a backend does not know what a method computes.

One **step** is one exchange between the server and the sites:

1. `Method.plan` at the server returns a `Plan` with at most one `Request` per site.
2. `Method.execute` at each of these sites turns its request into a `Reply`.
3. `Method.aggregate` at the server updates the server's state from the replies.

A round, as papers count them, consists of one or more steps.

A method must keep these promises; `medfl.testing.check_method` tests each of them:

* A method object stores nothing between steps. Everything that must survive a step is in `Participant.state`, so every
  run can be interrupted and resumed.
* `execute` changes nothing but ``site.state``. If a request is repeated, the site sends the stored reply again.
* Random numbers come from `Participant.rng`, which depends only on (seed, participant, round, label), or from torch's
  global generator, which the engine seeds before each call.
* Only tensors whose name starts with a prefix in `Method.sends`, and only metadata declared in `Method.sends_meta`,
  leave a site.
* `aggregate` can handle every reply that passes `Method.sends_meta` and `Method.check_tensors`, so that a dishonest
  site can't end a run.

This module imports only torch and small modules of medfl, so that authors of methods can read it on its own.
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
    from medfl.training.checkpoints import StepCheckpoints


PayloadKind = Literal["update", "weights", "statistic", "samples"]
"""Kind of a tensor that leaves a site. Clipping, noise and compression apply to ``update`` only."""


Need = Literal[
    "class_labels",
    "class_logits",
    "soft_targets",
    "features",
    "head",
    "linear_head",
    "trainable_body",
    "images_of_one_shape",
    "raw_images",
    "public_data",
    "pooled_data",
    "one_learning_rate",
]
"""Requirement of a method; `medfl.engine.needs` defines when a task or a run meets it."""


@dataclass
class Request:
    """Message from the server to a site: perform an operation of the method with these tensors.

    Attributes:
        to: Name of the site.
        op: Name of the operation; `Method.execute` dispatches on it.
        tensors: Maps names to tensors.
        meta: JSON values that go with the tensors.
    """

    to: str
    op: str
    tensors: Tensors = field(default_factory=dict)
    meta: Meta = field(default_factory=dict)


@dataclass
class PeerMessage:
    """Message from one site to another. The server never stores it.

    The receiving site keeps it until its next step is saved.

    Attributes:
        to: Name of the receiving site.
        tensors: Maps names to tensors.
        meta: JSON values that go with the tensors.
        sender: Name of the sending site; the engine fills it in.
    """

    to: str
    tensors: Tensors
    meta: Meta = field(default_factory=dict)
    sender: str = ""


@dataclass
class Model:
    """Description of a trained model, sufficient to rebuild its predictor on any machine.

    Attributes:
        network: Name of the network in the task.
        tensors: Maps names to the model's tensors.
        meta: JSON values that `Method.predictor` and `Method.network_config` of the same method read.
    """

    network: str
    tensors: Tensors
    meta: Meta = field(default_factory=dict)


@dataclass
class Findings:
    """Results of a method for its report section, beside models and scores. Nothing is computed from them.

    Attributes:
        meta: JSON values.
        tensors: Maps names to images and maps; none may be derived from a private image.
    """

    meta: Meta = field(default_factory=dict)
    tensors: Tensors = field(default_factory=dict)


@dataclass
class Reply:
    """Message from a site to the server, with messages to other sites.

    Attributes:
        tensors: Maps names to tensors; `Method.sends` declares the names.
        meta: JSON values; `Method.sends_meta` declares the keys.
        peer_messages: Messages to other sites. The server receives neither their tensors nor their metadata.
        log: Maps metric names to values for the metrics file, such as the training loss. Never data of patients.
        trained: Models directly after local training, by kind as in `Method.models`. The engine scores them under the
            moment ``trained``. They don't leave the site. A method with a single model uses the kind ``personal``.
    """

    tensors: Tensors = field(default_factory=dict)
    meta: Meta = field(default_factory=dict)
    peer_messages: list[PeerMessage] = field(default_factory=list)
    log: dict[str, float] = field(default_factory=dict)
    trained: dict[str, Model] = field(default_factory=dict)


@dataclass
class State:
    """State of a participant that survives a step.

    Attributes:
        tensors: Maps names to tensors, saved with every step.
        meta: JSON values, saved with every step.
        blobs: Maps the name of each large constant to its SHA-256. `Participant.keep_blob` writes it once.
    """

    tensors: Tensors = field(default_factory=dict)
    meta: Meta = field(default_factory=dict)
    blobs: dict[str, str] = field(default_factory=dict)


@dataclass
class Plan:
    """Description of the next step.

    Attributes:
        round: Round of the step, counted from 1.
        requests: At most one request per site. With an empty list only the server computes in this step.
        ends_round: Whether the step is the last one of its round. A round is evaluated after its last step.
        quorum: Minimum number of replies for the run to continue; None requires all of them.
        aggregates: Whether `Method.aggregate` uses the replies. If not, the sites send nothing to the server.
    """

    round: int
    requests: list[Request]
    ends_round: bool = True
    quorum: int | None = None
    aggregates: bool = True


@dataclass(frozen=True)
class ReducesTo:
    """Limit case: settings with which a method equals another method bit by bit.

    It is documented on the method's page, causes a warning at run time, and is tested.

    Attributes:
        equals: Name of the other method.
        args: Settings of the method itself, for example ``{"mu": 0.0}``.
        equals_args: Settings of the other method.
        equals_settings: Settings of the run with which the other method is equal.
        only_without_norms: Whether the equality holds only for networks without batch normalisation.
    """

    equals: str
    args: Meta = field(default_factory=dict)
    equals_args: Meta = field(default_factory=dict)
    equals_settings: Meta = field(default_factory=dict)
    only_without_norms: bool = False


class Blobs(Protocol):
    """Storage of a participant's large constants."""

    def put(self, tensors: Tensors) -> str:
        """Write the tensors once and return their SHA-256."""
        ...

    def get(self, digest: str) -> Tensors:
        """Read the tensors that have this SHA-256."""
        ...


@dataclass
class Participant:
    """A method's view of the server (`Server`) or of one site (`Site`).

    Attributes:
        name: Name of the participant.
        round: Round of the current step, from 1; 0 in `Method.setup`.
        state: State that survives the step. A method may change it; the engine saves it with the step.
        task: Learning problem: networks, loss, optimiser and metrics.
        settings: Settings of the run.
        blobs: Storage of large constants; None where there is none.
    """

    name: str
    round: int
    state: State
    task: Task
    settings: Settings
    blobs: Blobs | None = None

    def rng(self, label: str) -> torch.Generator:
        """Return a generator that depends only on (run seed, participant, round, label).

        It doesn't depend on the step, on the method or on earlier draws.
        """
        return make_generator(self.settings.seed, self.name, self.round, label)

    def network_of(self, site: str) -> str:
        """Return the name of the network that a site trains.

        Returns:
            The site's entry in ``settings.networks_by_site``, or the task's default network.
        """
        return self.settings.networks_by_site.get(site, self.task.network)

    def keep_blob(self, name: str, tensors: Tensors) -> None:
        """Write a large constant once. Later steps store only its hash.

        Raises:
            RuntimeError: If the participant has no blob storage.
        """
        if self.blobs is None:
            raise RuntimeError("this participant has no blob store")
        self.state.blobs[name] = self.blobs.put(tensors)

    def blob(self, name: str) -> Tensors:
        """Read a constant that `keep_blob` wrote.

        Raises:
            RuntimeError: If the participant has no blob storage.
        """
        if self.blobs is None:
            raise RuntimeError("this participant has no blob store")
        return self.blobs.get(self.state.blobs[name])


@dataclass
class Server(Participant):
    """A method's view of the server.

    Attributes:
        sites: Names of all sites, sorted.
        site_info: Maps each site to the information that it disclosed at the start: always ``trainable`` and
            ``validates`` (whether it has training and validation images), and ``size`` (number of training images) and
            ``label_counts`` if its policy allows them.
        rounds_done: Number of completed rounds.
        public: Public data at the server, if the run has any. They aren't sent to sites.
        score_epoch: Callback that scores a model on the server's test sets: ``score_epoch(model, epoch)``, epochs from
            1. The engine sets it in `Method.aggregate` if ``moments`` contains ``epochs``, for methods that train a
            model at the server. It returns nothing, so test scores can't influence the method.
    """

    sites: list[str] = field(default_factory=list)
    site_info: dict[str, Meta] = field(default_factory=dict)
    rounds_done: int = 0
    public: Dataset | None = None
    score_epoch: Callable[[Model, int], None] | None = None

    def shared_rng(self, label: str) -> torch.Generator:
        """Return a generator that depends only on (run seed, label, round), for draws that all methods share.

        An example is the choice of participating sites, which must not differ between methods.
        """
        return make_generator(self.settings.seed, label, self.round)

    def trainable(self) -> list[str]:
        """Return the names of the sites that have training data, sorted."""
        return [name for name in self.sites if self.site_info.get(name, {}).get("trainable", True)]

    def networks(self) -> list[str]:
        """Return the sorted names of the networks that the sites train; the task's default if there are no sites."""
        return sorted({self.network_of(name) for name in self.sites} or {self.task.network})


@dataclass
class Site(Participant):
    """A method's view of one site. It has no test data, so a method can't use them.

    Attributes:
        train: Training data.
        val: Validation data; may be empty.
        inbox: Peer messages that arrived since the site's last step, sorted by sender.
        published: Tensors of `Method.publish`; set only during evaluation and export.
        secret: Key of the site for privacy noise; it never leaves the site.
        run_id: Identity of the run, which keys the privacy noise.
        checkpoints: Checkpoints of the step's trainings; None if the site writes none.
    """

    train: Dataset = None  # type: ignore[assignment]
    val: Dataset | None = None
    inbox: list[PeerMessage] = field(default_factory=list)
    published: Tensors = field(default_factory=dict)
    secret: bytes = b""
    run_id: str = ""
    checkpoints: StepCheckpoints | None = None

    @property
    def network(self) -> str:
        """Name of the network that this site trains."""
        return self.network_of(self.name)

    def secret_rng(self, label: str, payload: str) -> SecretStream:
        """Return a random stream for privacy noise that no other party can predict.

        Args:
            label: Purpose of the stream.
            payload: Hash of the value that receives the noise, so that two values never share their noise.

        Returns:
            A stream keyed by (site secret; run id, round, label, payload).
        """
        return SecretStream(self.secret, self.run_id, self.round, label, payload)


class Replies(Protocol):
    """Replies of a step: an iterable of (site, tensors), sorted by site.

    It can be iterated several times. Tensors are read from disk one reply at a time, to save memory.
    """

    meta: dict[str, Meta]
    """Maps each site that replied to the metadata of its reply."""
    missing: list[str]
    """Names of the requested sites that sent no usable reply."""

    def __iter__(self) -> Iterator[tuple[str, Tensors]]: ...

    def __len__(self) -> int: ...


class Filter(Protocol):
    """Reversible transformation of the tensors of replies that reduces the bytes a site sends, such as a low-rank code.

    At a site, `encode` receives all tensors of one kind of a reply at once: after the checks, and before clipping,
    noise and quantisation. At the server, `decode` restores them before `Method.aggregate`. A filter is a pure function
    without state. It may be lossy.

    Under privacy with the unit ``site``, clipping and noise apply to the encoded values. The sensitivity is therefore
    that of clipped encoded tensors, decoding is post-processing, and the guarantee is unchanged. This holds only if
    nothing but the encoded values depends on the data. The engine refuses a filter whose metadata, names, shapes or
    dtypes depend on the data, or that sends integers (such as the positions of the largest entries). With the unit
    ``sample``, the noise is part of the training, and a filter is post-processing.
    """

    @property
    def kinds(self) -> Collection[PayloadKind]:
        """Kinds of tensors to transform, out of those the method sends. Tensors of other kinds are left unchanged."""
        ...

    def encode(self, tensors: Tensors, rng: torch.Generator) -> tuple[Tensors, Meta]:
        """Return the tensors that are sent instead.

        Args:
            tensors: At least one tensor, all of one kind, finite, by name.
            rng: Generator for random choices. A repeated request draws the same numbers.

        Returns:
            Finite tensors under any names with prefixes of this kind, and JSON metadata for `decode`.
        """
        ...

    def decode(self, tensors: Tensors, meta: Meta) -> Tensors:
        """Restore the names, shapes and dtypes that `encode` received.

        Args:
            tensors: Result of `encode`, up to noise and rounding.
            meta: Metadata returned by `encode`. Tensors and metadata come from another machine. If this method raises,
                the site counts as unavailable; raise for an impossible index or size instead of allocating memory.
        """
        ...


class Method(Protocol):
    """A federated algorithm. Most methods are a few lines on top of `medfl.toolkit.averaging.Averaging`."""

    sends: ClassVar[Mapping[str, PayloadKind]]
    """Maps each name prefix to the kind of its tensors. The engine refuses to send tensors under other names."""

    sends_meta: ClassVar[Mapping[str, MetaField]]
    """Maps each metadata key of replies and peer messages to its type, shape, range and disclosure."""

    supports: ClassVar[frozenset[Capability]]
    """Capabilities. Each class declares its own set; `active_supports` restricts it for given settings."""

    needs: ClassVar[frozenset[Need]]
    """Requirements with the default settings; `active_needs` gives them for other settings."""

    reduces_to: ClassVar[tuple[ReducesTo, ...]]
    """Limit cases in which the method equals another one."""

    presets: ClassVar[Mapping[str, Meta]]
    """Maps each preset, for example ``paper``, to settings of the method."""

    preset_settings: ClassVar[Mapping[str, Meta]]
    """Maps each preset to the settings of the run that belong to it. A run with other settings is warned."""

    @property
    def active_supports(self) -> frozenset[Capability]:
        """Capabilities with the method's current settings, a subset of `supports`."""
        ...

    @property
    def active_needs(self) -> frozenset[Need]:
        """Requirements with the method's current settings. A run that doesn't meet them is refused before it starts."""
        ...

    @property
    def gradient_clip(self) -> float | None:
        """Maximum L2 norm of a batch's gradient in local training, > 0; None if gradients are not clipped."""
        ...

    def setup(self, server: Server) -> None:
        """Initialise the server's state, once, before the first step."""
        ...

    def plan(self, server: Server) -> Plan | None:
        """Return the next step, or None if the method has finished."""
        ...

    def execute(self, site: Site, request: Request) -> Reply:
        """Compute a site's reply to a request, dispatching on ``request.op``. May change ``site.state``."""
        ...

    def check_tensors(self, task: Task, request: Request, tensors: Tensors) -> None:
        """Raise if `aggregate` can't use the tensors of a reply. Called at the site and again at the server.

        Args:
            task: Learning problem.
            request: Request as the server sent it.
            tensors: Tensors of the reply; finite, with names that start with prefixes in `sends`.

        Raises:
            RefusedError: If names, shapes or dtypes are not as expected. The site then counts as unavailable.
        """
        ...

    def filters(self) -> tuple[Filter, ...]:
        """Return the filters of replies in the order of encoding; decoding reverses it. Most methods have none."""
        ...

    def aggregate(self, server: Server, replies: Replies) -> None:
        """Update the server's state from the replies of the step."""
        ...

    def publish(self, server: Server) -> Tensors:
        """Return the tensors that every site needs for its evaluation and for the export of its model."""
        ...

    def findings(self, server: Server) -> Findings:
        """Return results for the report at the end of the run. Most methods return an empty object."""
        ...

    def models(self, participant: Participant) -> dict[str, Model]:
        """Return the models of a participant.

        Returns:
            Maps kinds to models: ``global`` at the server; ``personal``, ``global`` or both at a site.
        """
        ...

    def model_dump(self, *, mode: str = "python") -> Meta:
        """Return the method's settings by name, as pydantic models do."""
        ...

    def task_of(self, task: Task) -> Task:
        """Return the task with the method's own networks or heads. Most methods return it unchanged.

        The result must depend only on the task and the method's settings. Every task that a method receives, in a
        participant, in `check_tensors` or in `predictor`, is a result of this function.
        """
        ...

    def network_config(self, model: Model, network_def: Any) -> Any:
        """Return the MONAI configuration of the network in an exported bundle. Most methods return `network_def`.

        Args:
            model: One of `models`.
            network_def: Configuration of the run's network of this name, JSON as in MONAI's configuration files.

        Returns:
            Configuration of a network that loads ``model.tensors`` and has the same logits as `predictor`.
        """
        ...

    def predictor(self, task: Task, models: list[Model]) -> nn.Module:
        """Return a network that predicts with the models; its outputs have the form that the task's objective expects.

        A pure function: it is also called on other machines, without the run.
        """
        ...
