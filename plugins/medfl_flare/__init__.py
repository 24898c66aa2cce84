"""NVFlare backend: federations between machines, startup kits, site policy and federated statistics.

A startup kit is the folder with certificate, settings and scripts with which a participant (the server, a site or a
researcher) connects to a federation.
"""

from __future__ import annotations

from pathlib import Path

from medfl.errors import SettingsError
from medfl.hooks import BackendRecord, CommandRecord, RunLocation, hookimpl

REPLY_TIMEOUT = 3600
"""Default number of seconds without progress after which the server treats a site as unavailable."""


@hookimpl
def medfl_commands() -> list[CommandRecord]:
    """Return the commands `medfl federate` and `medfl site`."""
    return [
        CommandRecord(
            "federate",
            "medfl_flare.commands.federate:app",
            "Run federations between machines.",
            "Between hospitals",
        ),
        CommandRecord(
            "site",
            "medfl_flare.commands.site:app",
            "Check a site's own file, and show which data left the site.",
            "Between hospitals",
        ),
    ]


@hookimpl
def medfl_backends() -> list[BackendRecord]:
    """Return the record of the NVFlare backend, which submits a run to the server of a federation."""
    return [
        BackendRecord(
            "flare",
            "medfl_flare.submit:FlareLauncher",
            "submits the run to the sites' machines",
            {
                "kit": ("Folder of the researcher's startup kit (`medfl federate provision`).", None),
                "reply_timeout": ("Seconds without progress after which a site is unavailable.", REPLY_TIMEOUT),
                "gpus": ("GPUs that each site must grant to the run; 0 requests none.", 0),
                "gpu_memory_gib": ("Free memory of each of these GPUs, in GiB of 2^30 bytes.", 0),
            },
        )
    ]


@hookimpl
def medfl_run_location(path: str) -> RunLocation | None:
    """Return where the runs of a startup kit are stored, or None if the path is not a startup kit.

    Args:
        path: Path of a folder: the startup kit of a site or of the server, or something else.

    Raises:
        SettingsError: If the kit belongs to a researcher, or if the site's own file can't be read.
    """
    if not (Path(path) / "startup").is_dir():
        return None
    from medfl_flare.kit import read_kit_kind
    from medfl_flare.sites.site_file import SITE_FILE_NAME, read_site_file

    if read_kit_kind(Path(path)) == "admin":
        raise SettingsError(
            "wrong_kit",
            f"'{path}' is a researcher's kit. Give the folder of a run that you submitted with it: medfl copies the "
            "server's progress to that folder while it follows the run.",
            path=path,
        )
    return RunLocation(read_site_file(Path(path) / "local" / SITE_FILE_NAME).state / "runs", gets_more_runs=True)
