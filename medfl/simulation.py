"""A whole federation on this machine: checks, the run folder, the local carrier, the loop, the summary."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from medfl.carriers.local import LocalCarrier
from medfl.contract import SERVER, Dataset, Limit, Meta, Method, Model, Parcel
from medfl.data.pooled import Empty, Pooled
from medfl.data.sites import GLOBAL, PUBLIC
from medfl.errors import DataError, SettingsError, StoreError
from medfl.evaluation import Row
from medfl.federation import Federation, Outcome
from medfl.filters import check_method
from medfl.findings import write_findings
from medfl.metrics import check_metrics
from medfl.networks.norms import has_batch_norm
from medfl.privacy.samples import check_samples
from medfl.privacy.statements import check_delta, describe
from medfl.run_folder import claim, identity
from medfl.settings import Execution, Settings
from medfl.siteside import MethodFactory, SiteHost, Splits
from medfl.store import Inbox, only_writer, write_json
from medfl.summary import SUMMARY, holdings, summarise
from medfl.task import Task
from medfl.training import cpu_has_bf16

logger = logging.getLogger(__name__)

POOLED = "pooled"
"""Name of the one participant that holds all sites' training data, for methods that pool."""


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
        record: What else ``run.json`` holds: settings with their origins, hashes of the data, plugins.
        leaks: Sentences about violations of the splits that the user allowed; they stand in the summary.
        absent: Tells whether a site is absent in a step.
        on_start: Called when the run folder is this run's.
        on_round: Called after each round.
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
    record: Meta = field(default_factory=dict)
    leaks: tuple[str, ...] = ()
    absent: Callable[[str, int], bool] = lambda site, step: False
    on_start: Callable[[], None] = lambda: None
    on_round: Callable[[int, list[Row]], None] = lambda round_, rows: None
    take_home: Callable[[Result], object] = lambda result: None


@dataclass
class Result:
    """How a run ended, with every participant's models.

    Attributes:
        outcome: Status and the server's models.
        models: Site to its models by kind.
        summary: What ``summary.json`` holds.
    """

    outcome: Outcome
    models: dict[str, dict[str, Model]]
    summary: Meta


def simulate(run: Run) -> Result:
    """Run a federation to its end; given the same folder again it continues, and in the end has the same bits.

    Raises:
        SettingsError: If the combination of method, task, settings and sites is not possible.
        DataError: If no site has training data.
        StoreError: If the folder belongs to another run, is being written, or can't be written.
    """
    torch.set_num_threads(run.execution.threads)
    method = run.make_method()
    check(run, method)
    with only_writer(run.folder):
        named = identity(run.method, run.method_args, run.settings, run.task, run.sites, run.data_digest)
        hosts, viewers = _hosts(run, method, named)  # a site may refuse; then the folder stays free
        execution = run.execution.model_dump() | {"device": run.task.device}
        claim(run.folder, named, run.settings, execution, run.record)
        for host in hosts.values():
            host.check_account()
        run.on_start()
        _forget_summary(run.folder)
        carrier = LocalCarrier(
            hosts, run.make_method, viewers, run.execution.workers, run.execution.threads, run.absent
        )
        try:
            federation = Federation(
                run.make_method, carrier, run.task, run.settings, run.folder, run.public, run.on_round
            )
            outcome = federation.run()
        finally:
            carrier.close()
        summary = summarise(run.folder / "metrics.csv", run.method, outcome)
        classes = run.classes or tuple(str(number) for number in range(run.task.num_classes))
        named_splits = {name: _by_name(data) for name, data in run.sites.items()}
        summary |= {"holdings": holdings(named_splits, classes), "leaks": list(run.leaks)}
        if accounts := {name: host.account.facts() for name, host in hosts.items() if host.account is not None}:
            summary["privacy"] = accounts
        everyone = hosts | viewers
        models = {
            name: everyone[name].models(run.make_method(), outcome.published, outcome.step, outcome.rounds)
            for name in sorted(run.sites)
        }
        result = Result(outcome, models, summary)
        run.take_home(result)
        write_findings(run.folder, outcome.findings)
        write_json(run.folder / SUMMARY, summary)
    return result


def _forget_summary(folder: Path) -> None:
    """A run that goes on is not finished."""
    try:
        if (folder / SUMMARY).exists():
            (folder / SUMMARY).unlink()
    except OSError as error:
        raise StoreError(
            f"Could not remove '{folder / SUMMARY}' of the run's end before: {error.strerror}. Mend that and give the "
            "same command again."
        ) from error


def _by_name(data: Splits) -> dict[str, Dataset]:
    return {"training": data.train, "validation": data.val, "test": data.test}


# ---- checks before step 0


def check(run: Run, method: Method) -> None:
    """Refuse an impossible combination, and warn of one that is another method or leaves a site out."""
    check_metrics(run.task.metrics)
    check_method(method, run.settings, run.method)
    for name in run.sites:
        taken = name in (SERVER, GLOBAL, PUBLIC) or (name == POOLED and len(run.sites) > 1)
        if taken or "/" in name or name.startswith("."):
            raise SettingsError(
                f"A site can't be called '{name}': that name has a meaning of its own. Rename its folder."
            )
    unknown = sorted(set(run.settings.networks) - set(run.sites))
    if unknown:
        raise SettingsError(f"'networks' names sites that are not there: {unknown}. Sites: {sorted(run.sites)}.")
    used = sorted({run.settings.networks.get(name, run.task.network) for name in run.sites})
    if used != [run.task.network] and not method.unlike_networks and not method.unlike_heads:
        raise SettingsError(
            f"Method '{run.method}' needs one architecture at all sites; got {used}. Give all sites the "
            f"network of the task ('{run.task.network}' now), or choose a method that allows unlike ones (`medfl list "
            "methods`)."
        )
    if run.settings.precision == "bf16" and run.task.device == "cpu" and not cpu_has_bf16():
        logger.warning("This CPU computes bf16 in software, many times slower than fp32; use --precision fp32 here.")
    if method.needs_public and not (run.public is not None and len(run.public)):
        raise SettingsError(f"Method '{run.method}' needs public data; name their folder with --public.")
    _check_labels(run)
    _check_weights(run.task, used)
    networks = [run.task.build(name) for name in used]
    _check_privacy(run, method, networks)
    _warn_of_limits(run, method, networks)


def _check_weights(task: Task, networks: list[str]) -> None:
    if task.weights is None:
        return
    task.weights.body_of(task.build(), task.network)
    if others := sorted(set(networks) - {task.network}):
        logger.warning("'weights' is for network '%s'; others begin as drawn: %s.", task.network, ", ".join(others))


def _check_privacy(run: Run, method: Method, networks: list[nn.Module]) -> None:
    privacy = run.settings.privacy
    if privacy is None:
        return
    images = {name: len(data.train) for name, data in run.sites.items() if len(data.train)}
    if privacy.unit == "sample":
        check_samples(run.settings, networks)
        smallest = min(images, key=lambda name: images[name])
        check_delta(privacy, images[smallest], f"site '{smallest}'")
    else:
        check_delta(privacy, len(images), "a federation")
    logger.info("%s", describe(privacy, run.settings.rounds))
    if private := sorted(key for key, kind in method.tells.items() if kind == "private"):
        logger.warning("Privacy: %s stay at the sites; replies weigh alike where they would.", ", ".join(private))


def _check_labels(run: Run) -> None:
    empty = [name for name, data in sorted(run.sites.items()) if not len(data.train)]
    if len(empty) == len(run.sites):
        raise DataError(f"No site has training data: expected at least one image at one of {sorted(run.sites)}.")
    if empty:
        logger.warning("Without training data, never asked to train: %s.", ", ".join(empty))
    splits = {
        f"Site '{name}', split '{split}'": getattr(data, split)
        for name, data in sorted(run.sites.items())
        for split in ("train", "val", "test")
    }
    for where, data in (splits | {"Public data": run.public, "Public test data": run.public_test}).items():
        labels = torch.empty(0) if data is None else data.labels
        wrong = int(((labels < 0) | (labels >= run.task.num_classes)).sum()) if len(labels) else 0
        if wrong:
            raise DataError(
                f"{where}: {wrong} labels are out of range, expected 0 to {run.task.num_classes - 1}, got up to "
                f"{int(labels.max())} and down to {int(labels.min())}. Check num_classes and the datalist."
            )


def _warn_of_limits(run: Run, method: Method, models: list[nn.Module]) -> None:
    plain = not any(has_batch_norm(model) for model in models)
    for limit in method.limits:
        if not limit.equals_settings and _reached(limit, method) and (plain or not limit.only_without_norms):
            why = ", ".join(f"{k} = {v}" for k, v in limit.args.items())
            why += " on a network without batch-norm layers" if limit.only_without_norms else ""
            but = "".join(f" with {k} = {v}" for k, v in limit.equals_args.items())
            logger.warning("With %s, '%s' is '%s'%s.", why, run.method, limit.equals, but)


def _reached(limit: Limit, method: Method) -> bool:
    return all(getattr(method, name) == value for name, value in limit.args.items())


# ---- sites


def _hosts(run: Run, method: Method, named: Meta) -> tuple[dict[str, SiteHost], dict[str, SiteHost]]:
    """Sites that train, and holders of test data only."""
    names = sorted(run.sites)
    run_id = hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()  # noise is never shared by two runs

    def host(name: str, data: Splits) -> SiteHost:
        def post(step: int, parcel: Parcel) -> None:
            Inbox(run.folder / "state" / parcel.to).post(step, name, parcel)

        return SiteHost(name, data, run.folder / "state" / name, run.task, run.settings, run_id, post, names)

    viewers = {}
    for held, test in ((GLOBAL, run.global_test), (PUBLIC, run.public_test)):
        if test is not None and len(test):
            viewers[held] = host(held, Splits(Empty(), Empty(), test))
    if not method.pools_data:
        return {name: host(name, data) for name, data in sorted(run.sites.items())}, viewers
    if len(run.sites) == 1:
        return {name: host(name, data) for name, data in run.sites.items()}, viewers
    parts = [data.train for _, data in sorted(run.sites.items()) if len(data.train)]
    pooled = Splits(Pooled(parts), Empty(), Empty())
    viewers |= {name: host(name, Splits(Empty(), data.val, data.test)) for name, data in sorted(run.sites.items())}
    return {POOLED: host(POOLED, pooled)}, viewers
