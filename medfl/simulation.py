"""A whole federation on this machine: checks, the run folder, the local carrier, the loop, the summary."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn
from torch.utils.data import ConcatDataset

import medfl
from medfl import streams, wire
from medfl.carriers.local import LocalCarrier
from medfl.contract import SERVER, Dataset, Limit, Meta, Method, Model, Parcel, Tensors
from medfl.errors import DataError, SettingsError, StoreError
from medfl.evaluation import Row
from medfl.federation import Federation, Outcome
from medfl.filters import check_method
from medfl.metrics import check_metrics
from medfl.networks.norms import has_batch_norm
from medfl.privacy.gaussian import describe
from medfl.settings import Execution, Settings
from medfl.siteside import MethodFactory, SiteData, SiteHost
from medfl.store import Inbox, only_writer, write_json
from medfl.task import Task

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
        public: Public data for the holders named in `public_for`, or None.
        public_for: Holders that see `public`.
        execution: Where and how to compute.
        method_args: The method's settings as given, for the record.
        data_digest: Identifies the data, for the record.
        origins: Setting to where it came from, for the record.
        plugins: Plugin names and versions, for the record.
        absent: Tells whether a site is absent in a step.
        on_round: Called after each round.
    """

    method: str
    make_method: MethodFactory
    task: Task
    settings: Settings
    sites: Mapping[str, SiteData]
    folder: Path
    global_test: Dataset | None = None
    public: Dataset | None = None
    public_for: tuple[str, ...] = ()
    execution: Execution = field(default_factory=Execution)
    method_args: Meta = field(default_factory=dict)
    data_digest: str = ""
    origins: Meta = field(default_factory=dict)
    plugins: list[str] = field(default_factory=list)
    absent: Callable[[str, int], bool] = lambda site, step: False
    on_round: Callable[[int, list[Row]], None] = lambda round_, rows: None


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
        _check_folder(run)
        hosts, viewers = _hosts(run, method)
        carrier = LocalCarrier(
            hosts, run.make_method, viewers, run.execution.workers, run.execution.threads, run.absent
        )
        try:
            public = run.public if SERVER in run.public_for else None
            federation = Federation(run.make_method, carrier, run.task, run.settings, run.folder, public, run.on_round)
            outcome = federation.run()
        finally:
            carrier.close()
        summary = summarise(run.folder / "metrics.csv", run.method, outcome)
        write_json(run.folder / "summary.json", summary)
    takers = hosts if not method.pools_data else {}
    models = {
        name: host.models(run.make_method(), outcome.published, outcome.step, outcome.rounds)
        for name, host in takers.items()
    }
    return Result(outcome, models or dict.fromkeys(run.sites, outcome.models), summary)


# ---- checks before step 0


def check(run: Run, method: Method) -> None:
    """Refuse an impossible combination, and warn of one that is another method or leaves a site out."""
    check_metrics(run.task.metrics)
    check_method(method, run.settings, run.method)
    for name in run.sites:
        taken = name in (SERVER, "global") or (name == POOLED and len(run.sites) > 1)
        if taken or "/" in name or name.startswith("."):
            raise SettingsError(
                f"A site can't be called '{name}': that name has a meaning of its own. Rename its folder."
            )
    unknown = sorted(set(run.settings.networks) - set(run.sites))
    if unknown:
        raise SettingsError(f"'networks' names sites that are not there: {unknown}. Sites: {sorted(run.sites)}.")
    used = sorted({run.settings.networks.get(name, run.task.network) for name in run.sites})
    if len(used) > 1 and not method.unlike_networks:
        raise SettingsError(
            f"Method '{run.method}' needs one architecture at all sites; got {used}. Give all sites the same network, "
            "or choose a method that allows unlike ones (`medfl list methods`)."
        )
    if method.needs_public and run.public is None:
        raise SettingsError(f"Method '{run.method}' needs public data; name their folder with --public.")
    if run.settings.privacy is not None:
        logger.info("%s", describe(run.settings.privacy, run.settings.rounds))
        private = sorted(key for key, kind in method.tells.items() if kind == "private")
        if private:
            logger.warning("Privacy: %s stay at the sites; replies weigh alike where they would.", ", ".join(private))
    _check_labels(run)
    _warn_of_limits(run, method, [run.task.build(name) for name in used])


def _check_labels(run: Run) -> None:
    empty = [name for name, data in sorted(run.sites.items()) if not len(data.train)]
    if len(empty) == len(run.sites):
        raise DataError(f"No site has training data: expected at least one image at one of {sorted(run.sites)}.")
    if empty:
        logger.warning("Without training data, never asked to train: %s.", ", ".join(empty))
    for name, data in sorted(run.sites.items()):
        for split in ("train", "val", "test"):
            labels = getattr(data, split).labels
            wrong = int(((labels < 0) | (labels >= run.task.num_classes)).sum()) if len(labels) else 0
            if wrong:
                raise DataError(
                    f"Site '{name}', split '{split}': {wrong} labels are out of range, expected 0 to "
                    f"{run.task.num_classes - 1}, got up to {int(labels.max())} and down to {int(labels.min())}. "
                    "Check num_classes and the site's datalist."
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


# ---- the run folder


def _check_folder(run: Run) -> None:
    """Write run.json, or refuse a folder of another run; more rounds continue it."""
    identity = _identity(run)
    path = run.folder / "run.json"
    content = {
        "identity": identity,
        "rounds": run.settings.rounds,
        "execution": run.execution.model_dump() | {"device": run.task.device},
        "versions": _versions(),
        "plugins": run.plugins,
        "origins": run.origins,
    }
    if path.exists():
        try:
            before = json.loads(path.read_text())
        except ValueError as error:
            raise StoreError(
                f"'{path}' is damaged ({error}). Put it back, or start the run in a new folder."
            ) from error
        _compare(before["identity"], identity, run.folder)
        if run.settings.rounds < before["rounds"]:
            raise StoreError(
                f"The run folder '{run.folder}' was started for {before['rounds']} rounds, got {run.settings.rounds}: "
                "more are allowed and continue the run, fewer are not. Name another folder with --output_dir."
            )
        if run.settings.privacy is not None and run.settings.rounds != before["rounds"]:
            raise StoreError(
                f"The run folder '{run.folder}' spread its privacy budget over {before['rounds']} rounds, got "
                f"{run.settings.rounds}: more rounds would exceed the budget. Name another folder with --output_dir."
            )
        for part in ("execution", "versions"):
            if before[part] != content[part]:
                logger.warning(
                    "This run was started with other %s; its last bits may differ from an unbroken run.", part
                )
    write_json(path, content)


def _identity(run: Run) -> Meta:
    settings = run.settings.model_dump(mode="json", exclude={"rounds"})
    networks = {name: _shape(run.task, name) for name in sorted({run.task.network, *run.settings.networks.values()})}
    optimizer = run.task.optimizer([nn.Parameter(torch.zeros(1))])
    return {
        "method": run.method,
        "method_args": json.loads(json.dumps(run.method_args)),
        "settings": settings,
        "sites": sorted(run.sites),
        "data": run.data_digest,
        "task": {
            "networks": networks,
            "loss": _loss(run.task.loss),
            "optimizer": type(optimizer).__name__ + json.dumps(optimizer.defaults, default=str, sort_keys=True),
            "num_classes": run.task.num_classes,
            "metrics": list(run.task.metrics),
        },
    }


def _loss(loss: nn.Module) -> Meta:
    """What a loss is: its classes and plain attributes, which its repr often leaves out, and its tensors."""
    parts = [(path + "." if path else "", part) for path, part in loss.named_modules()]
    facts = {p + k: v for p, part in parts for k, v in vars(part).items() if isinstance(v, bool | int | float | str)}
    return facts | {"is": repr(loss), "tensors": wire.digest(dict(loss.state_dict()))[:16]}


def _shape(task: Task, network: str) -> str:
    """A hash of a network's tensor names and shapes."""
    with torch.random.fork_rng(devices=[]):
        shapes = {name: list(tensor.shape) for name, tensor in task.build(network).state_dict().items()}
    return hashlib.sha256(json.dumps(shapes).encode()).hexdigest()[:16]


def _compare(before: Meta, now: Meta, folder: Path, path: str = "") -> None:
    for key in sorted(before.keys() | now.keys()):
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            _compare(old, new, folder, f"{path}{key}.")
        elif old != new:
            raise StoreError(
                f"The run folder '{folder}' holds a run with other settings: {path}{key} was {old!r}, now {new!r}. "
                "Name another folder with --output_dir, or give the settings of that run."
            )


def _versions() -> Meta:
    return {
        "medfl": medfl.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }


# ---- sites


class Pooled:
    """Several data sets as one, addressed by row; for methods that pool."""

    def __init__(self, parts: list[Dataset]) -> None:
        self._parts = parts
        self._ends = ConcatDataset.cumsum(parts)
        self.labels = torch.cat([part.labels for part in parts])

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Images and labels of rows over all parts, in the order asked for."""
        owner = torch.bucketize(rows, torch.tensor(self._ends), right=True)
        found = []
        order = []
        for index in owner.unique().tolist():
            places = (owner == index).nonzero(as_tuple=True)[0]
            start = self._ends[index - 1] if index else 0
            found.append(self._parts[index].batch(rows[places] - start))
            order.append(places)
        back = torch.cat(order).argsort()
        images = torch.cat([images for images, _ in found])[back]
        return images, torch.cat([labels for _, labels in found])[back]


class Empty:
    """A split without images."""

    def __init__(self) -> None:
        self.labels = torch.empty(0, dtype=torch.int64)

    def __len__(self) -> int:
        return 0

    def batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """There is nothing to take."""
        raise IndexError("this split has no images")


def _hosts(run: Run, method: Method) -> tuple[dict[str, SiteHost], dict[str, SiteHost]]:
    """Sites that train, and holders of test data only."""
    names = sorted(run.sites)
    run_id = str(streams.seed_of("run", run.settings.seed, run.method, *sorted(run.sites)))

    def host(name: str, data: SiteData) -> SiteHost:
        def post(step: int, parcel: Parcel) -> None:
            Inbox(run.folder / "state" / parcel.to).post(step, name, parcel)

        public = run.public if name in run.public_for else None
        return SiteHost(name, data, run.folder / "state" / name, run.task, run.settings, run_id, post, public, names)

    viewers = {}
    if run.global_test is not None:
        viewers["global"] = host("global", SiteData(Empty(), Empty(), run.global_test))
    if not method.pools_data:
        return {name: host(name, data) for name, data in sorted(run.sites.items())}, viewers
    if len(run.sites) == 1:
        return {name: host(name, data) for name, data in run.sites.items()}, viewers
    parts = [data.train for _, data in sorted(run.sites.items()) if len(data.train)]
    pooled = SiteData(Pooled(parts), Empty(), Empty())
    viewers |= {name: host(name, SiteData(Empty(), data.val, data.test)) for name, data in sorted(run.sites.items())}
    return {POOLED: host(POOLED, pooled)}, viewers


# ---- the summary


def summarise(csv: Path, method: str, outcome: Outcome) -> Meta:
    """The last round's scores: per site, mean over sites, worst site, and the global test set."""
    table = (
        pd.read_csv(csv, dtype={"site": str}, keep_default_na=False, na_values={"value": ["nan", ""]})
        if csv.exists()
        else pd.DataFrame(columns=list(Row._fields))
    )
    scores = table[(table["moment"] == "aggregated") & table["split"].isin(["val", "test"])]
    scores = scores[(scores["round"] == scores["round"].max()) & ~scores["model"].str.contains("@")]
    results: Meta = {}
    for (model, split, metric), group in scores.groupby(["model", "split", "metric"]):
        values = dict(zip(group["site"], group["value"], strict=True))
        pooled = values.pop("global", None)
        found = [value for value in values.values() if not math.isnan(value)]
        results.setdefault(str(model), {}).setdefault(str(split), {})[str(metric)] = {
            "mean": sum(found) / len(found) if found else None,
            "worst": min(found) if found else None,
            "sites": {site: _number(value) for site, value in values.items()},
            "global_test": _number(pooled),
        }
    return {
        "method": method,
        "status": outcome.status,
        "reason": outcome.reason,
        "rounds": outcome.rounds,
        "evaluated_round": None if scores.empty else int(scores["round"].max()),
        "scores": results,
    }


def _number(value: Any) -> float | None:
    return None if value is None or math.isnan(value) else float(value)


def tensors_equal(left: Tensors, right: Tensors) -> bool:
    """Whether two sets of tensors have the same names, types, shapes and bits."""
    return left.keys() == right.keys() and all(
        a.dtype == right[name].dtype
        and a.shape == right[name].shape
        and torch.equal(
            a.contiguous().reshape(-1).view(torch.uint8), right[name].contiguous().reshape(-1).view(torch.uint8)
        )
        for name, a in left.items()
    )
