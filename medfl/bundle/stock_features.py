"""Parts of a bundle's configuration that only MONAI's own training uses: its handlers, and its experiment tracking."""

from __future__ import annotations

import logging
from pathlib import Path

from medfl.networks.bundle_parser import make_parser
from medfl.types import Meta

logger = logging.getLogger(__name__)

STOCK_HANDLERS = frozenset({"ValidationHandler", "StatsHandler", "CheckpointSaver", "MLFlowHandler"})
"""Class names of MONAI's handlers for which a federation has a replacement, so that no warning is needed."""


TRACKING_IDS = ("tracking_uri", "experiment_name", "run_name")
"""Ids in which MONAI stores the settings of its ``--tracking``."""


def warn_of_handlers(bundle: Meta) -> None:
    """Log a warning that names the handlers of a bundle's trainer that a federation does not run.

    Args:
        bundle: Content of the bundle's configuration by id.
    """
    parts = [bundle.get(part, {}).get("handlers") or [] for part in ("train", "validate")]
    targets = {str(handler.get("_target_", "")) for handlers in parts for handler in handlers}
    custom = sorted(target for target in targets if target.rpartition(".")[2] not in STOCK_HANDLERS)
    if custom:
        logger.warning(
            "A federation trains with medfl's own loop; these handlers of the bundle are not run: %s.",
            ", ".join(custom),
        )


def read_tracking(tracked_config: str | bool | None, output_dir: Path) -> Meta:
    """Return the settings of MONAI's ``--tracking``, read from the configuration that MONAI writes to the run folder.

    Args:
        tracked_config: Value of the id ``save_execute_config``, which is text only if tracking is on. The text ends
            with the name of the file. It is not a valid path if the output folder was given as an option, because
            MONAI joins the two texts.
        output_dir: Run folder, in which MONAI writes the file.

    Returns:
        Values by the keys ``tracking_uri``, ``experiment_name`` and ``run_name``; empty if tracking is off.
    """
    if not isinstance(tracked_config, str):
        return {}
    parser = make_parser()
    parser.read_config(str(output_dir / tracked_config.strip("'").rpartition("/")[2]))
    return {name: parser.get_parsed_content(name, default=None) for name in TRACKING_IDS if name in parser}
