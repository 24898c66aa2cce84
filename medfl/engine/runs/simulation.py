"""Run a whole federation on this machine: check it, train and evaluate its models, and write the run folder."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch

from medfl.contract import Method, Model, PeerMessage
from medfl.data.harmonisation.combat import FeatureMap
from medfl.data.pooled import EmptyDataset, pool
from medfl.engine.adversaries.simulation import AttackedBackend, Attackers, attacked_sites, check_attackers
from medfl.engine.backend import Backend, EventListener
from medfl.engine.backends.local import LocalBackend
from medfl.engine.checks import (
    check_plan,
    check_privacy,
    check_shared_test,
    check_targets,
    check_training,
    check_validation,
    warn_of_preset,
)
from medfl.engine.evaluation import MetricRow
from medfl.engine.journal import RunOutcome
from medfl.engine.plan import MethodChoice, RunPlan, ServerData
from medfl.engine.runs.features.feature_cache import cache_features, cache_folder
from medfl.engine.runs.features.feature_harmonisation import (
    check_feature_harmonisation,
    harmonise_sites,
    models_for_images,
)
from medfl.engine.runs.lifecycle import RunParticipants, RunWriter, run_federation
from medfl.engine.runs.summary import count_images
from medfl.engine.site import SiteOptions, SiteRunner, Splits
from medfl.engine.store import Inbox, Store
from medfl.errors import SettingsError
from medfl.records.run_file import Provenance
from medfl.records.summary import Summary
from medfl.settings import Execution, Settings
from medfl.task import Task
from medfl.training.devices import worker_devices
from medfl.types import GLOBAL, POOLED, PUBLIC, SERVER, Dataset
from medfl.utils.memory import keep_freed_memory

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunData:
    """Data of the sites and of the server in a run.

    Attributes:
        sites: Maps each site to its splits.
        server_test: Test data of the server, or None.
        public: Public data for the server, or None. No site sees them.
        public_test: Public test images, or None. They are for a model that the server trains on public data.
        digest: Digest of the data, for ``run.json``.
        classes: Names of the classes, for the summary; if empty, their numbers are used.
        names: Names of the network's outputs, for the summary, if cases have no class; empty if unknown.
        leaks: Sentences about violations of the splits that the user allowed; they are part of the summary.
        folder: Folder with one folder for each participant that has data on disk; None for data in memory.
    """

    sites: Mapping[str, Splits]
    server_test: Dataset | None = None
    public: Dataset | None = None
    public_test: Dataset | None = None
    digest: str = ""
    classes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    leaks: tuple[str, ...] = ()
    folder: Path | None = None

    @property
    def server_tests(self) -> dict[str, Dataset]:
        """Maps the name of each test set of the server to its data."""
        tests = {GLOBAL: self.server_test, PUBLIC: self.public_test}
        return {name: test for name, test in tests.items() if test}


@dataclass(frozen=True)
class Simulation:
    """Behaviour of the sites that a run on one machine simulates.

    Attributes:
        unavailable: Function that returns whether a site is unavailable in a step, given the site's name and the step
            number.
        attackers: The attackers that the setting ``adversaries`` names; None without attackers.
        secrets: Maps sites to their secrets, the keys of their privacy noise. The secrets of all other sites are
            derived from the seed.
    """

    unavailable: Callable[[str, int], bool] = lambda site, step: False
    attackers: Attackers | None = None
    secrets: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Callbacks:
    """Functions that a run calls, and whether it deletes unneeded files at its end.

    Attributes:
        on_start: Function that is called after the run has claimed its folder.
        on_round: Function that is called after each round with the number and the rows of metrics of the round.
        export: Function that is called with the run and its result before the summary is written, which marks the run
            as finished.
        frees_space: Whether the run deletes, at its end, the stored steps and replies that no continuation needs.
    """

    on_start: Callable[[], None] = lambda: None
    on_round: Callable[[int, list[MetricRow]], None] = lambda round_, rows: None
    export: Callable[[SimulatedRun, SimulationResult], object] = lambda run, result: None
    frees_space: bool = False


@dataclass(frozen=True)
class SimulatedRun:
    """Description of a federation on one machine.

    Attributes:
        method: Method of the run.
        task: The learning problem.
        settings: Settings that decide the results.
        data: Data of the sites and of the server.
        folder: Path of the run folder.
        execution: Devices, workers and threads.
        provenance: Origin of the settings, the data and the code, for ``run.json``.
        simulation: Unavailable sites, attackers and secrets.
        callbacks: Functions that the run calls.
    """

    method: MethodChoice
    task: Task
    settings: Settings
    data: RunData
    folder: Path
    execution: Execution = field(default_factory=Execution)
    provenance: Provenance = field(default_factory=Provenance)
    simulation: Simulation = field(default_factory=Simulation)
    callbacks: Callbacks = field(default_factory=Callbacks)

    @property
    def plan(self) -> RunPlan:
        """Description of the run that the server and its sites share."""
        return RunPlan(
            method=self.method,
            task=self.task,
            settings=self.settings,
            sites=sorted(self.data.sites),
            data_digest=self.data.digest,
        )


@dataclass(frozen=True)
class SiteFeatures:
    """Cached features of a site, in place of its images.

    Attributes:
        task: Task whose network takes features.
        data: Data of the site with features.
    """

    task: Task
    data: Splits


@dataclass
class SimulationResult:
    """Result of a simulated run, with the models of all participants.

    Attributes:
        outcome: Status of the run and models of the server.
        models: Maps each site to its models by kind (``global``, ``personal``). They are read from the run folder on
            access, since the models of many sites may not fit into memory.
        summary: Content of ``summary.json``.
        features: Maps each site to its cached features; empty if the run cached none.
        feature_maps: Maps each site to the map of its features; empty if the run harmonised none.
    """

    outcome: RunOutcome
    models: Mapping[str, dict[str, Model]]
    summary: Summary
    features: dict[str, SiteFeatures] = field(default_factory=dict)
    feature_maps: dict[str, FeatureMap] = field(default_factory=dict)

    def models_for_images(self, run: SimulatedRun, site: str) -> dict[str, Model]:
        """Return the models of a site by kind, with their frozen tensors and the map of the site's features.

        Args:
            run: The run.
            site: Name of the site.
        """
        return models_for_images(self.models.get(site, {}), run.method.make(), run.task, self.feature_maps.get(site))


class _SiteModels(Mapping[str, dict[str, Model]]):
    """Models of each site of a run, by kind, which are read from the run folder on access.

    Args:
        runners: Maps each site to its runner.
        make_method: Function that creates the method of the run.
        outcome: Outcome of the run.
    """

    def __init__(
        self, runners: Mapping[str, SiteRunner], make_method: Callable[[], Method], outcome: RunOutcome
    ) -> None:
        self._runners, self._make_method, self._outcome = runners, make_method, outcome

    def __getitem__(self, site: str) -> dict[str, Model]:
        outcome = self._outcome
        return self._runners[site].models(self._make_method(), outcome.published, outcome.step, outcome.round)

    def __iter__(self) -> Iterator[str]:
        return iter(self._runners)

    def __len__(self) -> int:
        return len(self._runners)


def simulate(run: SimulatedRun) -> SimulationResult:
    """Run a federation to its end, or continue the run in its folder.

    A continued run has the same results as an uninterrupted one, bit by bit. The function also sets the number of
    threads of torch.

    Raises:
        SettingsError: If the combination of method, task, settings and sites is not possible.
        DataError: If no site can train, or a target is not valid.
        StoreError: If the folder belongs to another run, is being written, or can't be written.
    """
    keep_freed_memory()
    torch.set_num_threads(run.execution.threads)
    settings = run.settings.for_sites(len(run.data.sites))
    run = replace(run, settings=settings, task=run.task.with_training_of(settings.train_part, settings.lora))
    check(run, run.method.make())
    participants = _LocalParticipants(run, RunWriter(run.plan, run.folder, run.execution))
    run_federation(participants.writer, participants)
    assert participants.result is not None
    return participants.result


class _LocalParticipants(RunParticipants):
    """Sites of a run on this machine, each with a folder for its state in the run folder.

    Args:
        run: The run.
        writer: Writer of the run folder.
    """

    def __init__(self, run: SimulatedRun, writer: RunWriter) -> None:
        self.run, self.writer = run, writer
        self.result: SimulationResult | None = None
        self._hosts: dict[str, SiteRunner] = {}
        self._viewers: dict[str, SiteRunner] = {}
        self._caches_features = False
        self._feature_maps: dict[str, FeatureMap] = {}

    def prepare(self) -> Provenance:
        self._hosts, self._viewers = _hosts(self.run, self.writer)
        run, runners = self.run, {**self._viewers, **self._hosts}  # the server's test set is stored in its own folder
        self._caches_features = cache_features(
            runners.values(), run.method.make(), run.task, run.settings, self._cache_of, run.execution.feature_cache
        )
        return self.run.provenance

    def _cache_of(self, name: str) -> Path:
        """Return the folder for a participant's cached features."""
        run = self.run
        if run.execution.cache_dir is not None:
            return run.execution.cache_dir / name
        own = None if run.data.folder is None else run.data.folder / name
        return cache_folder(own, self.writer.folder / "state" / name)

    def start(self) -> None:
        for host in self._hosts.values():
            host.check_account()
        if self.run.settings.harmonise_features == "combat":
            self._feature_maps = harmonise_sites(self._hosts)
        self.run.callbacks.on_start()

    def connect(self, note: EventListener) -> Backend:
        self._backend = _backend(self.run, self._hosts, self._viewers, note)
        return self._backend

    @property
    def server_data(self) -> ServerData:
        return ServerData(self.run.data.public, self.run.data.server_tests)

    def end_round(self, round_: int, rows: list[MetricRow]) -> None:
        self.run.callbacks.on_round(round_, rows)

    def disconnect(self) -> None:
        self._backend.close()

    def export(self, outcome: RunOutcome) -> Summary:
        plan, runners = self.writer.plan, self._hosts | self._viewers
        self.result = SimulationResult(
            outcome=outcome,
            models=_SiteModels({name: runners[name] for name in plan.sites}, plan.make_method, outcome),
            summary=self._summarise(outcome),
            features=self._features(),
            feature_maps=self._feature_maps,
        )
        self.run.callbacks.export(self.run, self.result)  # it may add to the summary
        return self.result.summary

    def _features(self) -> dict[str, SiteFeatures]:
        """Return the cached features of the sites that train."""
        if not self._caches_features:
            return {}
        hosts = {name: host for name, host in self._hosts.items() if name in self.run.data.sites}
        return {name: SiteFeatures(host.task, host.data) for name, host in hosts.items()}

    def _summarise(self, outcome: RunOutcome) -> Summary:
        data, objective = self.run.data, self.run.task.objective
        named_splits = {name: _splits_by_name(splits) for name, splits in data.sites.items()}
        accounts = {name: host.account.report() for name, host in self._hosts.items() if host.account is not None}
        updates = {
            "holdings": count_images(named_splits, data.classes or objective.titles, objective),
            "leaks": data.leaks,
            "names": data.names,
            "privacy": accounts,
        }
        return self.writer.summarise(outcome).model_copy(update=updates)

    def end(self, outcome: RunOutcome) -> None:
        if self.run.callbacks.frees_space:
            self.writer.free_space(outcome)


def _splits_by_name(data: Splits) -> dict[str, Dataset]:
    return {"training": data.train, "validation": data.val, "test": data.test}


def check(run: SimulatedRun, method: Method) -> None:
    """Check a run before its first step.

    Args:
        run: The run.
        method: Method object of the run.

    Raises:
        SettingsError: If the combination of method, task, settings and sites is not possible.
        DataError: If no site can train, or a target is not valid.
    """
    name, task, settings, data = run.method.name, run.task, run.settings, run.data
    networks = check_plan(name, method, task, settings, data.sites, bool(data.public), run.method.needs_by_method)
    warn_of_preset(name, method, run.method.args, settings)
    check_shared_test(settings, bool(data.server_test))
    check_training(data.sites, task.objective)
    check_validation(settings, [site for site, splits in data.sites.items() if len(splits.val)])
    public = {"Public data": data.public, "Public test data": data.public_test}
    check_targets(task.objective, data.sites, public)
    images = {site: len(splits.train) for site, splits in data.sites.items() if len(splits.train)}
    check_privacy(settings, method, networks, images, len(images), simulated=True)
    training = {site: len(splits.train) for site, splits in data.sites.items()}
    check_feature_harmonisation(name, method, networks, settings, training, len(data.sites))
    if bool(run.settings.adversaries) != (run.simulation.attackers is not None):
        raise SettingsError(
            "attackers_mismatch",
            "expected attackers if, and only if, the setting 'adversaries' names them.",
            setting="adversaries",
        )
    if run.simulation.attackers is not None:
        check_attackers(run.simulation.attackers, run.settings, method, run.task, run.data.sites)


# ---- sites


def _backend(
    run: SimulatedRun, hosts: dict[str, SiteRunner], viewers: dict[str, SiteRunner], note: EventListener
) -> LocalBackend:
    """Return the local backend of the run, with the simulated attackers if there are any."""
    make_backend: Callable[..., LocalBackend] = LocalBackend
    if run.simulation.attackers is not None:
        memory = Store(run.folder / "state" / SERVER / "attackers")
        make_backend = partial(AttackedBackend, run.simulation.attackers, run.settings.seed, memory)
    return make_backend(
        hosts=hosts,
        make_method=run.plan.make_method,
        viewers=viewers,
        devices=worker_devices(run.execution),
        threads=run.execution.threads,
        unavailable=run.simulation.unavailable,
        note=note,
    )


def _hosts(run: SimulatedRun, writer: RunWriter) -> tuple[dict[str, SiteRunner], dict[str, SiteRunner]]:
    """Return the runners of the sites that train, and of the participants that only have test data.

    If the method pools the data, one participant holds the training data of all sites, and the sites have test data.
    """
    options = SiteOptions(checkpoint_minutes=run.execution.checkpoint_minutes)

    def post(step: int, peer_message: PeerMessage) -> None:
        Inbox(run.folder / "state" / peer_message.to).post(step, peer_message.sender, peer_message)

    def site(name: str, data: Splits) -> SiteRunner:
        secret = run.simulation.secrets.get(name)
        return writer.runner(name, data, post, replace(options, secret=secret) if secret else options)

    viewers = {held: writer.viewer(held, test) for held, test in run.data.server_tests.items()}
    sites = dict(sorted(run.data.sites.items()))
    if run.settings.shared_test:
        sites = {name: replace(data, shared=run.data.server_test) for name, data in sites.items()}
    if run.simulation.attackers is not None:
        sites = attacked_sites(sites, run.simulation.attackers, run.task, run.settings.seed)
    if "pooled_data" not in run.method.make().needs or len(sites) == 1:
        return {name: site(name, data) for name, data in sites.items()}, viewers
    parts = [data.train for data in sites.values() if len(data.train)]
    pooled = Splits(pool(parts), EmptyDataset(), EmptyDataset())
    viewers |= {name: writer.viewer(name, data.test, data.val) for name, data in sites.items()}
    return {POOLED: site(POOLED, pooled)}, viewers
