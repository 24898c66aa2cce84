"""Open a finished run for attacks: its task, data, method, the server's last state and every participant's models.

The task is the learning problem: network, loss, optimizer, metrics. An exported bundle is a MONAI bundle with a final
model that the run wrote for a site or for all sites. A kept round is a round whose global model the run saved (setting
``keep_rounds``).

Nothing is written. The data are located through ``run.json`` and compared with the digests recorded there. The task is
rebuilt from the exported bundles (`medfl_attacks.rebuild_task`).
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

from torch import nn

from medfl.bundle.exported import CONFIG, WEIGHTS, build_network
from medfl.contract import Method, Model, Server, Site, State
from medfl.data.pooled import all_targets
from medfl.data.sites import SiteData, load_global, load_sites
from medfl.engine.journal import Commit
from medfl.engine.runs.lifecycle import RunViewer
from medfl.engine.runs.records import RunRecord, read_run
from medfl.engine.runs.weights_file import read_state_dict
from medfl.engine.site import Splits
from medfl.errors import DataError, SettingsError, StoreError
from medfl.plugins import Registry, load_plugins
from medfl.settings import Settings
from medfl.task import ImageScale, Task
from medfl.training.devices import pick_device
from medfl.types import GLOBAL, Dataset, PathLike
from medfl.utils.text import first_names
from medfl_attacks.rebuild_task import read_bundle, rebuild_task

if TYPE_CHECKING:
    from medfl.privacy.released import ReleasedImages


logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class ExportedModel(Model):
    """A model read from an exported bundle, with the function that builds its network.

    Attributes:
        build: Function that builds the network, without weights.
    """

    build: Callable[[], nn.Module]


@dataclass
class OpenedRun:
    """A finished run with everything that an attack needs. Built by `open_run`, or directly for a run without a bundle.

    Attributes:
        folder: Run folder.
        name: Name of the method.
        method: The method, with its settings in the run.
        task: The learning problem as the method sees it, on the device of the attack. `site_task` returns the task with
            a site's own loss.
        settings: Settings of the run.
        sites: Maps each site to its data, including the test set.
        server_test: Test set of the server, or None.
        classes: Names of the classes; empty if classes have numbers only.
        registry: Plugins that are loaded for the attack.
    """

    folder: Path
    name: str
    method: Method
    task: Task
    settings: Settings
    sites: Mapping[str, Splits]
    server_test: Dataset | None = None
    classes: tuple[str, ...] = ()
    registry: Registry = field(default_factory=load_plugins, repr=False)
    _predictors: dict[str, nn.Module] = field(default_factory=dict, repr=False)

    @cached_property
    def viewer(self) -> RunViewer:
        """Reader of the run folder's stored states; it never writes."""
        return RunViewer(self.folder)

    @cached_property
    def server(self) -> Server:
        """The method's view of the server with its last state.

        It can also read the files (blobs) that the server stored in the run.

        Raises:
            StoreError: If the state was removed or is damaged.
        """
        return self.viewer.server(*self._last_commit, self.task, self.settings)

    def released(self) -> ReleasedImages | None:
        """Return the images that the sites sent each other in the run, or None if the method sends no images.

        Raises:
            StoreError: If the server's state, which contains the images, was removed or is damaged.
        """
        from medfl.privacy.released import ReleasesImages

        return self.method.released(self.server) if isinstance(self.method, ReleasesImages) else None

    @property
    def has_state(self) -> bool:
        """True if the run folder still has the state of server and sites, which `medfl clean` removes."""
        return self.viewer.has_state

    def global_model(self, round_: int | None = None) -> Model | None:
        """Return the server's final model, or its model after a kept round; None if the method has no global model.

        Args:
            round_: Round whose model was kept (setting `keep_rounds`), or None for the final model.

        Raises:
            StoreError: If the model after that round was not kept, or is damaged.
        """
        if round_ is not None:
            return self.viewer.kept_model(round_)
        if self.has_state:
            return self.method.models(self._exported_server()).get("global")
        return _read_exported_model(self.folder / "global")

    def site_models(self) -> dict[str, Model]:
        """Return the model of each site: the personal model if the site has one, else the global model.

        Returns:
            Mapping from site name to model; sites without a model are left out.
        """
        models = {name: self._site_model(name) for name in sorted(self.sites)}
        return {name: model for name, model in models.items() if model is not None}

    def model(self) -> nn.Module:
        """Return the global model as a network in evaluation mode, on the task's device.

        The network maps normalised images to logits.

        Raises:
            StoreError: If the run has no global model.
        """
        model = self.global_model()
        if model is None:
            raise StoreError(
                "no_global_model",
                f"The run in '{self.folder}' has no global model: with method '{self.name}' every site has its own. "
                "Attack the models of the sites with --targets sites.",
                path=self.folder,
                method=self.name,
            )
        return self.predictor(model, "")

    def models(self) -> dict[str, nn.Module]:
        """Return the model of each site as a network in evaluation mode, by site name.

        The model is the personal model if the site has one, else the global model.
        """
        return {name: self.predictor(model, name) for name, model in self.site_models().items()}

    def predictor(self, model: Model, name: str = "") -> nn.Module:
        """Build the network of a model of this run, with weights, in evaluation mode; cache the network.

        Args:
            model: The model.
            name: Key of the cache: a site, a round, or empty for the global model.
        """
        if name not in self._predictors:
            if isinstance(model, ExportedModel):
                task = self.task.with_network(model.network, model.build)
                self._predictors[name] = task.load(model.tensors, model.network).eval()
            else:
                self._predictors[name] = self.method.predictor(self.task, [model]).eval()
        return self._predictors[name]

    def site_task(self, name: str) -> Task:
        """Return the task as a site trained it.

        If the setting `balance` is ``loss``, its loss has the site's class weights.
        """
        return (
            self.task.with_class_weights(all_targets(self.sites[name].train))
            if self.settings.balance == "loss"
            else self.task
        )

    def site(self, name: str) -> Site:
        """Return the method's view of a site after the round whose models were exported.

        The view lacks the site's secret, from which a site draws its noise.
        """
        site = self.viewer.site(name, self._exported_commit[1], self.site_task(name), self.settings)
        site.train, site.val = self.sites[name].train, self.sites[name].val
        site.published = self.method.publish(self._exported_server())
        return site

    def _exported_server(self) -> Server:
        """Return the server after the round whose models are exported."""
        return self.viewer.server(*self._exported_commit, self.task, self.settings)

    def _site_model(self, name: str) -> Model | None:
        """Return the model of a site, or None if the site has none."""
        if not self.has_state:
            return _read_exported_model(self.folder / "sites" / name)
        models = self.method.models(self.site(name))
        return models.get("personal") or models.get("global") or next(iter(models.values()), None)

    @cached_property
    def _exported_commit(self) -> tuple[State, Commit]:
        """The server's state and commit of the round whose models are exported."""
        best = self._last_commit[1].best
        return self.viewer.at(best.step) if self.settings.best_round and best.round else self._last_commit

    @cached_property
    def _last_commit(self) -> tuple[State, Commit]:
        """The server's last state and commit; raise StoreError if the run was cleaned."""
        latest = self.viewer.latest()
        if latest is None:
            raise StoreError(
                "cleaned_run",
                f"The run in '{self.folder}' was cleaned: the state of its server was removed, with the images that "
                "its sites released. Run it again in another folder, or choose an attack that needs only its models.",
                path=self.folder,
            )
        return latest


def open_run(
    folder: PathLike, device: str = "cpu", data: PathLike | None = None, plugins: Sequence[PathLike] = ()
) -> OpenedRun:
    """Open a finished run. The configuration of its exported bundle is evaluated, as when MONAI runs the bundle.

    Args:
        folder: Run folder.
        device: Device to compute on: ``auto``, ``cpu`` or ``cuda:N``.
        data: Current folder of the run's data; None means the recorded place, relative to the run folder.
        plugins: Plugin files to load. Plugin files named by ``run.json`` are not loaded, because a run folder may come
            from an untrusted source.

    Raises:
        StoreError: If the folder contains no run or no models, or the task can't be rebuilt.
        DataError: If the data have moved or changed.
        SettingsError: If the task is not a classification into exclusive classes, the run harmonised features, or the
            device is not available.
        PluginError: If the run's method can't be found.
    """
    folder, data = Path(folder), None if data is None else Path(data)
    record = read_run(folder)
    _check_objective(record)
    where = pick_device(device)
    if record.settings.harmonise_features != "none":
        raise SettingsError(
            "harmonised_features",
            f"The run in '{folder}' harmonised features: its models were trained on features that each site mapped in "
            "another way, and attacks give images to them. Attack a run with --harmonise-features none.",
            path=folder,
        )
    if record.summary is None:
        raise StoreError(
            "unfinished_run",
            f"The run in '{folder}' is not finished: it has no model to attack. Run its command again to finish it.",
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
    task = dataclasses.replace(task, device=where, scale=ImageScale(first.shape, mean, std, first.image_features))
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
        server_test=server.test if server is not None and len(server.test) else None,
        classes=first.classes,
        registry=registry,
    )


def _warn_of_plugins(record: RunRecord, registry: Registry) -> None:
    """Log a warning that names the run's plugin files that are not loaded now."""
    origins = record.run.provenance.plugins
    files = sorted(file for name, file in origins.items() if file.endswith(".py") and name not in registry.plugins)
    if files:
        logger.warning(
            "The run used the plugin files %s, which are not loaded now: a run folder may come from an untrusted "
            "source. Load a file that you trust with --plugin FILE.",
            first_names(files),
        )


def _check_objective(record: RunRecord) -> None:
    """Raise SettingsError unless the run's networks return one logit for each of several exclusive classes."""
    objective = record.objective
    if not objective.has_class_labels or objective.outputs != objective.classes:
        raise SettingsError(
            "objective_not_supported",
            f"The run in '{record.folder}' has the objective '{objective.name}'. Attacks need one class for each "
            "image, and networks with one logit for each class: attack a run with the objective 'multiclass', or "
            "'binary' with 2 logits.",
            path=record.folder,
            objective=objective.name,
        )


def _find_data(record: RunRecord, data: Path | None) -> Path:
    """Return the folder of the run's data; raise StoreError if it was not recorded, DataError if it does not exist."""
    folder = data if data is not None else record.data_folder
    if folder is None:
        raise StoreError(
            "unknown_data_folder",
            f"The run in '{record.folder}' does not record the folder of its data. Give the folder with --data.",
            path=record.folder,
        )
    if not folder.is_dir():
        raise DataError(
            "missing_folder",
            f"The data of the run in '{record.folder}' have moved: expected them in '{folder}'. Move them back, or "
            "give their folder with --data.",
            path=folder,
            run=record.folder,
        )
    return folder


def _check_data(record: RunRecord, parts: list[SiteData], folder: Path) -> None:
    """Raise DataError if the data differ from the run's data: members and non-members would be mixed up."""
    before = record.run.provenance.data.sites
    changed = [part.name for part in parts if part.name in before and before[part.name] != part.digest]
    if GLOBAL in before and GLOBAL not in {part.name for part in parts}:
        changed.append(GLOBAL)
    if changed:
        raise DataError(
            "other_data",
            f"The data in '{folder}' are not those of the run in '{record.folder}': the digests of "
            f"{', '.join(changed)} differ, so it is unknown which images the run was trained on. Give the "
            "folder of the run's data with --data.",
            path=folder,
            run=record.folder,
            parts=changed,
        )


def _read_exported_model(bundle: Path) -> ExportedModel | None:
    """Read the model of an exported bundle; return None if the folder has no model."""
    weights = bundle / WEIGHTS
    if not weights.is_file():
        return None
    try:
        config = json.loads((bundle / CONFIG).read_text(encoding="utf-8"))
        return ExportedModel(config["network_name"], read_state_dict(weights), build=partial(build_network, bundle))
    except (SettingsError, OSError, ValueError, KeyError, RuntimeError) as error:
        raise StoreError(
            "unreadable_bundle",
            f"expected a model in the exported bundle '{bundle}': {error}. Restore the bundle, or run again.",
            path=bundle,
        ) from None
