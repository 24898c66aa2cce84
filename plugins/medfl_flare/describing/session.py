"""The researcher's side of a description: submit the request, wait, fetch what the sites told, write the page."""

from __future__ import annotations

import contextlib
import json
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path

from medfl.errors import MedflError, SettingsError, did_you_mean
from medfl_flare.backend.messages import Message
from medfl_flare.connection import COMPLETED, Connection
from medfl_flare.describing.request import KIND, Request
from medfl_flare.describing.server import RESULT, read_description
from medfl_flare.follow import follow
from medfl_flare.job_folder import write_job
from medfl_flare.kit import admin_of
from medfl_flare.session import connect
from medfl_flare.statistics.page import write_description
from medfl_flare.statistics.view import View, view_of

logger = logging.getLogger(__name__)


def describe_sites(request: Request, kit: Path, out: Path, opener: Callable[[Path], Connection] = connect) -> View:
    """Ask the sites for their descriptions and write the page.

    Args:
        request: What is asked; without sites, those that are connected are.
        kit: The researcher's startup kit.
        out: Folder for the page.
        opener: Makes the connection to the server.

    Raises:
        SettingsError: If the kit or the sites are not possible.
        MedflError: If the server can't be reached, or no site tells anything.
    """
    admin_of(kit)
    out.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(opener(kit)) as connection, tempfile.TemporaryDirectory(prefix="medfl-job-") as place:
        request = _with_sites(request, connection)
        job = connection.submit(write_job(request, Path(place)))
        logger.info("Asked %s as job %s.", ", ".join(request.sites), job)
        followed = follow(connection, job, out)
        if followed.lost:
            raise MedflError(
                "job_lost", "the server lost the job, as when it is started anew. Give the command again.", job=job
            )
        fetched = connection.fetch(job, Path(place))
        if fetched is None or followed.status != COMPLETED or not (fetched / RESULT).is_file():
            why = _why(fetched, connection, job)
            raise MedflError(
                "description_failed", f"nothing came of it: {why}{followed.last_words}", job=job, reason=why
            )
        content = json.loads((fetched / RESULT).read_text(encoding="utf-8"))
    sites = {site: read_description(Message(KIND, {}, meta)) for site, meta in content["sites"].items()}
    view = view_of(sites, content["missing"], f"what the sites told about their data for the bundle '{request.bundle}'")
    write_description(view, out)
    return view


def _with_sites(request: Request, connection: Connection) -> Request:
    connected = connection.sites_within(request.sites, 0.0)
    if not connected:
        raise SettingsError(
            "no_connected_sites", "no site is connected to the server; start them with `medfl federate start KIT`"
        )
    if unavailable := sorted(set(request.sites) - set(connected)):
        raise SettingsError(
            "unavailable_site",
            f"no site '{unavailable[0]}' is connected to the server. {did_you_mean(unavailable[0], connected)}",
            site=unavailable[0],
            known=connected,
        )
    return request if request.sites else request.with_sites(connected)


def _why(fetched: Path | None, connection: Connection, job: str) -> str:
    error = None if fetched is None else fetched / "error.txt"
    if error is not None and error.is_file():
        return error.read_text(encoding="utf-8", errors="replace").strip()
    return connection.why(job)
