"""The researcher's connection to the server. It suppresses NVFlare's output and adds advice to NVFlare's errors."""

from __future__ import annotations

import contextlib
import datetime
import io
import logging
import os
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medfl.errors import MedflError
from medfl.types import Meta
from medfl_flare.backend.protocol_messages import KNOWN_BYTES_KEY, PROGRESS_COMMAND
from medfl_flare.kit import LOG_FILE_NAME
from medfl_flare.records.gpu_request import requested_gpus

logger = logging.getLogger(__name__)

RECONNECT_SECONDS = 300.0
"""Seconds for which an unreachable server is tried again."""

RETRY_SECONDS = 2.0
"""Seconds between two attempts to reach the server, and between two checks of a condition at the server."""
COMPLETED = "FINISHED:COMPLETED"
"""NVFlare's status of a job that ended by itself."""

SCHEDULE_ENTRIES = {"SUBMITTED": 1, "FINISHED:CAN_NOT_SCHEDULE": 2}
"""Maps NVFlare's status of a job that did not start to the number of last entries of its history that give the reason.
The last entry of a job that NVFlare gave up is the number of attempts."""

GPU_ADVICE = (
    "The resource manager in a site's local/resources.json grants free GPUs up to its own limits: wait until other "
    "jobs have ended, request less, or ask the site."
)
"""Advice for a job that waits for GPUs, or waited in vain."""

UNREACHABLE = ("NoConnection", "SessionClosed", "SessionExpired")
"""NVFlare's errors after which a new session may succeed."""

ADVICE = {
    "NoConnection": "Check that it is started (`medfl federate start KIT`), and that its port is open from here.",
    "AuthenticationError": "The kit's certificate is of another federation, or expired; ask the maker of the kit.",
    "AuthorizationError": "The server's local/authorization.json does not allow it; ask its administrator.",
    "InvalidJobDefinition": "The versions of NVFlare here and at the server may differ; install the same version.",
    "JobNotFound": "The server does not know that job (it may have lost its storage); submit the run again.",
    "NoClientsAvailable": "No site is connected; start them with `medfl federate start KIT`.",
}
"""Maps the name of an error of NVFlare to advice."""


@dataclass(frozen=True)
class ProgressResponse:
    """Response of a job to a request for its progress.

    Attributes:
        alive: Whether the job may be running. A job that starts or ends does not respond for a while and counts as
            running.
        progress: Status of the run as JSON values; empty if the job did not respond.
    """

    alive: bool
    progress: Meta


class Connection:
    """A session with the server, which is opened again if the server is temporarily unreachable.

    Args:
        open_session: Function that opens a session of NVFlare's API, or an object with the same methods. Called again
            after a loss of connection.
        server: Host and port, for messages.
        patience: Seconds for which an unreachable server is tried again after the first success.

    Raises:
        MedflError: If the first attempt fails.
    """

    def __init__(self, open_session: Callable[[], Any], server: str, patience: float = RECONNECT_SECONDS) -> None:
        self._open, self._server, self._patience = open_session, server, patience
        self._session = self._call_quietly(open_session)

    def close(self) -> None:
        """Log out and close the session. Errors are ignored."""
        if self._session is not None:
            with contextlib.suppress(Exception), suppress_nvflare_output():
                self._session.close()
            self._session = None

    def sites(self) -> dict[str, str]:
        """Return a mapping from the name of each connected site to the text of its last contact."""
        now = time.time()
        clients = self._call_session("get_system_info").client_info
        return {site.name: f"{max(0.0, now - float(site.last_connect_time)):.0f} s ago" for site in clients}

    def sites_within(self, wanted: Collection[str], seconds: float) -> list[str]:
        """Return the connected sites, sorted, as soon as they include all wanted ones or the time is over.

        Args:
            wanted: Names of the sites to wait for.
            seconds: Longest wait in seconds.
        """
        end = time.monotonic() + seconds
        while True:
            connected = self.sites()
            if set(wanted) <= set(connected) and connected or time.monotonic() >= end:
                return sorted(connected)
            time.sleep(RETRY_SECONDS)

    def jobs(self) -> list[Meta]:
        """Return a dict with NVFlare's metadata for each job at the server, newest job first.

        Its keys include ``job_id``, ``job_name``, ``status`` and ``submit_time``.
        """
        jobs: list[Meta] = self._call_session("list_jobs")
        return sorted(jobs, key=lambda job: str(job.get("submit_time", "")), reverse=True)

    def submit(self, folder: Path) -> str:
        """Submit the job in a folder to the server, and return NVFlare's id of the job."""
        return str(self._call_session("submit_job", str(folder), retry=False))

    def status(self, job: str) -> str:
        """Return NVFlare's status of a job, such as ``RUNNING`` or ``FINISHED:COMPLETED``."""
        return str(self._call_session("get_job_meta", job).get("status", ""))

    def has_ended(self, job: str) -> bool:
        """Return whether a job has ended, or is unknown to the server."""
        try:
            return is_end_status(self.status(job))
        except UnknownJobError:
            return True

    def end_reason(self, job: str) -> str:
        """Return NVFlare's reason for a job's end or delay, in one or two sentences."""
        meta = self._call_session("get_job_meta", job)
        status = meta.get("status")
        if status == "FINISHED:ABORTED":
            return "the job was aborted."
        if status not in SCHEDULE_ENTRIES:
            reasons = [text for text in meta.get("job_deploy_detail") or [] if not str(text).endswith(": OK")]
        else:
            reasons = (meta.get("schedule_history") or [])[-SCHEDULE_ENTRIES[status] :]
        sentence = f"NVFlare reports {status}" + (f": {'; '.join(map(str, reasons))}." if reasons else ".")
        gpus = requested_gpus(meta) if status in SCHEDULE_ENTRIES else None
        return sentence if gpus is None else f"{sentence} The run requests {gpus} of each site. {GPU_ADVICE}"

    def progress(self, job: str, after: int = 0) -> ProgressResponse:
        """Return the response of a job to a request for its progress.

        Args:
            job: Id of the job.
            after: Number of bytes of the run's progress file that are already known. The response contains the
                following lines.
        """
        try:
            progress = self._call_session("do_app_command", job, PROGRESS_COMMAND, {KNOWN_BYTES_KEY: after})
        except JobNotRespondingError:
            return ProgressResponse(True, {})
        except JobNotRunningError:
            return ProgressResponse(False, {})
        return ProgressResponse(True, progress if isinstance(progress, dict) else {})

    def died_with_server(self, job: str) -> bool:
        """Return whether the server was restarted since the job began, which ended the job.

        NVFlare reports such a job as running for ever.
        """
        began = self._call_session("get_job_meta", job).get("start_time") or ""
        server = self._call_session("get_system_info").server_info.start_time
        try:
            return datetime.datetime.fromisoformat(began).timestamp() < float(server)
        except (TypeError, ValueError):
            return False

    def abort(self, job: str, patience: float) -> bool:
        """Abort a job and wait for its end.

        Args:
            job: Id of the job.
            patience: Longest wait in seconds.

        Returns:
            Whether the job was running.

        Raises:
            MedflError: If the job does not end in time.
        """
        try:
            self._call_session("abort_job", job)
        except (JobNotRunningError, UnknownJobError):
            return False
        end = time.monotonic() + patience
        while not self.has_ended(job):
            if time.monotonic() > end:
                raise MedflError(
                    "job_still_running",
                    f"job {job} did not end within {patience:g} s; see the server's {LOG_FILE_NAME}",
                    job=job,
                    seconds=patience,
                )
            time.sleep(RETRY_SECONDS / 4)
        return True

    def fetch(self, job: str, folder: Path) -> Path | None:
        """Download the result of a job into a folder.

        Returns:
            Folder of the run's results, or None if the run left none.
        """
        result = Path(self._call_session("download_job_result", job, str(folder)) or folder) / "workspace" / "medfl"
        return result if result.is_dir() else None

    def _call_session(self, name: str, *arguments: Any, retry: bool = True) -> Any:
        """Call a method of the session; repeat the call for a while if the server can't be reached."""
        end, warned = time.monotonic() + self._patience, False
        while True:
            try:
                if self._session is None:
                    self._session = self._call_quietly(self._open)
                return self._call_quietly(lambda: getattr(self._session, name)(*arguments))
            except UnreachableError:
                if not retry or time.monotonic() > end:
                    raise
                if not warned:
                    logger.warning("The server at %s can't be reached; medfl tries again.", self._server)
                    warned = True
                self.close()
                time.sleep(RETRY_SECONDS)

    def _call_quietly(self, call: Callable[[], Any]) -> Any:
        """Call a function of NVFlare without its output, and translate its errors."""
        try:
            with suppress_nvflare_output():
                return call()
        except MedflError:
            raise
        except Exception as error:
            raise self._translate_error(error) from error

    def _translate_error(self, error: Exception) -> MedflError:
        """Return the medfl error for an error of NVFlare."""
        names = [kind.__name__ for kind in type(error).__mro__]
        advice = next((ADVICE[name] for name in names if name in ADVICE), "")
        message = f"the server at {self._server} reports {names[0]}: {error}. {advice}".rstrip()
        if set(names) & set(UNREACHABLE):
            return UnreachableError(
                "server_unreachable",
                f"the server at {self._server} can't be reached ({error}). {ADVICE['NoConnection']}",
                server=self._server,
            )
        if "JobNotRunning" in names or (names[0] == "InternalError" and "is not running" in str(error)):
            return JobNotRunningError("job_not_running", message, server=self._server, cause=names[0])
        if "JobNotFound" in names:
            return UnknownJobError("unknown_job", message, server=self._server, cause=names[0])
        if "NoReply" in names or (names[0] == "InternalError" and "no app command func" in str(error)):
            return JobNotRespondingError("job_not_responding", message, server=self._server, cause=names[0])
        return MedflError("nvflare_error", message, server=self._server, cause=names[0])


class UnreachableError(MedflError):
    """The server can't be reached at the moment."""


class JobNotRunningError(MedflError):
    """The job is not running."""


class JobNotRespondingError(MedflError):
    """The job does not respond at the moment, as at its start and its end."""


class UnknownJobError(MedflError):
    """The server does not know the job."""


def is_end_status(status: str) -> bool:
    """Return whether a status of NVFlare means that the job has ended."""
    return status.startswith("FINISHED")


@contextlib.contextmanager
def suppress_nvflare_output() -> Iterator[None]:
    """Suppress the output and the log of NVFlare; ``medfl --debug`` shows the log."""
    if os.environ.get("MEDFL_DEBUG") != "1":
        logging.getLogger("nvflare").setLevel(logging.CRITICAL + 1)
    with contextlib.redirect_stdout(io.StringIO()):
        yield
