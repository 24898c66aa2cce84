"""MONAI workflow that runs a federation and checks all options and ids before it builds anything.

An id is a key of a bundle's configuration. A backend executes a run on other machines than this one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from monai.bundle import ConfigParser
from monai.bundle.utils import DEFAULT_EXP_MGMT_SETTINGS
from monai.bundle.workflows import ConfigWorkflow

from medfl.bundle.bundle_folders import shipped_bundles
from medfl.bundle.data_fit import check_fit
from medfl.bundle.federated_run import LOCAL
from medfl.bundle.federation import unwrap_errors
from medfl.bundle.option_checks import apply_options, check_ids, check_options
from medfl.data.readers.quiet import drop_missing_codec
from medfl.engine.evaluation import MetricRow
from medfl.engine.runs.console import ends_monai_command, show_log
from medfl.engine.runs.provenance import run_files
from medfl.errors import SettingsError, check_choice
from medfl.networks.bundle_parser import share_components
from medfl.plugins import load_plugins
from medfl.types import Meta

STOCK_OPTIONS = frozenset(
    {"meta_file", "logging_file", "init_id", "run_id", "final_id", "tracking", "workflow_type", "properties_path"}
)
"""Options of MONAI's workflow itself; any other option is an id of the configuration or a setting."""


class RunLauncher(Protocol):
    """Interface of a backend, which executes a run on other machines."""

    def prepare(self, parser: ConfigParser, files: str | Sequence[str], options: Meta) -> Callable[[], None]:
        """Check the run, and return a function that executes it and returns when it has ended.

        Args:
            parser: Parser with the bundle's files, in which the options are applied.
            files: Configuration files.
            options: Mapping from ids and settings to the user's values.

        Raises:
            MedflError: If this backend can't execute the run.
        """
        ...


class FederatedWorkflow(ConfigWorkflow):
    """MONAI workflow that refuses unknown options and incomplete configurations.

    Use it as ``python -m monai.bundle run --workflow_name medfl.workflow.FederatedWorkflow ...``. One message lists all
    missing ids, and one all unknown options with the known ones. An option may name any setting of `medfl.settings`;
    stock MONAI needs ``--settings#NAME`` for settings without an id in the configuration. With ``--backend``, a
    plugin's backend executes the run, for example on the sites' own machines.

    Raises:
        SettingsError: If an option or an id is unknown or missing. On MONAI's command line the process ends with the
            message only (`medfl.engine.runs.console.ends_monai_command`).
    """

    _run_elsewhere: Callable[[], None] | None = None

    def __init__(self, config_file: str | Sequence[str], **options: Any) -> None:
        stock = {name: value for name, value in options.items() if name in STOCK_OPTIONS}
        overrides = {name: value for name, value in options.items() if name not in STOCK_OPTIONS}
        tracking = stock.pop("tracking", None)
        drop_missing_codec()
        super().__init__(config_file, **stock)
        share_components(self.parser)
        with ends_monai_command():
            if not isinstance(self.parser.get(), dict):
                raise SettingsError(
                    "wrong_type",
                    "expected configuration files with one JSON object each",
                    expected="dict",
                    found=type(self.parser.get()).__name__,
                )
            settings = tracking_settings(tracking)
            tracked = {k: v for k, v in settings.get("configs", {}).items() if k not in settings["handlers_id"]}
            for name, value in tracked.items():  # MONAI adds these ids, and options may name them
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
        """True if a plugin's backend executes the run."""
        return self._run_elsewhere is not None

    def initialize(self) -> Any:
        """Initialize MONAI's workflow; do nothing for a run on other machines."""
        return None if self._run_elsewhere else super().initialize()

    def run(self) -> Any:
        """Run the federation on this machine or on the chosen backend."""
        with ends_monai_command():
            if self._run_elsewhere is None:
                return unwrap_errors(super().run)
            show_log()
            return self._run_elsewhere()

    def finalize(self) -> Any:
        """Finalize MONAI's workflow; do nothing for a run on other machines."""
        return None if self._run_elsewhere else super().finalize()


def _backend(name: str) -> tuple[RunLauncher | None, Meta]:
    """Return the launcher of a backend and the defaults of its options; None and no options for this machine.

    Raises:
        SettingsError: If no plugin has a backend of that name.
        PluginError: If the backend can't be imported.
    """
    if name == LOCAL:
        return None, {}
    registry = load_plugins()  # installed plugins only: each participant has its own plugin files
    check_choice("backend", name, (LOCAL, *registry.backends))
    backend: RunLauncher = registry.backend(name)()
    return backend, {option: default for option, (_, default) in registry.backends[name].options.items()}


def run_bundle(
    root: Path,
    options: Meta,
    on_round: Callable[[int, list[MetricRow]], object] | None = None,
    shows_progress: bool = True,
) -> Path:
    """Run the federation of a bundle to its end.

    Args:
        root: Folder of the bundle.
        options: Mapping from ids of the bundle's configuration, and settings, to values.
        on_round: Callback after each round on this machine, with the round's number and its rows of metrics.
        shows_progress: Whether to show the rounds and the scores.

    Returns:
        The run folder.

    Raises:
        MedflError: If settings, data, method or run folder are invalid.
    """
    configs = [str(config) for config in run_files(root)]
    if "dataset_dir" in options and options.get("backend", LOCAL) == LOCAL:
        check_fit(root, Path(options["dataset_dir"]), shipped_bundles())
    logging.getLogger("monai.bundle.workflows").setLevel(logging.WARNING)  # its import sets a level of its own
    workflow = FederatedWorkflow(configs, **({"bundle_root": str(root)} | options))
    workflow.initialize()
    folder = Path(str(workflow.parser.get_parsed_content("output_dir")))
    if not workflow.runs_elsewhere:
        federation = unwrap_errors(lambda: workflow.parser.get_parsed_content("federation"))
        federation.on_round, federation.shows_progress = on_round, shows_progress
    workflow.run()
    workflow.finalize()
    return folder


def tracking_settings(tracking: str | Meta | None) -> Meta:
    """Return the settings of MONAI's option ``tracking``: a named default of MONAI, or the content of a file."""
    if tracking is None:
        return {}
    known = DEFAULT_EXP_MGMT_SETTINGS.get(tracking) if isinstance(tracking, str) else None
    settings: Meta = known or ConfigParser.load_config_files(tracking)
    return settings
