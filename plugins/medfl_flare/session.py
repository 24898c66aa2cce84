"""The researcher's side of a distributed run: submit it, follow it, fetch its results, resume it, stop it.

An offer is the proposal of a run, with bundle, method, settings and sites. A run may need several jobs of NVFlare, one
for each time that it is submitted or resumed. The run's quorum is the minimum number of sites that must reply in a step
(`min_replies`).
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medfl.errors import MedflError, SettingsError, StoreError, did_you_mean, pip_install
from medfl.types import Meta
from medfl_flare.connection import COMPLETED, Connection, UnknownJobError
from medfl_flare.follow import FollowedJob, follow
from medfl_flare.job_folder import copy_result, read_summary, write_job
from medfl_flare.kit import read_admin_kit
from medfl_flare.observers import keep_tracking, show_results
from medfl_flare.records.gpu_request import GpuRequest
from medfl_flare.records.offer import Offer
from medfl_flare.records.submission import SubmissionFile

logger = logging.getLogger(__name__)

LOGIN_SECONDS = 10.0
"""Seconds to wait for the server when a session begins."""

ABORT_SECONDS = 60.0
"""Seconds to wait for the end of an aborted job."""

RECONNECT_SECONDS = 75.0
"""Seconds to wait for the sites of a resumed run. After a restart of the server the sites reconnect one by one: a
heartbeat that NVFlare sent during the restart is lost, and the next one follows after 30 s."""


@dataclass(frozen=True)
class Submission:
    """A run to submit.

    Attributes:
        offer: Offer of the run. If it names no sites, the connected sites take part.
        kit: The researcher's startup kit.
        output_dir: The local run folder, for the results.
        tracking: Value of MONAI's ``--tracking``, for observers on this machine.
        gpus: GPUs that each site must grant to the run's job; None requests none.
    """

    offer: Offer
    kit: Path
    output_dir: Path
    tracking: Meta = field(default_factory=dict)
    gpus: GpuRequest | None = None


def connect(kit: Path) -> Connection:
    """Connect a researcher's kit to its server.

    Raises:
        SettingsError: If the kit is not a researcher's kit, or if NVFlare is not installed.
        MedflError: If the server can't be reached, or if it refuses the kit.
    """
    admin = read_admin_kit(kit)

    def open_session() -> Any:
        """Log in to the server with NVFlare's API."""
        try:
            from nvflare.fuel.flare_api.flare_api import new_secure_session
        except ImportError as error:
            raise SettingsError(
                "missing_package",
                f"NVIDIA FLARE is not installed: {pip_install('flare')} ({error})",
                package="nvflare",
                extra="flare",
            ) from error
        return new_secure_session(admin["username"], str(kit.resolve()), timeout=LOGIN_SECONDS)

    return Connection(open_session, f"{admin['host']}:{admin['port']}")


def submit(submission: Submission, opener: Callable[[Path], Connection] = connect) -> None:
    """Submit a run, follow it to its end, fetch its results and write the report.

    A run of the same name continues from its last step. If a job of the run is still running, that job is followed
    instead. An interruption of this function does not stop the run.

    Args:
        submission: Run to submit.
        opener: Function that opens the connection to the server.

    Raises:
        SettingsError: If the kit, the folder or the sites are invalid.
        MedflError: If the server can't be reached, or if the run ended early; with the reason and what to do.
    """
    _run(submission, opener, waiting=False)


def resume(output_dir: Path, opener: Callable[[Path], Connection] = connect) -> None:
    """Continue a run that was submitted from a folder, or follow it again if it is still running.

    Args:
        output_dir: The local run folder.
        opener: Function that opens the connection to the server.

    Raises:
        StoreError: If no run was submitted from that folder.
        MedflError: As for `submit`.
    """
    before = read_submission(output_dir)
    _run(Submission(before.offer, Path(before.kit), output_dir, gpus=before.gpus), opener, waiting=True)


def stop(output_dir: Path, opener: Callable[[Path], Connection] = connect) -> bool:
    """Abort the job of a run that was submitted from a folder. Saved steps are kept; the run can be resumed.

    Returns:
        Whether a job was running.

    Raises:
        StoreError: If no run was submitted from that folder.
        MedflError: If the server can't be reached.
    """
    before = read_submission(output_dir)
    with contextlib.closing(opener(Path(before.kit))) as connection:
        job = _running_job(connection, before.jobs)
        return job is not None and connection.abort(job, ABORT_SECONDS)


def status(kit: Path, opener: Callable[[Path], Connection] = connect) -> list[tuple[str, str]]:
    """Return rows of (name, text) about the server, the connected sites, and the jobs, newest first.

    Args:
        kit: The researcher's startup kit.
        opener: Function that opens the connection to the server.

    Raises:
        SettingsError: If the kit is not a researcher's kit.
        MedflError: If the server can't be reached.
    """
    admin = read_admin_kit(kit)
    with contextlib.closing(opener(kit)) as connection:
        sites = connection.sites()
        rows = [("server", f"{admin['host']}:{admin['port']} is up")]
        rows += [("site", f"{name}, last heard of {seen}") for name, seen in sorted(sites.items())]
        rows += [] if sites else [("site", "none is connected")]
        for job in connection.jobs():
            line = f"{job['job_id']} {job['status']}, submitted {str(job['submit_time'])[:19].replace('T', ' ')} UTC"
            rows.append((str(job["job_name"]), line))
    return rows


def read_submission(output_dir: Path) -> SubmissionFile:
    """Return the record of the run that was submitted from a run folder.

    Raises:
        StoreError: If no run was submitted from it, or if its file can't be read.
    """
    path = output_dir / SubmissionFile.NAME
    if not path.exists():
        raise StoreError(
            "missing_file",
            f"no run was submitted from '{output_dir}': expected '{path}'. `medfl federate submit` writes it.",
            path=path,
        )
    return SubmissionFile.read(path)


def _run(submission: Submission, opener: Callable[[Path], Connection], *, waiting: bool) -> None:
    """Submit or follow a run, and fetch its results."""
    kit, out, offer = submission.kit, submission.output_dir, submission.offer
    read_admin_kit(kit)
    before = _submitted_before(out)
    if before and not offer.sites:
        offer = offer.with_sites(before.offer.sites)  # a run keeps its sites
    if submission.tracking:
        keep_tracking(out, submission.tracking)
    jobs = before.jobs if before else ()
    with contextlib.closing(opener(kit)) as connection:
        job = _running_job(connection, jobs) or _unfetched_job(connection, jobs, out)
        if job is not None and before and before.offer.to_json() == offer.to_json():
            logger.info("Following the run's job %s.", job)
            followed = _follow(connection, job, out)
            if not followed.lost:
                _finish(connection, followed, out)
                return
            logger.info("That job ended with the server; the run continues in a new job.")
        if job is not None:
            _abort_lost_job(connection, job, out)
        offer = with_sites(offer, connection, waiting=waiting)
        job = _submit_job(connection, offer, submission.gpus)
        record = SubmissionFile(offer=offer, kit=str(kit.resolve()), jobs=(*jobs, job), gpus=submission.gpus)
        record.write(out / SubmissionFile.NAME)
        logger.info("Submitted run '%s' as job %s to %s.", offer.run, job, ", ".join(offer.sites))
        _finish(connection, _follow(connection, job, out), out)


def _submitted_before(out: Path) -> SubmissionFile | None:
    """Return the run that was submitted from a folder before, or None. Creates the folder."""
    if (out / SubmissionFile.NAME).exists():
        return read_submission(out)
    if (out / "run.json").exists():
        raise SettingsError(
            "other_run",
            f"'{out}' contains a run that was not distributed; choose another output_dir",
            path=out,
        )
    out.mkdir(parents=True, exist_ok=True)
    return None


def _running_job(connection: Connection, jobs: Sequence[str]) -> str | None:
    """Return the last job if it has not ended."""
    return jobs[-1] if jobs and not connection.has_ended(jobs[-1]) else None


def _unfetched_job(connection: Connection, jobs: Sequence[str], out: Path) -> str | None:
    """Return the last job if it completed but its results were not fetched."""
    with contextlib.suppress(UnknownJobError):
        if jobs and not (out / "summary.json").exists() and connection.status(jobs[-1]) == COMPLETED:
            return jobs[-1]
    return None


def _abort_lost_job(connection: Connection, job: str, out: Path) -> None:
    """Abort a job that died with the server; raise if it is running, as it has other settings."""
    if connection.progress(job).alive:
        raise SettingsError(
            "run_at_work",
            f"the run of '{out}' is running with other settings (job {job}); `medfl federate stop {out}` ends it",
            path=out,
            job=job,
        )
    connection.abort(job, ABORT_SECONDS)


def with_sites(offer: Offer, connection: Connection, *, waiting: bool) -> Offer:
    """Return the offer with the connected sites if it names none.

    Args:
        offer: Offer of the run.
        connection: Connection to the server.
        waiting: Whether to wait for unavailable sites. Some may still be unavailable afterwards; the run's quorum then
            decides.

    Raises:
        SettingsError: If no site is connected, or if too few of the named sites are connected and `waiting` is False.
    """
    connected = connection.sites_within(offer.sites, 0.0)
    if waiting and not (connected and set(offer.sites) <= set(connected)):
        logger.warning("Not all sites of the run are connected. Waiting for them, at most %.0f s.", RECONNECT_SECONDS)
        connected = connection.sites_within(offer.sites, RECONNECT_SECONDS)
    unavailable = sorted(set(offer.sites) - set(connected))
    if not connected or len(unavailable) == len(offer.sites) > 0:
        raise SettingsError(
            "no_connected_sites",
            "no site of the run is connected to the server; start them with `medfl federate start KIT`",
        )
    least = offer.overrides.get("min_replies")
    if unavailable and not waiting and not (isinstance(least, int) and len(connected) >= least):
        raise SettingsError(
            "unavailable_site",
            f"no site '{unavailable[0]}' is connected to the server. {did_you_mean(unavailable[0], connected)} "
            "With --min_replies a run begins without unavailable sites, and they join when it is resumed.",
            site=unavailable[0],
            known=connected,
        )
    if unavailable:
        logger.warning(
            "Not connected: %s. The run continues without them if its quorum allows.", ", ".join(unavailable)
        )
    return offer if offer.sites else offer.with_sites(sorted(connected))


def _submit_job(connection: Connection, offer: Offer, gpus: GpuRequest | None) -> str:
    """Write the job of an offer, submit it and return its id."""
    with tempfile.TemporaryDirectory(prefix="medfl-job-") as folder:
        return connection.submit(write_job(offer, Path(folder), gpus=gpus))


def _follow(connection: Connection, job: str, out: Path) -> FollowedJob:
    """Follow a job to its end; on an interruption, log how to continue."""
    try:
        return follow(connection, job, out)
    except KeyboardInterrupt:
        logger.warning(
            "No longer following; the run continues. `medfl federate resume %s` follows it again and fetches its "
            "results, `medfl federate stop %s` ends it.",
            out,
            out,
        )
        raise


def _finish(connection: Connection, followed: FollowedJob, out: Path) -> None:
    """Fetch the results, write the report, and raise if the run failed or is incomplete."""
    again = f"`medfl federate resume {out}` continues it"
    if followed.lost:
        raise MedflError(
            "job_lost",
            f"the server lost the job, as after a restart; the saved steps are valid: {again}",
            job=followed.job,
        )
    why = _fetch_results(connection, followed, out)
    summary = read_summary(out)
    if why:
        raise MedflError(
            "run_failed", f"the run ended early: {why.strip()} Correct that, then {again}.", reason=why.strip()
        )
    if summary is None:
        raise MedflError(
            "missing_result",
            f"the server returned no result of the run ({followed.status}); {again}",
            status=followed.status,
        )
    show_results(summary, out)
    if summary.status != "finished":
        raise MedflError(
            "run_not_finished",
            f"the run ended as {summary.status}: {summary.reason} {again}.",
            status=summary.status,
            reason=summary.reason,
        )


def _fetch_results(connection: Connection, followed: FollowedJob, out: Path) -> str:
    """Copy the result of a job into the run folder. Returns the reason why the run failed, or an empty text."""
    for name in ("summary.json", "report.html"):
        (out / name).unlink(missing_ok=True)  # results of an earlier job
    with tempfile.TemporaryDirectory(prefix=".fetched-", dir=out) as folder:
        fetched = connection.fetch(followed.job, Path(folder))
        error = (fetched or Path(folder)) / "error.txt"
        failed = error.read_text(encoding="utf-8", errors="replace") if error.is_file() else ""
        if fetched is not None:
            copy_result(fetched, out)
    done = followed.status == COMPLETED
    if failed or (done and fetched is not None):
        return failed
    return connection.end_reason(followed.job) + followed.end_message
