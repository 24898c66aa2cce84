"""From a MONAI bundle to a federation: what ``federate.json`` builds, and a stricter workflow."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from monai.bundle.workflows import ConfigWorkflow
from rich.console import Console

from medfl.contract import SERVER, Meta
from medfl.data.sites import SiteData, load_global, load_site, load_sites, site_names
from medfl.errors import MedflError, SettingsError, did_you_mean
from medfl.evaluation import Row
from medfl.export import export
from medfl.plugins import load_plugins
from medfl.progress import round_progress
from medfl.settings import Execution, Settings, read_settings
from medfl.simulation import Result, Run, simulate
from medfl.siteside import Splits
from medfl.task import Task

logger = logging.getLogger(__name__)


class FederatedRun:
    """A federation as a bundle's ``federate.json`` describes it.

    Args:
        task: The bundle's task.
        bundle_root: The bundle.
        dataset_dir: Folder with one folder per site, each with a ``datalist.json``.
        output_dir: The run folder.
        method: Name of the method.
        method_args: The method's settings.
        sites: Names of the sites to use; None means all in `dataset_dir`.
        mean: Per-channel mean of the images after scaling to [0, 1].
        std: Per-channel standard deviation.
        plugins: Plugin files to load.
        disabled_plugins: Plugins to switch off, by name.
        public: Folder in `dataset_dir` with public data (its training split), for methods that need them.
        workers: Processes that train sites.
        threads: Threads of each.
        device: ``auto``, ``cpu`` or ``cuda:N``.
        settings: Everything else is a setting of the run, see `medfl.settings.Settings`.
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
        plugins: Sequence[str] = (),
        disabled_plugins: Sequence[str] = (),
        public: str | None = None,
        workers: int = 1,
        threads: int = 1,
        device: str = "auto",
        **settings: Any,
    ) -> None:
        self.task, self.method, self.method_args = task, method, dict(method_args or {})
        self.bundle_root, self.dataset_dir, self.output_dir = Path(bundle_root), Path(dataset_dir), Path(output_dir)
        self.sites, self.mean, self.std = sites, tuple(mean), tuple(std)
        self.plugins, self.disabled = list(plugins), list(disabled_plugins)
        self.public = public
        self.execution = {"workers": workers, "threads": threads, "device": device}
        self.settings = settings

    def run(self) -> None:
        """Run, write the summary and a bundle per site, and print the scores.

        An error that the user can mend ends the process with its message alone; ``MEDFL_DEBUG=1`` shows the traceback.
        """
        _show_log()
        try:
            result = self.simulate()
        except MedflError as error:
            _end(f"error: {error}", 2)
        except KeyboardInterrupt:
            _end("stopped; what is finished is saved, the same command continues", 130)
        else:
            report(result, self.output_dir)

    def simulate(self) -> Result:
        """Run the federation and write its bundles.

        Raises:
            MedflError: If settings, data, method or run folder are not as needed.
        """
        registry = load_plugins(files=self.plugins, disabled=self.disabled)
        for problem in registry.problems:
            logger.warning("%s", problem)
        registry.make_method(self.method, self.method_args)
        execution = read_settings(Execution, self.execution, "the execution")
        settings = read_settings(Settings, self.settings, "the run")
        loaded, pooled, public = self._load()
        registry.notify("medfl_run_started", run_folder=str(self.output_dir), settings=settings.model_dump(mode="json"))
        with round_progress(settings.rounds, self.task.metrics[0]) as show:

            def on_round(round_: int, rows: list[Row]) -> None:
                show(round_, rows)
                found = [row._asdict() for row in rows]
                registry.notify("medfl_round_ended", run_folder=str(self.output_dir), round=round_, rows=found)

            result = simulate(
                Run(
                    method=self.method,
                    make_method=lambda: registry.make_method(self.method, self.method_args),
                    task=dataclasses.replace(self.task, device=pick_device(execution.device)),
                    settings=settings,
                    sites={name: Splits(site.train, site.val, site.test) for name, site in loaded.items()},
                    folder=self.output_dir,
                    global_test=pooled.test if pooled is not None else None,
                    public=public.train if public is not None else None,
                    public_for=(SERVER, *loaded) if public is not None else (),
                    execution=execution,
                    method_args=self.method_args,
                    plugins=sorted(registry.plugins),
                    data_digest=_digest([*loaded.values(), *filter(None, (pooled, public))]),
                    on_round=on_round,
                )
            )
        export(result, self.bundle_root, self.output_dir)
        registry.notify("medfl_run_ended", run_folder=str(self.output_dir), status=result.outcome.status)
        return result

    def _load(self) -> tuple[dict[str, SiteData], SiteData | None, SiteData | None]:
        """The sites, the server's test set, and public data."""
        folder, classes = self.dataset_dir, self.task.num_classes
        names = list(self.sites) if self.sites is not None else [n for n in site_names(folder) if n != self.public]
        loaded = load_sites(folder, classes, self.mean, self.std, names)
        pooled = load_global(folder, classes, self.mean, self.std)
        public = load_site(folder / self.public, classes, self.mean, self.std) if self.public else None
        return loaded, pooled, public


class FederatedWorkflow(ConfigWorkflow):
    """MONAI's workflow, refusing options that the configuration does not know.

    Use it as ``python -m monai.bundle run --workflow_name medfl.workflow.FederatedWorkflow ...``.

    Raises:
        SystemExit: With a message that lists the known options, if one is unknown.
    """

    def __init__(self, config_file: str | Sequence[str], **options: Any) -> None:
        known = {
            "meta_file",
            "logging_file",
            "init_id",
            "run_id",
            "final_id",
            "tracking",
            "workflow_type",
            "properties_path",
        }
        stock = {name: value for name, value in options.items() if name in known}
        super().__init__(config_file, **stock)
        try:
            self._override({name: value for name, value in options.items() if name not in known})
        except SettingsError as error:
            _end(f"error: {error}", 2)

    def _override(self, options: Meta) -> None:
        config = self.parser.config
        if not isinstance(config, dict):
            raise SettingsError("expected configuration files that hold one object each")
        for name, value in options.items():
            top, _, rest = name.replace("::", "#").partition("#")
            if top not in config:
                raise SettingsError(f"unknown option '--{name}'. {did_you_mean(top, _ids(config))}")
            parent = config[top]
            if rest and not isinstance(parent, (dict, list)):
                raise SettingsError(f"option '--{name}': '{top}' has no parts; it is {parent!r}")
            self.parser[name] = value


def _ids(config: Mapping[str, Any]) -> list[str]:
    return [name for name in config if not name.startswith("_")]


def pick_device(device: str) -> str:
    """The device that a name means here; ``auto`` is the first GPU, or the CPU.

    Raises:
        SettingsError: If a GPU is asked for and there is none.
    """
    if device == "auto":
        return "cuda:0" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise SettingsError(f"device '{device}' was asked for and torch sees no GPU here; use --device cpu or auto.")
    return device


def report(result: Result, folder: Path) -> None:
    """Print the scores of a run as a table, and where its files are."""
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 100)
    summary = result.summary
    table = Table(title=f"{summary['method']}: {summary['status']} after {summary['rounds']} rounds")
    for column in ("model", "split", "metric", "mean of sites", "worst site", "global test"):
        table.add_column(column)
    for model, splits in summary["scores"].items():
        for split, metrics in splits.items():
            for metric, found in metrics.items():
                values = (found[key] for key in ("mean", "worst", "global_test"))
                table.add_row(model, split, metric, *("-" if value is None else f"{value:.3f}" for value in values))
    console.print(table)
    if summary["reason"]:
        console.print(f"The run ended early: {summary['reason']}")
    console.print(f"Scores: {folder / 'metrics.csv'}; summary: {folder / 'summary.json'}; models: {folder / 'sites'}")


def _digest(parts: Sequence[SiteData]) -> str:
    return hashlib.sha256(repr(sorted((part.name, part.digest) for part in parts)).encode()).hexdigest()


def _show_log() -> None:
    """Log medfl's messages to stderr unless the program has set up logging itself."""
    log = logging.getLogger("medfl")
    if not log.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
        log.addHandler(handler)
    log.setLevel(logging.INFO)


def _end(message: str, code: int) -> None:
    if os.environ.get("MEDFL_DEBUG") == "1":
        raise
    sys.stderr.write(message + "\n")
    raise SystemExit(code)
