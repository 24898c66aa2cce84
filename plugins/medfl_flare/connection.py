"""The connection of a researcher to the server. What NVFlare prints is kept away, and its errors say what to do."""

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
from medfl_flare.backend.remote_messages import AFTER, PROGRESS
from medfl_flare.kit import LOG

logger = logging.getLogger(__name__)

PATIENCE = 300.0
"""Seconds for which a server that can't be reached is tried again."""

RETRY_SECONDS = 2.0
COMPLETED = "FINISHED:COMPLETED"
"""NVFlare's word for a job that came to its own end."""

UNREACHABLE = ("NoConnection", "SessionClosed", "SessionExpired")
"""NVFlare's errors after which a new session is worth a try."""

ADVICE = {
    "NoConnection": "Is it started (`medfl federate start KIT`), and is its port open from here?",
    "AuthenticationError": "The kit's certificate is of another federation, or at its end; ask whoever made the kit.",
    "AuthorizationError": "The server's local/authorization.json does not allow it; ask its administrator.",
    "InvalidJobDefinition": "The versions of NVFlare here and there may differ; install the same.",
    "JobNotFound": "The server does not know that job (it may have lost its storage); submit the run again.",
    "NoClientsAvailable": "No site is connected; start them with `medfl federate start KIT`.",
}
"""Name of an error of NVFlare's to what to do."""


@dataclass(frozen=True)
class Answer:
    """What a job says about itself.

    Attributes:
        alive: Whether it is at work, or may be: a job that starts or ends does not answer for a while.
        progress: How far it is; empty if it did not say.
    """

    alive: bool
    progress: Meta


class Connection:
    """A session with the server that survives its absence for a while.

    Args:
        open_session: Opens a session of NVFlare's API (or what has its methods); called again after a loss.
        server: Host and port, for messages.
        patience: Seconds for which a server that can't be reached is tried again, once it was.

    Raises:
        MedflError: If the first try fails.
    """

    def __init__(self, open_session: Callable[[], Any], server: str, patience: float = PATIENCE) -> None:
        self._open, self._server, self._patience = open_session, server, patience
        self._session = self._quietly(open_session)

    def close(self) -> None:
        """Log out; what goes wrong in that is of no interest."""
        if self._session is not None:
            with contextlib.suppress(Exception), quiet():
                self._session.close()
            self._session = None

    def sites(self) -> dict[str, str]:
        """The connected sites, each with when it was last heard of."""
        now = time.time()
        clients = self._ask("get_system_info").client_info
        return {site.name: f"{max(0.0, now - float(site.last_connect_time)):.0f} s ago" for site in clients}

    def sites_within(self, wanted: Collection[str], seconds: float) -> list[str]:
        """The connected sites, as soon as all the wanted ones are among them or the time is over."""
        end = time.monotonic() + seconds
        while True:
            connected = self.sites()
            if set(wanted) <= set(connected) and connected or time.monotonic() >= end:
                return sorted(connected)
            time.sleep(RETRY_SECONDS)

    def jobs(self) -> list[Meta]:
        """What the server knows of its jobs, newest first."""
        jobs: list[Meta] = self._ask("list_jobs")
        return sorted(jobs, key=lambda job: str(job.get("submit_time", "")), reverse=True)

    def submit(self, folder: Path) -> str:
        """Submit a job; returns its id."""
        return str(self._ask("submit_job", str(folder), retry=False))

    def status(self, job: str) -> str:
        """NVFlare's word for how a job stands, such as ``RUNNING`` or ``FINISHED:COMPLETED``."""
        return str(self._ask("get_job_meta", job).get("status", ""))

    def is_over(self, job: str) -> bool:
        """Whether a job has ended, or the server does not know it."""
        try:
            return is_end(self.status(job))
        except UnknownJobError:
            return True

    def why(self, job: str) -> str:
        """What NVFlare says about a job's end, or why it waits; a sentence."""
        meta = self._ask("get_job_meta", job)
        if meta.get("status") == "FINISHED:ABORTED":
            return "its job was aborted."
        waits = meta.get("status") in ("SUBMITTED", "FINISHED:CAN_NOT_SCHEDULE")
        reasons = [*(meta.get("schedule_history") or [])[-1:]] if waits else meta.get("job_deploy_detail") or []
        refused = [str(text) for text in reasons if not str(text).endswith(": OK")]
        return f"NVFlare says {meta.get('status')}" + (f": {'; '.join(refused)}." if refused else ".")

    def progress(self, job: str, after: int = 0) -> Answer:
        """How far a job is.

        Args:
            job: Its id.
            after: Bytes of the run's progress that are here already; the answer has those that follow.
        """
        try:
            progress = self._ask("do_app_command", job, PROGRESS, {AFTER: after})
        except SilentError:
            return Answer(True, {})
        except GoneError:
            return Answer(False, {})
        return Answer(True, progress if isinstance(progress, dict) else {})

    def died_with_server(self, job: str) -> bool:
        """Whether the server was started after the job: NVFlare calls such a job running for ever."""
        began = self._ask("get_job_meta", job).get("start_time") or ""
        server = self._ask("get_system_info").server_info.start_time
        try:
            return datetime.datetime.fromisoformat(began).timestamp() < float(server)
        except (TypeError, ValueError):
            return False

    def abort(self, job: str, patience: float) -> bool:
        """End a job and wait for its end.

        Returns:
            Whether it was at work.

        Raises:
            MedflError: If it is not over in that many seconds.
        """
        try:
            self._ask("abort_job", job)
        except (GoneError, UnknownJobError):
            return False
        end = time.monotonic() + patience
        while not self.is_over(job):
            if time.monotonic() > end:
                raise MedflError(
                    "job_still_running",
                    f"job {job} does not end within {patience:g} s; look at the server's {LOG}",
                    job=job,
                    seconds=patience,
                )
            time.sleep(RETRY_SECONDS / 4)
        return True

    def fetch(self, job: str, folder: Path) -> Path | None:
        """Fetch a job's result into a folder.

        Returns:
            What the run left for whoever submitted it, or None if it left nothing.
        """
        result = Path(self._ask("download_job_result", job, str(folder)) or folder) / "workspace" / "medfl"
        return result if result.is_dir() else None

    def _ask(self, name: str, *arguments: Any, retry: bool = True) -> Any:
        """Call a method of the session; if the server can't be reached, again and again for a while."""
        end, warned = time.monotonic() + self._patience, False
        while True:
            try:
                if self._session is None:
                    self._session = self._quietly(self._open)
                return self._quietly(lambda: getattr(self._session, name)(*arguments))
            except UnreachableError:
                if not retry or time.monotonic() > end:
                    raise
                if not warned:
                    logger.warning("The server at %s can't be reached; trying again.", self._server)
                    warned = True
                self.close()
                time.sleep(RETRY_SECONDS)

    def _quietly(self, call: Callable[[], Any]) -> Any:
        """Make a call of NVFlare's; its errors become medfl's."""
        try:
            with quiet():
                return call()
        except MedflError:
            raise
        except Exception as error:
            raise self._known(error) from error

    def _known(self, error: Exception) -> MedflError:
        names = [kind.__name__ for kind in type(error).__mro__]
        advice = next((ADVICE[name] for name in names if name in ADVICE), "")
        message = f"the server at {self._server} says {names[0]}: {error}. {advice}".rstrip()
        if set(names) & set(UNREACHABLE):
            return UnreachableError(
                "server_unreachable",
                f"the server at {self._server} can't be reached ({error}). {ADVICE['NoConnection']}",
                server=self._server,
            )
        if "JobNotRunning" in names or (names[0] == "InternalError" and "is not running" in str(error)):
            return GoneError("job_not_running", message, server=self._server, cause=names[0])
        if "JobNotFound" in names:
            return UnknownJobError("unknown_job", message, server=self._server, cause=names[0])
        if "NoReply" in names or (names[0] == "InternalError" and "no app command func" in str(error)):
            return SilentError("job_not_responding", message, server=self._server, cause=names[0])
        return MedflError("nvflare_error", message, server=self._server, cause=names[0])


class UnreachableError(MedflError):
    """The server can't be reached now."""


class GoneError(MedflError):
    """The job is not at work."""


class SilentError(MedflError):
    """The job does not answer now, as at its start and its end."""


class UnknownJobError(MedflError):
    """The server does not know the job."""


def is_end(status: str) -> bool:
    """Whether NVFlare's word for a job's state means that it is over."""
    return status.startswith("FINISHED")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep away what NVFlare prints and logs; ``medfl --debug`` shows its log."""
    if os.environ.get("MEDFL_DEBUG") != "1":
        logging.getLogger("nvflare").setLevel(logging.CRITICAL + 1)
    with contextlib.redirect_stdout(io.StringIO()):
        yield
