"""Description of a run that the server and its sites share, and the identity of the run that follows from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import nn

from medfl.engine.backend import MethodFactory
from medfl.engine.secure.method import wrap_method
from medfl.privacy.policy import policy_of
from medfl.records.run_file import IDENTITY_NAMES, JoinedSite, RunIdentity, TaskIdentity, networks_of_joined_sites
from medfl.settings import Settings
from medfl.task import Task
from medfl.types import Dataset, Meta
from medfl.utils import wire

OMITTED_DEFAULTS = ("optimization", "train_part", "lora", "feature_views", "harmonise_features")
"""Settings that the identity of a run contains only if they differ from their defaults: a run without them keeps the
identity, and the noise keys, that it had before these settings existed."""


@dataclass(frozen=True)
class MethodChoice:
    """Method of a run: its name, its settings as the user gave them, and its factory.

    Attributes:
        name: Name of the method, for messages and the run folder.
        make: Factory that returns a new method object at each call.
        args: Settings of the method as the user gave them, for ``run.json``.
        needs_by_method: Maps each known method to its requirements (`Method.needs`), for messages that suggest other
            methods.
    """

    name: str
    make: MethodFactory
    args: Meta = field(default_factory=dict)
    needs_by_method: Mapping[str, Collection[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class RunPlan:
    """Description of a run: its method, task, settings and sites.

    Attributes:
        method: Method of the run.
        task: The learning problem: networks, loss, optimiser and metrics, on the device of this participant.
        settings: Settings of the run.
        sites: Names of the sites of the run.
        data_digest: Digest of the data of all sites; empty if it is not known.
        joined: Maps each site that joined after the start of the run to the record of its joining. The network of such
            a site is not part of the identity.
    """

    method: MethodChoice
    task: Task
    settings: Settings
    sites: Sequence[str]
    data_digest: str = ""
    joined: Mapping[str, JoinedSite] = field(default_factory=dict)

    @property
    def make_method(self) -> MethodFactory:
        """Factory of the method that the backend runs: the chosen method, or a wrapper of it for secure aggregation."""
        return wrap_method(self.method.make, self.settings)

    @cached_property
    def identity(self) -> RunIdentity:
        """Identity of the run. Two runs with the same identity are the same run.

        The settings ``rounds`` and ``keep_rounds`` are not part of the identity. The weights in ``start`` are
        identified by their SHA-256 (`TaskIdentity`), not by the place where they are. A setting in `OMITTED_DEFAULTS`
        is part of the identity only if it differs from its default.
        """
        late = networks_of_joined_sites(self.joined)
        at_start = {site: name for site, name in self.settings.networks_by_site.items() if site not in late}
        settings = self.settings.model_copy(update={"networks_by_site": at_start})
        values = settings.model_dump(mode="json", exclude={"rounds", "keep_rounds", "start", "start_skip"})
        for name in OMITTED_DEFAULTS:
            if getattr(settings, name) == Settings.model_fields[name].default:
                del values[name]
        if settings.privacy is not None:
            values["privacy"]["accountant"] = policy_of(settings).accountant
        return RunIdentity(
            method=self.method.name,
            method_args=json.loads(json.dumps(self.method.args)),
            settings={IDENTITY_NAMES.get(name, name): value for name, value in values.items()},
            sites=tuple(sorted(self.sites)),
            data=self.data_digest,
            task=identify_task(self.task, settings.networks_by_site),
        )

    @cached_property
    def run_id(self) -> str:
        """Identifier of the run from which the keys of its noise streams are derived."""
        return self.identity.run_id


@dataclass(frozen=True)
class ServerData:
    """Data that the server itself has.

    Attributes:
        public: Public data that the method may use at the server, or None.
        tests: Maps the name of each test set of the server to its cases.
    """

    public: Dataset | None = None
    tests: Mapping[str, Dataset] = field(default_factory=dict)


def identify_task(task: Task, networks_by_site: Mapping[str, str]) -> TaskIdentity:
    """Return the identity of a learning problem.

    Args:
        task: The learning problem.
        networks_by_site: Maps sites to their networks. All other sites train the task's default network.
    """
    networks = {name: _hash_shapes(task, name) for name in sorted({task.network, *networks_by_site.values()})}
    facts = {name: described for name in networks if (described := _network_facts(task, name))}
    optimizer = task.optimizer([nn.Parameter(torch.zeros(1))])
    frozen = {name: digest for name in networks if (digest := task.frozen_digest(name)) is not None}
    return TaskIdentity(
        networks=networks,
        loss=_describe_loss(task.loss),
        optimizer=type(optimizer).__name__ + json.dumps(optimizer.defaults, default=str, sort_keys=True),
        metrics=tuple(task.metrics),
        **task.objective.identity,
        frozen=frozen or None,
        network_facts=facts or None,
        augmentation=None if task.augmentation is None else task.augmentation.facts,
        views=None if task.views is None else task.views.facts,
        start=None if task.start is None else task.start.sha256,
        start_skip=None if task.start is None else task.start.skip or None,
        schedule=None if task.schedule is None else task.schedule.facts,
        regions=None if task.regions is None else wire.digest({"regions": task.regions})[:16],
    )


def _describe_loss(loss: nn.Module) -> Meta:
    """Return a description of a loss that distinguishes it from other losses.

    Its keys are ``is`` (the repr), ``tensors`` (a digest of its state) and the dotted name of each plain attribute,
    because the repr often omits attributes.
    """
    parts = [(path + "." if path else "", part) for path, part in loss.named_modules()]
    facts = {p + k: v for p, part in parts for k, v in vars(part).items() if isinstance(v, bool | int | float | str)}
    return facts | {"is": repr(loss), "tensors": wire.digest(dict(loss.state_dict()))[:16]}


def _hash_shapes(task: Task, network: str) -> str:
    """Build a network, and return a hash of the names and shapes of its tensors."""
    with torch.random.fork_rng(devices=[]):
        shapes = {name: list(tensor.shape) for name, tensor in task.build(network).state_dict().items()}
    return hashlib.sha256(json.dumps(shapes).encode()).hexdigest()[:16]


def _network_facts(task: Task, network: str) -> Meta:
    """Build a network, and return the `facts` of its modules that describe themselves by a dict, by module name.

    Such a module changes the outputs, and neither the names nor the shapes of tensors show it.
    """
    with torch.random.fork_rng(devices=[]):
        modules = dict(task.build(network).named_modules())
    return {path: m.facts for path, m in modules.items() if isinstance(getattr(m, "facts", None), dict)}
