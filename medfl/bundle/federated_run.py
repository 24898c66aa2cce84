"""The run object of a bundle's ``federate.json``: read data and settings, run the federation, write the run folder."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from medfl.bundle.data_fit import check_harmonisation
from medfl.bundle.option_checks import check_passed_over
from medfl.bundle.stock_features import read_tracking, warn_of_handlers
from medfl.data.cohort import Cohort
from medfl.data.label_map import LabelMap
from medfl.data.partition_file import check_unchanged, drawn_fold
from medfl.data.source import ArraySource, DataSource
from medfl.engine.adversaries.simulation import read_attackers
from medfl.engine.checks import check_names
from medfl.engine.evaluation import MetricRow
from medfl.engine.plan import MethodChoice
from medfl.engine.runs.console import ends_monai_command, round_progress, show_log, show_scores
from medfl.engine.runs.export import SiteExport
from medfl.engine.runs.features.feature_harmonisation import describe_harmonisation
from medfl.engine.runs.network_assignment import read_assignment
from medfl.engine.runs.provenance import bundle_values, setting_origins
from medfl.engine.runs.simulation import Callbacks, RunData, SimulatedRun, Simulation, SimulationResult, simulate
from medfl.engine.runs.site_bundles import export
from medfl.engine.runs.start_source import prepare_task, warn_of_normalisation
from medfl.engine.site import Splits
from medfl.errors import SettingsError, check_choice
from medfl.plugins import Registry, load_plugins
from medfl.privacy.policy import policy_of
from medfl.records.run_file import AssignedNetwork, DataOrigin, Provenance
from medfl.settings import Execution, Settings, read_settings
from medfl.task import ImageScale, Task
from medfl.training.devices import task_device, with_worker_devices
from medfl.types import PUBLIC, Meta
from medfl.utils.imports import refuse_other_distribution

logger = logging.getLogger(__name__)

LOCAL = "local"
"""Name of the backend that runs a federation on this machine. A backend runs the sites; plugins have further ones."""


class FederatedRun:
    """A federated run as a bundle's ``federate.json`` describes it.

    Args:
        task: Task of the bundle.
        bundle_root: Folder of the bundle.
        dataset_dir: Folder with one folder for each site, each with a ``datalist.json``.
        output_dir: Run folder.
        method: Name of the method.
        method_args: Settings of the method.
        sites: Names of the sites that take part; None takes all in `dataset_dir`.
        mean: Mean of each channel of the images after scaling to [0, 1].
        std: Standard deviation of each channel after this scaling.
        plugins: Path of a plugin file to load, or several paths.
        disabled_plugins: Names of plugins not to load.
        network_assignment: Rule that decides which network each site trains: its ``name``, and its options
            (`medfl.engine.runs.network_assignment`). With None only the setting `networks_by_site` decides, which takes
            precedence in any case.
        public: Folder with public data, for methods that need them. The server trains on the training images; the test
            images score the server's model. A relative path starts at `dataset_dir`. None takes the folder
            `medfl.types.PUBLIC` there, if it exists.
        label_map: Maps the name of each class of the public data to the name of a class of the sites, or to None to
            leave its images out. None maps classes of equal names.
        allow_leaks: Kinds of leaks between splits to allow: ``subjects``, ``pixels``. The report names them.
        allow_changes: Names in ``partition.json`` of files that may have changed since ``medfl partition``. The report
            names them.
        given_by: Origin of the settings that differ from the bundle's, for the record in ``run.json``.
        tracked_config: Path of the configuration that MONAI wrote, if its ``--tracking`` is on.
        site_values: Values of the run to write into the configurations of the exported bundles.
        source: Reader of the sites' folders. None reads data lists and arrays, normalised by `mean` and `std`.
        backend: Name of the backend. This class runs ``local`` only; `medfl.workflow.FederatedWorkflow` submits the run
            to any other backend.
        settings: Maps the names of settings that differ from the defaults of `medfl.settings.Settings` and
            `medfl.settings.Execution` to their values.

    Attributes:
        on_round: Function that is called after each round with its number and rows of metrics; None by default.
        shows_progress: Whether to show the log, the rounds and the scores; True by default.
        settings: Settings of the run (`medfl.settings.Settings`) that differ from their defaults.
        execution: Settings of the execution on this machine (`medfl.settings.Execution`), such as the number of
            workers, that differ from their defaults.
        tracking: Settings of MONAI's experiment tracking by name; empty if it is off.
        disabled: Names of plugins not to load.
    """

    def __init__(
        self,
        task: Task,
        bundle_root: str,
        dataset_dir: str,
        output_dir: str,
        method: str,
        method_args: Mapping[str, Any] | None = None,
        sites: Sequence[str] | None = None,
        mean: Sequence[float] = (0.5,),
        std: Sequence[float] = (0.5,),
        plugins: str | Sequence[str] = (),
        disabled_plugins: Sequence[str] = (),
        network_assignment: Mapping[str, Any] | None = None,
        public: str | None = None,
        label_map: LabelMap | None = None,
        allow_leaks: Sequence[str] = (),
        allow_changes: Sequence[str] = (),
        given_by: str = "command line",
        tracked_config: str | bool | None = None,
        site_values: Meta | None = None,
        source: DataSource | None = None,
        backend: str = "local",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(method_args, Mapping | None):
            raise SettingsError(
                "wrong_setting_type",
                "Expected the method's settings as --method-args.NAME value, or as --method-args \"{'NAME': value}\"; "
                f"got {method_args!r}.",
                setting="method_args",
                found=repr(method_args),
            )
        if isinstance(sites, str):
            raise SettingsError(
                "wrong_setting_type",
                f"Expected a list of sites, as --sites \"['{sites}']\"; got {sites!r}.",
                setting="sites",
                found=sites,
            )
        self.task, self.method, self.method_args = task, method, dict(method_args or {})
        self.bundle_root, self.dataset_dir, self.output_dir = Path(bundle_root), Path(dataset_dir), Path(output_dir)
        self.sites, self.mean, self.std = sites, tuple(mean), tuple(std)
        self.source = source or ArraySource(task.objective, self.mean, self.std)
        self.plugins = [plugins] if isinstance(plugins, str) else list(plugins)
        self.disabled = list(disabled_plugins)
        self.public = public or (PUBLIC if (self.dataset_dir / PUBLIC).is_dir() else None)
        self.label_map, self.network_assignment = label_map, network_assignment
        self.allow_leaks, self.allow_changes = list(allow_leaks), list(allow_changes)
        self.given_by, self.site_values = given_by, dict(site_values or {})
        self.backend = backend
        self.tracking = read_tracking(tracked_config, self.output_dir)
        self.on_round: Callable[[int, list[MetricRow]], object] | None = None
        self.shows_progress = True
        values = dict(settings or {})
        self.execution = {name: values.pop(name) for name in Execution.model_fields if name in values}
        self.settings = values

    def run(self) -> None:
        """Run the federation, write the summary and a bundle for each site, and print the scores. See `simulate`.

        Raises:
            MedflError: If settings, data, method or run folder are not valid. Under MONAI's own command the process
                exits with the message instead (`medfl.engine.runs.console.ends_monai_command`).
        """
        if self.shows_progress:
            show_log()
        with ends_monai_command():
            check_passed_over(sys.argv, sorted(self.bundle_root.glob("configs/*.json")))
            result = self.simulate()
            if self.shows_progress:
                show_scores(result.summary, self.task.metrics, self.output_dir)

    def simulate(self) -> SimulationResult:
        """Run the federation, write the bundles of the sites, and notify plugins, for example to write the report.

        Returns:
            Result of the run.

        Raises:
            MedflError: If settings, data, method or run folder are not valid.
        """
        refuse_other_distribution()
        registry = load_plugins(files=self.plugins, disabled=self.disabled)
        for problem in registry.problems:
            logger.warning("%s", problem)
        run = self._prepare(registry)
        where = {"run_folder": str(self.output_dir)}
        with contextlib.ExitStack() as stack:
            metric = self.task.metrics[0]
            show = stack.enter_context(round_progress(run.settings.rounds, metric)) if self.shows_progress else None

            def on_round(round_: int, rows: list[MetricRow]) -> None:
                for function in (show, self.on_round):
                    if function is not None:
                        function(round_, rows)
                registry.notify("medfl_round_ended", **where, round=round_, rows=[row._asdict() for row in rows])

            callbacks = dataclasses.replace(run.callbacks, on_round=on_round)
            result = simulate(dataclasses.replace(run, callbacks=callbacks))
        registry.notify("medfl_run_ended", **where, status=result.outcome.status)
        return result

    def _prepare(self, registry: Registry) -> SimulatedRun:
        """Check all settings, load the data, and return the run. It writes nothing."""
        self._check_backend(registry)
        method = registry.make_method(self.method, self.method_args)
        settings, execution = self._read_settings(registry)
        task = self._make_task(settings, execution, registry)
        bundle = bundle_values(self.bundle_root)
        warn_of_handlers(bundle)
        data = self.source.cohort(self.dataset_dir, execution, self.sites, self.public, self.label_map)
        test = [] if data.server is None else [data.server]
        check_harmonisation(self.bundle_root, [*data.sites.values(), *test], self.site_values)
        names = list(data.sites)
        execution = _limit_workers(execution, len(names))
        changes = check_unchanged(self.dataset_dir, data.parts, self.allow_changes, every_site=self.sites is None)
        assigned = self._assign_networks(registry, names, settings.seed)
        by_rule = {name: entry.network for name, entry in assigned.items()}
        settings = settings.model_copy(update={"networks_by_site": by_rule | settings.networks_by_site})
        leaks = self.source.check_leaks(
            self.dataset_dir, names, self.public, self.allow_leaks, open_test=execution.open_test
        )
        provenance = Provenance(
            settings=setting_origins(
                task,
                bundle,
                self.given_by,
                settings=settings,
                execution=execution,
                method=method,
                method_args=self.method_args,
            ),
            data=self._data_origin(data, changes, describe_harmonisation(data.first.image_reading, settings)),
            plugins=dict(sorted(registry.plugins.items())),
            assigned_networks=assigned,
        )
        return SimulatedRun(
            method=self._method_choice(registry),
            task=dataclasses.replace(
                task, scale=ImageScale(data.first.shape, self.mean, self.std, data.first.image_features)
            ),
            settings=settings,
            data=_run_data(data, leaks, self.dataset_dir),
            folder=self.output_dir,
            execution=execution,
            provenance=provenance,
            simulation=Simulation(attackers=read_attackers(settings.adversaries, registry)),
            callbacks=Callbacks(
                on_start=lambda: self._notify_start(registry, provenance),
                export=partial(export, site_export=self._site_export(data, provenance.data.harmonisation)),
                frees_space=True,
            ),
        )

    def _check_backend(self, registry: Registry) -> None:
        """Raise if the backend does not exist, or needs medfl's own workflow.

        Raises:
            SettingsError: If `backend` is not ``local``.
        """
        if self.backend == LOCAL:
            return
        check_choice("backend", self.backend, (LOCAL, *registry.backends))
        raise SettingsError(
            "unsupported_backend",
            f"The backend '{self.backend}' submits the run to other machines and needs medfl's own workflow: add "
            "--workflow_name medfl.workflow.FederatedWorkflow, or use `medfl federate submit`.",
            backend=self.backend,
        )

    def _read_settings(self, registry: Registry) -> tuple[Settings, Execution]:
        """Return the settings of the run and of its execution, checked.

        Raises:
            SettingsError: If a setting is unknown or not valid, or settings exclude each other.
        """
        execution = with_worker_devices(read_settings(Execution, self.execution, "the execution"))
        settings = read_settings(Settings, self.settings, "the run", also=Execution.model_fields)
        check_names(settings, registry)
        if policy_of(settings).is_private and not execution.open_test and self.source.weights is not None:
            raise SettingsError(
                "incompatible_settings",
                "Without its test cases, a site of an adopted bundle has another fingerprint, under which other runs "
                "would not find this run's entries in the privacy ledger: leave out 'privacy', or 'open_test'.",
                settings=["open_test", "privacy"],
            )
        return settings, execution

    def _make_task(self, settings: Settings, execution: Execution, registry: Registry) -> Task:
        """Return the task to train on the run's device, and warn if its images don't suit the weights to start from."""
        task = dataclasses.replace(self.task, device=task_device(execution))
        task = prepare_task(task, settings, registry, self.bundle_root)
        if task.start is not None and isinstance(self.source, ArraySource):
            warn_of_normalisation(task.start, self.mean, self.std)
        return task

    def _assign_networks(self, registry: Registry, sites: Sequence[str], seed: int) -> dict[str, AssignedNetwork]:
        """Return the network of each site that the rule `network_assignment` decides; empty without a rule."""
        assignment = read_assignment(self.network_assignment, registry)
        return {} if assignment is None else assignment.assign(sites, seed)

    def _data_origin(self, data: Cohort, changes: Sequence[str], harmonisation: str) -> DataOrigin:
        """Return the origin of the data for ``run.json``.

        Args:
            data: Data of the run.
            changes: Data files that changed since the partition and that the user allowed.
            harmonisation: Harmonisation of images and features in words; empty without one.
        """
        return DataOrigin(
            name=data.first.source,
            sites=data.digests(),
            folder=os.path.relpath(self.dataset_dir, self.output_dir),  # so that the report can show images of the data
            allowed_leaks=tuple(self.allow_leaks),
            allowed_changes=tuple(changes),
            label_map=dict(data.label_map),
            fold=drawn_fold(self.dataset_dir),
            harmonisation=harmonisation,
            notes=tuple(sorted({note for site in data.sites.values() for note in site.notes})),
        )

    def _method_choice(self, registry: Registry) -> MethodChoice:
        """Return the method with its settings, and the needs of all installed methods."""
        return MethodChoice(
            name=self.method,
            make=lambda: registry.make_method(self.method, self.method_args),
            args=self.method_args,
            needs_by_method={record.name: record.needs for record in registry.methods.values()},
        )

    def _site_export(self, data: Cohort, harmonisation: str) -> SiteExport:
        """Return the values that each site's exported bundle contains."""
        first = data.first
        return SiteExport(
            bundle_root=self.bundle_root,
            values=self.site_values,
            shape=first.shape,
            classes=first.classes,
            data=first.source,
            modality=first.modality,
            names=first.names,
            facts={name: site.test_metadata for name, site in data.sites.items()},
            objective=self.task.objective,
            stock=self.source.weights,
            harmonisation=harmonisation,
        )

    def _notify_start(self, registry: Registry, provenance: Provenance) -> None:
        """Notify plugins that the run starts."""
        values = {name: setting.value for name, setting in provenance.settings.items()}
        registry.notify("medfl_run_started", run_folder=str(self.output_dir), settings=values, tracking=self.tracking)


def _limit_workers(execution: Execution, sites: int) -> Execution:
    """Return the execution settings with at most one worker for each site, and warn if this changes the number."""
    most = max(sites, 2)
    if execution.workers <= most:
        return execution
    logger.warning("%d workers were requested; %d start, for %d sites.", execution.workers, most, sites)
    return execution.model_copy(update={"workers": most, "devices": execution.devices[:most]})


def _run_data(data: Cohort, leaks: Sequence[str], folder: Path) -> RunData:
    """Return the data of the run.

    Args:
        data: Data that the source loaded.
        leaks: Sentences about the leaks that the user allowed.
        folder: Folder that contains a folder for each site.
    """
    return RunData(
        sites={name: Splits(site.train, site.val, site.test, site.digest) for name, site in data.sites.items()},
        server_test=data.server.test if data.server is not None else None,
        public=data.public.train if data.public is not None else None,
        public_test=data.public.test if data.public is not None else None,
        digest=data.digest(),
        classes=data.first.classes,
        names=data.first.names,
        leaks=tuple(leaks),
        folder=folder,
    )
