"""What a federation makes of parts of a configuration that are for stock MONAI: handlers of a trainer, and tracking."""

from __future__ import annotations

import logging
from pathlib import Path

from monai.bundle import ConfigParser

from medfl.types import Meta

logger = logging.getLogger(__name__)

STOCK_HANDLERS = frozenset({"ValidationHandler", "StatsHandler", "CheckpointSaver", "MLFlowHandler"})
"""Handlers of a bundle's trainer whose work a federation does in its own way."""


TRACKED = ("tracking_uri", "experiment_name", "run_name")
"""What MONAI's ``--tracking`` is told."""


def warn_of_handlers(bundle: Meta) -> None:
    """A federation does not run the bundle's trainer; name what the author may have expected to run with it."""
    parts = [bundle.get(part, {}).get("handlers") or [] for part in ("train", "validate")]
    targets = {str(handler.get("_target_", "")) for handlers in parts for handler in handlers}
    custom = sorted(target for target in targets if target.rpartition(".")[2] not in STOCK_HANDLERS)
    if custom:
        logger.warning(
            "A federation trains with medfl's own loop; these handlers of the bundle are not run: %s.",
            ", ".join(custom),
        )


def read_tracking(tracked_config: str | bool | None, output_dir: Path) -> Meta:
    """What MONAI's ``--tracking`` was told, from the configuration that it then writes beside the run.

    Args:
        tracked_config: The configuration's id ``save_execute_config``: text only if tracking is on. It ends with the
            name of the file, but is no path where the output folder was given as an option (MONAI joins the texts).
        output_dir: The run folder, where MONAI writes it.

    Returns:
        ``tracking_uri``, ``experiment_name`` and ``run_name``; empty if tracking is off.
    """
    if not isinstance(tracked_config, str):
        return {}
    parser = ConfigParser()
    parser.read_config(str(output_dir / tracked_config.strip("'").rpartition("/")[2]))
    return {name: parser.get_parsed_content(name, default=None) for name in TRACKED if name in parser}
