"""A whole federation on this machine: checks, the run folder, the local carrier, the loop, the summary."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch

from medfl.carriers.local import LocalCarrier
from medfl.carriers.together import check_together
from medfl.contract import Method, Model, PeerMessage
from medfl.core.carrier import MethodFactory, Note
from medfl.core.checks import (
    check_plan,
    check_privacy,
    check_shared_test,
    check_targets,
    check_training,
    check_validation,
    warn_of_preset,
)
from medfl.core.evaluation import Row
from medfl.core.journal import Outcome
from medfl.core.secure.method import secured
from medfl.core.server import ServerLoop
from medfl.core.site import SiteRunner, Splits
from medfl.core.store import Inbox, Store
from medfl.data.pooled import Empty, pool
from medfl.errors import SettingsError
from medfl.records.run_file import Provenance
from medfl.records.summary import Summary
from medfl.runs.lifecycle import RunWriter
from medfl.runs.poison import Attackers, PoisonedCarrier, check_attackers, poisoned_sites
from medfl.runs.summary import holdings
from medfl.settings import Execution, Settings
from medfl.task import Task
from medfl.types import GLOBAL, POOLED, PUBLIC, SERVER, Dataset, Meta
from medfl.utils.memory import keep_freed_memory

logger = logging.getLogger(__name__)


@dataclass
class Run:
    """Everything a federation in one process needs.

    Attributes:
        method: Its name, for messages and the run folder.
        make_method: Makes the method anew.
        task: The learning problem.
        settings: What decides the numbers.
        sites: Site name to its data.
        folder: The run folder.
        global_test: Test data that the server holds, or None.
        public: Public data for the server, or None; no site sees them.
        public_test: Public test images, for a model of the server that is made for them, or None.
        execution: Where and how to compute.
        method_args: The method's settings as given, for the record.
        data_digest: Identifies the data, for the record.
        classes: Names of the classes, for the record; empty means their numbers.
        names: As `medfl.data.sites.SiteData.names`, for the record.
        provenance: Where the settings, the data and the code come from, for ``run.json``.
        leaks: Sentences about violations of the splits that the user allowed; they stand in the summary.
        needs_by_method: Name of each known method to what it needs of a task, for messages.
        absent: Tells whether a site is absent in a step.
        attackers: Who attacks, as `settings.poison` says; None without attackers.
        secrets: Secrets of sites by name; others are derived from the seed, as this is a simulation.
        on_start: Called when the run folder is this run's.
        on_round: Called after each round.
        frees_space: Whether to delete, at the end, stored steps and replies that no continuation needs.
        take_home: Called when the run is over and before the summary, which marks it as finished, is written.
    """

    method: str
    make_method: MethodFactory
    task: Task
    settings: Settings
    sites: Mapping[str, Splits]
    folder: Path
    global_test: Dataset | None = None
    public: Dataset | None = None
    public_test: Dataset | None = None
    execution: Execution = field(default_factory=Execution)
    method_args: Meta = field(default_factory=dict)
    data_digest: str = ""
    classes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    provenance: Provenance = field(default_factory=Provenance)
    leaks: tuple[str, ...] = ()
    needs_by_method: Mapping[str, Collection[str]] = field(default_factory=dict)
    absent: Callable[[str, int], bool] = lambda site, step: False
    attackers: Attackers | None = None
    secrets: Mapping[str, bytes] = field(default_factory=dict)
    on_start: Callable[[], None] = lambda: None
    on_round: Callable[[int, list[Row]], None] = lambda round_, rows: None
    frees_space: bool = False
    take_home: Callable[[Result], object] = lambda result: None


@dataclass
class Result:
    """How a run ended, with every participant's models.

    Attributes:
        outcome: Status and the server's models.
        models: Site to its models by kind.
        summary: Content of ``summary.json``.
    """

    outcome: Outcome
    models: dict[str, dict[str, Model]]
    summary: Summary


def simulate(run: Run) -> Result:
    """Run a federation to its end; given the same folder again it continues, and in the end has the same bits.

    Raises:
        SettingsError: If the combination of method, task, settings and sites is not possible.
        DataError: If no site has training data.
        StoreError: If the folder belongs to another run, is being written, or can't be written.
    """
    keep_freed_memory()
    torch.set_num_threads(run.execution.threads)
    run = replace(run, settings=run.settings.for_sites(len(run.sites)))
    method = run.make_method()
    check(run, method)
    run = replace(run, make_method=secured(run.make_method, run.settings))
    writer = RunWriter(
        folder=run.folder,
        method=run.method,
        method_args=run.method_args,
        settings=run.settings,
        task=run.task,
        sites=sorted(run.sites),
        data_digest=run.data_digest,
        execution=run.execution,
    )
    with writer.held():
        hosts, viewers = _hosts(run, method, writer)  # a site may refuse; then the folder stays free
        writer.claim(run.provenance)
        for host in hosts.values():
            host.check_account()
        run.on_start()
        writer.begin()
        with writer.noted() as note:
            result = _simulated(run, writer, hosts, viewers, note)
    return result


def _simulated(
    run: Run, writer: RunWriter, hosts: dict[str, SiteRunner], viewers: dict[str, SiteRunner], note: Note
) -> Result:
    """The run itself, in a folder that is claimed, and what it leaves."""
    carrier = _carrier(run, hosts, viewers, note)
    try:
        loop = ServerLoop(
            make_method=run.make_method,
            carrier=carrier,
            task=run.task,
            settings=run.settings,
            folder=run.folder,
            public=run.public,
            tests=_tests(run),
            on_round=run.on_round,
            on_commit=writer.commit_noted(note),
        )
        outcome = loop.run()
    finally:
        carrier.close()
    classes = run.classes or run.task.objective.titles
    named_splits = {name: _by_name(data) for name, data in run.sites.items()}
    summary = writer.summarise(outcome).model_copy(
        update={
            "holdings": holdings(named_splits, classes, run.task.objective),
            "leaks": run.leaks,
            "names": run.names,
            "privacy": {name: host.account.report() for name, host in hosts.items() if host.account is not None},
        }
    )
    everyone = hosts | viewers
    models = {
        name: everyone[name].models(run.make_method(), outcome.published, outcome.step, outcome.round)
        for name in writer.sites
    }
    result = Result(outcome, models, summary)
    run.take_home(result)  # it may add to the summary
    writer.finish(outcome, result.summary)
    writer.end_noted(note, result.summary)
    if run.frees_space:
        writer.free_space(outcome)
    return result


def _by_name(data: Splits) -> dict[str, Dataset]:
    return {"training": data.train, "validation": data.val, "test": data.test}


def check(run: Run, method: Method) -> None:
    """Everything that can be checked before step 0."""
    networks = check_plan(run.method, method, run.task, run.settings, run.sites, bool(run.public), run.needs_by_method)
    warn_of_preset(run.method, method, run.method_args, run.settings)
    check_shared_test(run.settings, bool(run.global_test))
    check_training(run.sites, run.task.objective)
    check_validation(run.settings, [name for name, data in run.sites.items() if len(data.val)])
    check_targets(run.task.objective, run.sites, {"Public data": run.public, "Public test data": run.public_test})
    images = {name: len(data.train) for name, data in run.sites.items() if len(data.train)}
    check_privacy(run.settings, method, networks, images, len(images), simulated=True)
    if run.execution.together > 1:
        check_together(run.method, method, run.settings, run.task, networks)
    if bool(run.settings.poison) != (run.attackers is not None):
        raise SettingsError(
            "attackers_mismatch",
            "expected attackers if, and only if, the setting 'poison' names some.",
            setting="poison",
        )
    if run.attackers is not None:
        check_attackers(run.attackers, run.settings, method, run.task, run.sites)


# ---- sites


def _tests(run: Run) -> dict[str, Dataset]:
    """The server's test sets by their names."""
    return {held: test for held, test in {GLOBAL: run.global_test, PUBLIC: run.public_test}.items() if test}


def _carrier(run: Run, hosts: dict[str, SiteRunner], viewers: dict[str, SiteRunner], note: Note) -> LocalCarrier:
    """Return the carrier of honest sites, or the one with attackers among them."""
    make_carrier: Callable[..., LocalCarrier] = LocalCarrier
    if run.attackers is not None:
        memory = Store(run.folder / "state" / SERVER / "attackers")
        make_carrier = partial(PoisonedCarrier, run.attackers, run.settings.seed, memory)
    return make_carrier(
        hosts=hosts,
        make_method=run.make_method,
        viewers=viewers,
        workers=run.execution.workers,
        threads=run.execution.threads,
        absent=run.absent,
        note=note,
        together=run.execution.together,
    )


def _hosts(run: Run, method: Method, writer: RunWriter) -> tuple[dict[str, SiteRunner], dict[str, SiteRunner]]:
    """Sites that train, and holders of test data only."""

    def site(name: str, data: Splits) -> SiteRunner:
        def post(step: int, parcel: PeerMessage) -> None:
            Inbox(run.folder / "state" / parcel.to).post(step, name, parcel)

        return writer.runner(name, data, post, run.secrets.get(name))

    viewers = {held: writer.viewer(held, test) for held, test in _tests(run).items()}
    sites = dict(sorted(run.sites.items()))
    if run.settings.shared_test:
        sites = {name: replace(data, shared=run.global_test) for name, data in sites.items()}
    if run.attackers is not None:
        sites = poisoned_sites(sites, run.attackers, run.task, run.settings.seed)
    if not method.pools_data or len(sites) == 1:
        return {name: site(name, data) for name, data in sites.items()}, viewers
    parts = [data.train for data in sites.values() if len(data.train)]
    pooled = Splits(pool(parts), Empty(), Empty())
    viewers |= {name: writer.viewer(name, data.test, data.val) for name, data in sites.items()}
    return {POOLED: site(POOLED, pooled)}, viewers
