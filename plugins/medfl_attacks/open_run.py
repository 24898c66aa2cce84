"""A finished run, opened for reading: its task, data, method, the server's last state and every participant's models.

Nothing is written. The data are found through ``run.json`` and compared with what the run was given; the task comes
from the bundles that the participants took home (`medfl_attacks.rebuild_task`).
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from medfl.bundle.exported import CONFIG, WEIGHTS, build_network
from medfl.contract import Method, Model, Server, Site, State
from medfl.data.pooled import all_targets
from medfl.data.sites import SiteData, load_global, load_sites
from medfl.engine.journal import Commit
from medfl.engine.runs.lifecycle import RunViewer
from medfl.engine.runs.records import RunRecord, read_run
from medfl.engine.site import Splits
from medfl.errors import DataError, SettingsError, StoreError
from medfl.plugins import Registry, load_plugins
from medfl.settings import Settings
from medfl.task import Scale, Task
from medfl.training.loop import pick_device
from medfl.types import GLOBAL, Dataset, PathLike
from medfl.utils.text import first_names
from medfl_attacks.rebuild_task import read_bundle, rebuild_task

if TYPE_CHECKING:
    from medfl.privacy.released import Released


logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class ExportedModel(Model):
    """A model from a bundle that was taken home, which says itself how its network is built."""

    build: Callable[[], nn.Module]


@dataclass
class OpenedRun:
    """A run and all that an attack needs of it. Made by `open_run`, or by hand for a run without a bundle.

    Attributes:
        folder: The run folder.
        name: Name of the method.
        method: The method, with the run's settings for it.
        task: The learning problem, as the method sees it; its `device` is that of the attack. A site's own loss:
            `site_task`.
        settings: The run's settings.
        sites: Site to its data; `test` too.
        global_test: The test set that the server holds, or None.
        classes: Names of the classes; empty means their numbers.
        registry: All plugins that the run had.
    """

    folder: Path
    name: str
    method: Method
    task: Task
    settings: Settings
    sites: Mapping[str, Splits]
    global_test: Dataset | None = None
    classes: tuple[str, ...] = ()
    registry: Registry = field(default_factory=load_plugins, repr=False)
    _predictors: dict[str, nn.Module] = field(default_factory=dict, repr=False)

    @cached_property
    def viewer(self) -> RunViewer:
        """Looks into the run folder."""
        return RunViewer(self.folder)

    @cached_property
    def server(self) -> Server:
        """The server with its last state; `Server.blob` reads what it kept, so `method.released(server)` works.

        Raises:
            StoreError: If its state is gone or damaged.
        """
        return self.viewer.server(*self._committed, self.task, self.settings)

    def released(self) -> Released | None:
        """What images the run's sites have sent each other; None for a method that sends none.

        Raises:
            StoreError: If the server's state, which holds them, is gone or damaged.
        """
        from medfl.privacy.released import ReleasesImages

        return self.method.released(self.server) if isinstance(self.method, ReleasesImages) else None

    @property
    def has_state(self) -> bool:
        """Whether the state is there that the run was computed with; `medfl clean` removes it."""
        return self.viewer.has_state

    def global_model(self, round_: int | None = None) -> Model | None:
        """The server's model at the end, or after a round that was kept; None for a method without one.

        Raises:
            StoreError: If the model after that round was not kept, or is damaged.
        """
        if round_ is not None:
            return self.viewer.kept_model(round_)
        if self.has_state:
            return self.method.models(self._server_taken()).get("global")
        return _taken_home(self.folder / "global")

    def site_models(self) -> dict[str, Model]:
        """Each site's own model: the personal one where it has one, else the global one."""
        models = {name: self._model_of(name) for name in sorted(self.sites)}
        return {name: model for name, model in models.items() if model is not None}

    def model(self) -> nn.Module:
        """The global model in evaluation mode, on the task's device: images as networks see them in, logits out.

        Raises:
            StoreError: If the run has no global model.
        """
        model = self.global_model()
        if model is None:
            raise StoreError(
                "no_global_model",
                f"The run in '{self.folder}' has no global model: with method '{self.name}' every site has its own. "
                "Attack those with --targets sites.",
                path=self.folder,
                method=self.name,
            )
        return self.predictor(model, "")

    def models(self) -> dict[str, nn.Module]:
        """Each site's model in evaluation mode, by site (`site_models`)."""
        return {name: self.predictor(model, name) for name, model in self.site_models().items()}

    def predictor(self, model: Model, name: str = "") -> nn.Module:
        """A model of this run as a network in evaluation mode; kept under a name."""
        if name not in self._predictors:
            if isinstance(model, ExportedModel):
                task = self.task.with_network(model.network, model.build)
                self._predictors[name] = task.load(model.tensors, model.network).eval()
            else:
                self._predictors[name] = self.method.predictor(self.task, [model]).eval()
        return self._predictors[name]

    def site_task(self, name: str) -> Task:
        """The task as a site trains it: with its class weights in the loss, where the run asked for that."""
        return self.task.weighted(all_targets(self.sites[name].train)) if self.settings.balance == "loss" else self.task

    def site(self, name: str) -> Site:
        """A method's view of a site after the round whose models are taken home, without its secret."""
        site = self.viewer.site(name, self._taken[1], self.site_task(name), self.settings)
        site.train, site.val = self.sites[name].train, self.sites[name].val
        site.published = self.method.publish(self._server_taken())
        return site

    def _server_taken(self) -> Server:
        return self.viewer.server(*self._taken, self.task, self.settings)

    def _model_of(self, name: str) -> Model | None:
        if not self.has_state:
            return _taken_home(self.folder / "sites" / name)
        models = self.method.models(self.site(name))
        return models.get("personal") or models.get("global") or next(iter(models.values()), None)

    @cached_property
    def _taken(self) -> tuple[State, Commit]:
        """The server's commit of the round whose models are taken home."""
        best = self._committed[1].best
        return self.viewer.at(best.step) if self.settings.best_round and best.round else self._committed

    @cached_property
    def _committed(self) -> tuple[State, Commit]:
        latest = self.viewer.latest()
        if latest is None:
            raise StoreError(
                "cleaned_run",
                f"The run in '{self.folder}' was cleaned: the state of its server is gone, and with it what its sites "
                "have released. Run it again in another folder, or attack what needs its models only.",
                path=self.folder,
            )
        return latest


def open_run(
    folder: PathLike, device: str = "cpu", data: PathLike | None = None, plugins: Sequence[PathLike] = ()
) -> OpenedRun:
    """Open a finished run. What its bundles say is evaluated, as when they are run.

    Args:
        folder: The run folder.
        device: Where to compute: ``auto``, ``cpu`` or ``cuda:N``.
        data: Where its data are now; None means where they were, seen from the run folder.
        plugins: Plugin files to load. Those that ``run.json`` names are not: a run folder may come from anybody.

    Raises:
        StoreError: If it holds no run or one without models, or its task can't be rebuilt.
        DataError: If its data have moved or changed.
        SettingsError: If its cases are of no class, or the device is not there.
        PluginError: If its method can't be found.
    """
    folder, data = Path(folder), None if data is None else Path(data)
    record = read_run(folder)
    _check_objective(record)
    where = pick_device(device)
    if record.summary is None:
        raise StoreError(
            "unfinished_run",
            f"The run in '{folder}' is not finished: it has no model that can be attacked. Give its command again to "
            "finish it.",
            path=folder,
        )
    data_folder = _find_data(record, data)
    settings = record.settings
    parser, _ = read_bundle(record, data_folder)
    task = rebuild_task(parser, record, settings, data_folder)
    mean, std = (tuple(parser.get_parsed_content(name, default=[0.5])) for name in ("mean", "std"))
    sites = load_sites(data_folder, task.objective, mean, std, record.sites)
    server = load_global(data_folder, task.objective, mean, std)
    _check_data(record, [*sites.values(), *([server] if server is not None else [])], data_folder)
    first = next(iter(sites.values()))
    task = dataclasses.replace(task, device=where, scale=Scale(first.shape, mean, std))
    registry = load_plugins(files=[Path(plugin) for plugin in plugins])
    _warn_of_plugins(record, registry)
    method = registry.make_method(record.method, record.run.identity.method_args)
    return OpenedRun(
        folder=folder,
        name=record.method,
        method=method,
        task=method.task_of(task),
        settings=settings,
        sites={name: Splits(site.train, site.val, site.test, site.digest) for name, site in sites.items()},
        global_test=server.test if server is not None and len(server.test) else None,
        classes=first.classes,
        registry=registry,
    )


def _warn_of_plugins(record: RunRecord, registry: Registry) -> None:
    """Say which plugin files the run had that are not loaded now."""
    origins = record.run.provenance.plugins
    files = sorted(file for name, file in origins.items() if file.endswith(".py") and name not in registry.plugins)
    if files:
        why = "none is loaded because a run folder names it. Give one that you trust: --plugin FILE"
        logger.warning("The run had the plugin files %s; %s.", first_names(files), why)


def _check_objective(record: RunRecord) -> None:
    """Refuse a run of which no attack can ask the probability of each class."""
    objective = record.objective
    if not objective.has_class_labels or objective.outputs != objective.classes:
        raise SettingsError(
            "objective_not_supported",
            f"The run in '{record.folder}' learned the objective '{objective.name}'. Attacks need cases that are each "
            "of one class, and networks that put out a number for each class: attack a run of the objective "
            "'multiclass', or of 'binary' with 2 logits.",
            path=record.folder,
            objective=objective.name,
        )


def _find_data(record: RunRecord, data: Path | None) -> Path:
    folder = data if data is not None else record.data_folder
    if folder is None:
        raise StoreError(
            "unknown_data_folder",
            f"The run in '{record.folder}' does not say where its data are. Name their folder with --data.",
            path=record.folder,
        )
    if not folder.is_dir():
        raise DataError(
            "missing_folder",
            f"The data of the run in '{record.folder}' have moved: expected them at '{folder}'. Put them back, or name "
            "their folder with --data.",
            path=folder,
            run=record.folder,
        )
    return folder


def _check_data(record: RunRecord, parts: list[SiteData], folder: Path) -> None:
    """Refuse other data than the run's: members and others would be mixed up."""
    before = record.run.provenance.data.sites
    unlike = [part.name for part in parts if part.name in before and before[part.name] != part.digest]
    if GLOBAL in before and GLOBAL not in {part.name for part in parts}:
        unlike.append(GLOBAL)
    if unlike:
        raise DataError(
            "other_data",
            f"The data in '{folder}' are not those of the run in '{record.folder}': the digests of {', '.join(unlike)} "
            "differ, so it is not known which images the run was trained on. Name the folder of its own data with "
            "--data.",
            path=folder,
            run=record.folder,
            parts=unlike,
        )


def _taken_home(home: Path) -> ExportedModel | None:
    """The model in a bundle, or None without one."""
    weights = home / WEIGHTS
    if not weights.is_file():
        return None
    try:
        config = json.loads((home / CONFIG).read_text(encoding="utf-8"))
        tensors = torch.load(weights, map_location="cpu", weights_only=True)
        return ExportedModel(config["network_name"], tensors, build=partial(build_network, home))
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise StoreError(
            "unreadable_bundle", f"expected a model in '{home}': {error}. Put the bundle back, or run again.", path=home
        ) from None
