"""MONAI's workflow, stricter: unknown options and missing ids are refused before anything is built."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from monai.bundle import ConfigParser
from monai.bundle.utils import DEFAULT_EXP_MGMT_SETTINGS
from monai.bundle.workflows import ConfigWorkflow

from medfl.bundle.data_fit import check_fit
from medfl.bundle.federated_run import LOCAL
from medfl.bundle.federation import with_own_errors
from medfl.bundle.files import shipped
from medfl.bundle.option_checks import apply_options, check_ids, check_options
from medfl.data.readers.quiet import drop_missing_codec
from medfl.engine.evaluation import Row
from medfl.engine.runs.console import ends_monai_command, show_log
from medfl.engine.runs.provenance import run_files
from medfl.errors import SettingsError, check_choice
from medfl.plugins import load_plugins
from medfl.types import Meta

STOCK_OPTIONS = frozenset(
    {"meta_file", "logging_file", "init_id", "run_id", "final_id", "tracking", "workflow_type", "properties_path"}
)
"""Options of MONAI's workflow itself; every other one names an id of the configuration or a setting."""


class RunLauncher(Protocol):
    """Contract of a backend other than this machine: it carries out a run somewhere else."""

    def prepare(self, parser: ConfigParser, files: str | Sequence[str], options: Meta) -> Callable[[], None]:
        """Check what is to run, and return the function that runs it and ends when the run has ended.

        Args:
            parser: Holds the bundle's files, with the options put into it.
            files: The files that were read.
            options: Maps ids and settings to the values that the user gave.

        Raises:
            MedflError: If this backend can't carry out the run.
        """
        ...


class FederatedWorkflow(ConfigWorkflow):
    """MONAI's workflow, refusing options that the configuration does not know and configurations that lack something.

    Use it as ``python -m monai.bundle run --workflow_name medfl.workflow.FederatedWorkflow ...``. All missing ids come
    in one message, and so do all unknown options, each with the known ones. An option may name any setting of
    `medfl.settings`, where stock MONAI takes ``--settings#NAME`` for those without an id of their own. With
    ``--backend`` a plugin's backend carries out the run, for example on the sites' own machines.

    Raises:
        SettingsError: If an option or an id is unknown or missing; on MONAI's command line the process ends with the
            message alone (`medfl.engine.runs.console.ends_monai_command`).
    """

    _run_elsewhere: Callable[[], None] | None = None

    def __init__(self, config_file: str | Sequence[str], **options: Any) -> None:
        stock = {name: value for name, value in options.items() if name in STOCK_OPTIONS}
        overrides = {name: value for name, value in options.items() if name not in STOCK_OPTIONS}
        tracking = stock.pop("tracking", None)
        drop_missing_codec()
        super().__init__(config_file, **stock)
        with ends_monai_command():
            if not isinstance(self.parser.get(), dict):
                raise SettingsError(
                    "wrong_type",
                    "expected configuration files that hold one object each",
                    expected="dict",
                    found=type(self.parser.get()).__name__,
                )
            settings = tracking_settings(tracking)
            tracked = {k: v for k, v in settings.get("configs", {}).items() if k not in settings["handlers_id"]}
            for name, value in tracked.items():  # ids that MONAI adds, and that options may name
                if name not in self.parser:
                    self.parser[name] = value
            backend, defaults = _backend(str(overrides.get("backend", LOCAL)))
            for name, value in defaults.items():
                self.parser[name] = value
            check_ids(self.parser, self.properties or {}, f"of {config_file}")
            check_options(self.parser, overrides, {*tracked, *defaults})
        apply_options(self.parser, {"given_by": "command line"} | overrides)
        if settings:
            self.patch_bundle_tracking(self.parser, settings)
        if backend is not None:
            with ends_monai_command():
                self._run_elsewhere = backend.prepare(self.parser, config_file, overrides)

    @property
    def runs_elsewhere(self) -> bool:
        """Whether a plugin's backend carries out the run."""
        return self._run_elsewhere is not None

    def initialize(self) -> Any:
        """MONAI's; a run on other machines has nothing to begin here."""
        return None if self._run_elsewhere else super().initialize()

    def run(self) -> Any:
        """Run the federation, here or on the chosen backend."""
        with ends_monai_command():
            if self._run_elsewhere is None:
                return with_own_errors(super().run)
            show_log()
            return self._run_elsewhere()

    def finalize(self) -> Any:
        """MONAI's; a run on other machines has nothing to end here."""
        return None if self._run_elsewhere else super().finalize()


def _backend(name: str) -> tuple[RunLauncher | None, Meta]:
    """Return the backend that a run names and the defaults of its options; None and no options for this machine.

    Raises:
        SettingsError: If no plugin has a backend of that name.
        PluginError: If it can't be imported.
    """
    if name == LOCAL:
        return None, {}
    registry = load_plugins()  # installed plugins only: each participant has plugin files of its own
    check_choice("backend", name, (LOCAL, *registry.backends))
    backend: RunLauncher = registry.backend(name)()
    return backend, {option: default for option, (_, default) in registry.backends[name].options.items()}


def run_bundle(
    root: Path,
    options: Meta,
    on_round: Callable[[int, list[Row]], object] | None = None,
    shows_progress: bool = True,
) -> Path:
    """Run the federation of a bundle to its end.

    Args:
        root: The bundle.
        options: Maps ids of the bundle's configuration, and settings, to values.
        on_round: Function that is called after each round on this machine.
        shows_progress: Whether to show the rounds and the scores.

    Returns:
        The run folder.

    Raises:
        MedflError: If settings, data, method or run folder are not as needed.
    """
    configs = [str(config) for config in run_files(root)]
    if "dataset_dir" in options and options.get("backend", LOCAL) == LOCAL:
        check_fit(root, Path(options["dataset_dir"]), shipped())
    logging.getLogger("monai.bundle.workflows").setLevel(logging.WARNING)  # its import sets a level of its own
    workflow = FederatedWorkflow(configs, **({"bundle_root": str(root)} | options))
    workflow.initialize()
    folder = Path(str(workflow.parser.get_parsed_content("output_dir")))
    if not workflow.runs_elsewhere:
        federation = with_own_errors(lambda: workflow.parser.get_parsed_content("federation"))
        federation.on_round, federation.shows_progress = on_round, shows_progress
    workflow.run()
    workflow.finalize()
    return folder


def tracking_settings(tracking: str | Meta | None) -> Meta:
    """What MONAI's option ``tracking`` stands for: settings that MONAI knows by name, or those of a file."""
    if tracking is None:
        return {}
    known = DEFAULT_EXP_MGMT_SETTINGS.get(tracking) if isinstance(tracking, str) else None
    settings: Meta = known or ConfigParser.load_config_files(tracking)
    return settings
