"""The researcher's side of federated statistics: submit the request, fetch the sites' statistics, write the report.

`fetch_result` also submits the request of a federated evaluation.
"""

from __future__ import annotations

import contextlib
import json
import logging
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from medfl.errors import MedflError, SettingsError, did_you_mean
from medfl.types import Meta
from medfl_flare.backend.messages import Message
from medfl_flare.connection import COMPLETED, Connection
from medfl_flare.federated_evaluation.evaluation_request import EvaluationRequest
from medfl_flare.federated_statistics.server_requests import RESULT_FILE_NAME, read_statistics
from medfl_flare.federated_statistics.statistics_request import KIND, StatisticsRequest
from medfl_flare.follow import follow
from medfl_flare.job_folder import write_job
from medfl_flare.kit import read_admin_kit
from medfl_flare.session import connect
from medfl_flare.statistics.report_content import StatisticsReport, make_report
from medfl_flare.statistics.statistics_page import write_statistics_report

logger = logging.getLogger(__name__)


def fetch_statistics(
    request: StatisticsRequest, kit: Path, out: Path, opener: Callable[[Path], Connection] = connect
) -> StatisticsReport:
    """Request statistics from the sites, write the report, and return its contents.

    Args:
        request: The request. If it names no sites, all connected sites are asked.
        kit: The researcher's startup kit.
        out: Folder for the report.
        opener: Function that opens the connection to the server.

    Raises:
        SettingsError: If the kit or the sites are invalid.
        MedflError: If the server can't be reached, or if no site returns statistics.
    """
    content = fetch_result(request, JobResult("statistics", RESULT_FILE_NAME), kit, out, opener)
    sites = {site: read_statistics(Message(KIND, {}, meta)) for site, meta in content["sites"].items()}
    report = make_report(
        sites, content["missing"], f"the sites' statistics of their data for the bundle '{request.bundle}'"
    )
    write_statistics_report(report, out)
    return report


@dataclass(frozen=True)
class JobResult:
    """Result that a job returns besides a run.

    Attributes:
        noun: Name of the result in messages: ``statistics`` or ``scores``.
        file_name: Name of the file with the result.
    """

    noun: str
    file_name: str


def fetch_result(
    request: StatisticsRequest | EvaluationRequest,
    result: JobResult,
    kit: Path,
    out: Path,
    opener: Callable[[Path], Connection],
    weights: bytes | None = None,
) -> Meta:
    """Submit a request as a job, follow it, and return the content of its result. Creates `out`.

    Args:
        request: The request. If it names no sites, all connected sites are asked.
        result: Description of the result.
        kit: The researcher's startup kit.
        out: Folder for the progress of the job.
        opener: Function that opens the connection to the server.
        weights: Content of the file of weights of an evaluation; None without one.

    Raises:
        SettingsError: If the kit or the sites are invalid.
        MedflError: If the server can't be reached, or if the job returned no result; the code is ``statistics_failed``
            or ``scores_failed``.
    """
    read_admin_kit(kit)
    out.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(opener(kit)) as connection, tempfile.TemporaryDirectory(prefix="medfl-job-") as place:
        request = _with_sites(request, connection)
        job = connection.submit(write_job(request, Path(place), weights))
        logger.info("Requested %s from %s as job %s.", result.noun, ", ".join(request.sites), job)
        followed = follow(connection, job, out)
        if followed.lost:
            raise MedflError("job_lost", "the server lost the job, as after a restart. Run the command again.", job=job)
        fetched = connection.fetch(job, Path(place))
        if fetched is None or followed.status != COMPLETED or not (fetched / result.file_name).is_file():
            why = _failure_reason(fetched, connection, job)
            raise MedflError(
                f"{result.noun}_failed",
                f"the job returned no {result.noun}: {why}{followed.end_message}",
                job=job,
                reason=why,
            )
        content: Meta = json.loads((fetched / result.file_name).read_text(encoding="utf-8"))
    return content


def _with_sites(
    request: StatisticsRequest | EvaluationRequest, connection: Connection
) -> StatisticsRequest | EvaluationRequest:
    """Return the request with the connected sites if it names none; raise if a named site is not connected."""
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


def _failure_reason(fetched: Path | None, connection: Connection, job: str) -> str:
    """Return the reason why a job returned no statistics."""
    error = None if fetched is None else fetched / "error.txt"
    if error is not None and error.is_file():
        return error.read_text(encoding="utf-8", errors="replace").strip()
    return connection.end_reason(job)
