"""NVFlare backend: federations between machines, startup kits, site policy and federated statistics."""

from __future__ import annotations

from pathlib import Path

from medfl.errors import SettingsError
from medfl.hooks import BackendRecord, CommandRecord, RunLocation, hookimpl

ANSWER_TIMEOUT = 3600
"""Seconds without progress after which a site counts as missing, unless the user says otherwise."""


@hookimpl
def medfl_commands() -> list[CommandRecord]:
    """Return the commands of this package."""
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
            "Check a site's own file, and see what left the site.",
            "Between hospitals",
        ),
    ]


@hookimpl
def medfl_backends() -> list[BackendRecord]:
    """Return the backend that submits a run to a federation's server."""
    return [
        BackendRecord(
            "flare",
            "medfl_flare.submit:FlareLauncher",
            "submits the run to the sites' machines",
            {
                "kit": ("Folder of the researcher's startup kit (`medfl federate provision`).", None),
                "answer_timeout": ("Seconds without progress after which a site counts as missing.", ANSWER_TIMEOUT),
            },
        )
    ]


@hookimpl
def medfl_run_location(path: str) -> RunLocation | None:
    """Return the folder of a site's or server's runs for its startup kit; None for anything but a kit.

    Raises:
        SettingsError: If it is a researcher's kit, or the site's own file can't be read.
    """
    if not (Path(path) / "startup").is_dir():
        return None
    from medfl_flare.kit import kind_of
    from medfl_flare.sites.file import FILE, read_site_file

    if kind_of(Path(path)) == "admin":
        raise SettingsError(
            "wrong_kit",
            f"'{path}' is a researcher's kit. Give the folder of a run that you submitted with it: what happens at the "
            "server comes there while the run is followed.",
            path=path,
        )
    return RunLocation(read_site_file(Path(path) / "local" / FILE).state / "runs", gets_more_runs=True)
