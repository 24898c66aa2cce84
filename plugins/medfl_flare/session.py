"""The researcher's side of a run between machines: submit it, follow it, fetch its results, continue it, stop it."""

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
from medfl_flare.follow import Followed, follow
from medfl_flare.job_folder import copy_result, read_summary, write_job
from medfl_flare.kit import admin_of
from medfl_flare.observers import keep_tracking, show_results
from medfl_flare.records.offer import Offer
from medfl_flare.records.submission import SubmissionFile

logger = logging.getLogger(__name__)

LOGIN_SECONDS = 10.0
"""How long to wait for the server when a session begins."""

ENDING = 60.0
"""Seconds to wait for the end of a job that was aborted."""

RETURNING = 75.0
"""Seconds to wait for the sites of a run that is continued. After a restart of the server they come back one by one: a
heartbeat that NVFlare sent in that moment is lost, and the next one follows after 30 s."""


@dataclass(frozen=True)
class Submission:
    """A run to submit.

    Attributes:
        offer: What server and sites must agree on. Without sites, those that are connected take part.
        kit: The researcher's startup kit.
        output_dir: The run folder here, for the results.
        tracking: What MONAI's ``--tracking`` was told, for observers here.
    """

    offer: Offer
    kit: Path
    output_dir: Path
    tracking: Meta = field(default_factory=dict)


def connect(kit: Path) -> Connection:
    """Connect a researcher's kit to its server.

    Raises:
        SettingsError: If it is not a researcher's kit, or NVFlare is not installed.
        MedflError: If the server can't be reached, or refuses the kit.
    """
    admin = admin_of(kit)

    def open_session() -> Any:
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
    """Submit a run, follow it to its end, fetch its results and write the report. An interruption stops no run.

    A run of that name goes on where it stopped. If a job of it is still at work, that one is followed.

    Args:
        submission: What to run.
        opener: Makes the connection to the server.

    Raises:
        SettingsError: If the kit, the folder or the sites are not possible.
        MedflError: If the server can't be reached, or the run ended early: the message says why and what to do.
    """
    _run(submission, opener, waiting=False)


def resume(output_dir: Path, opener: Callable[[Path], Connection] = connect) -> None:
    """Continue a run that was submitted from here, or follow it again if it is still at work.

    Args:
        output_dir: The run folder here.
        opener: Makes the connection to the server.

    Raises:
        StoreError: If nothing was submitted from that folder.
        MedflError: As of `submit`.
    """
    before = read_submission(output_dir)
    _run(Submission(before.offer, Path(before.kit), output_dir), opener, waiting=True)


def stop(output_dir: Path, opener: Callable[[Path], Connection] = connect) -> bool:
    """Abort the job of a run that was submitted from here. What is saved stays; the run can be resumed.

    Returns:
        Whether a job was at work.

    Raises:
        StoreError: If nothing was submitted from that folder.
        MedflError: If the server can't be reached.
    """
    before = read_submission(output_dir)
    with contextlib.closing(opener(Path(before.kit))) as connection:
        job = _unfinished(connection, before.jobs)
        return job is not None and connection.abort(job, ENDING)


def status(kit: Path, opener: Callable[[Path], Connection] = connect) -> list[tuple[str, str]]:
    """What the server knows, as rows of a name and a text: itself, the connected sites, the jobs, newest first.

    Args:
        kit: The researcher's startup kit.
        opener: Makes the connection to the server.

    Raises:
        SettingsError: If it is not a researcher's kit.
        MedflError: If the server can't be reached.
    """
    admin = admin_of(kit)
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
    """Return the run that was submitted from a run folder.

    Raises:
        StoreError: If none was, or its file can't be read.
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
    kit, out, offer = submission.kit, submission.output_dir, submission.offer
    admin_of(kit)
    before = _submitted_before(out)
    if before and not offer.sites:
        offer = offer.with_sites(before.offer.sites)  # a run's sites stay
    if submission.tracking:
        keep_tracking(out, submission.tracking)
    jobs = before.jobs if before else ()
    with contextlib.closing(opener(kit)) as connection:
        job = _unfinished(connection, jobs) or _unfetched(connection, jobs, out)
        if job is not None and before and before.offer.to_json() == offer.to_json():
            logger.info("Following the run's job %s.", job)
            followed = _follow(connection, job, out)
            if not followed.lost:
                _conclude(connection, followed, out)
                return
            logger.info("That job died with the server; the run goes on with a new one.")
        if job is not None:
            _give_up(connection, job, out)
        offer = with_sites(offer, connection, waiting=waiting)
        job = _send(connection, offer)
        SubmissionFile(offer=offer, kit=str(kit.resolve()), jobs=(*jobs, job)).write(out / SubmissionFile.NAME)
        logger.info("Submitted run '%s' as job %s to %s.", offer.run, job, ", ".join(offer.sites))
        _conclude(connection, _follow(connection, job, out), out)


def _submitted_before(out: Path) -> SubmissionFile | None:
    """Return the run that was submitted from a folder before, or None; create the folder if it is not there."""
    if (out / SubmissionFile.NAME).exists():
        return read_submission(out)
    if (out / "run.json").exists():
        raise SettingsError(
            "other_run",
            f"'{out}' holds a run that was not made between machines; choose another output_dir",
            path=out,
        )
    out.mkdir(parents=True, exist_ok=True)
    return None


def _unfinished(connection: Connection, jobs: Sequence[str]) -> str | None:
    """The last job if it is not over."""
    return jobs[-1] if jobs and not connection.is_over(jobs[-1]) else None


def _unfetched(connection: Connection, jobs: Sequence[str], out: Path) -> str | None:
    """The last job if it came to its end while nobody followed it."""
    with contextlib.suppress(UnknownJobError):
        if jobs and not (out / "summary.json").exists() and connection.status(jobs[-1]) == COMPLETED:
            return jobs[-1]
    return None


def _give_up(connection: Connection, job: str, out: Path) -> None:
    """Abort a job that died with the server; refuse where it is alive, for it runs with other settings."""
    if connection.progress(job).alive:
        raise SettingsError(
            "run_at_work",
            f"the run of '{out}' is at work with other settings (job {job}); `medfl federate stop {out}` ends it",
            path=out,
            job=job,
        )
    connection.abort(job, ENDING)


def with_sites(offer: Offer, connection: Connection, *, waiting: bool) -> Offer:
    """The offer with the connected sites if it names none.

    Args:
        offer: The run.
        connection: To the server.
        waiting: Whether sites are waited for, and may be missing in the end: the run's quorum decides then.

    Raises:
        SettingsError: If no site is connected, or too few of those that are named and not waited for.
    """
    connected = connection.sites_within(offer.sites, 0.0)
    if waiting and not (connected and set(offer.sites) <= set(connected)):
        logger.warning("Not all sites of the run are connected. Waiting for them, %.0f s at most.", RETURNING)
        connected = connection.sites_within(offer.sites, RETURNING)
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
            f"no site '{unavailable[0]}' is connected to the server. {did_you_mean(unavailable[0], connected)} With "
            "--min_replies a run starts without unavailable sites, and they join when it is resumed.",
            site=unavailable[0],
            known=connected,
        )
    if unavailable:
        logger.warning(
            "Not connected: %s. The run goes on without them as far as its quorum allows.", ", ".join(unavailable)
        )
    return offer if offer.sites else offer.with_sites(sorted(connected))


def _send(connection: Connection, offer: Offer) -> str:
    with tempfile.TemporaryDirectory(prefix="medfl-job-") as folder:
        return connection.submit(write_job(offer, Path(folder)))


def _follow(connection: Connection, job: str, out: Path) -> Followed:
    try:
        return follow(connection, job, out)
    except KeyboardInterrupt:
        logger.warning(
            "No longer following; the run goes on. `medfl federate resume %s` follows it again and fetches its "
            "results, `medfl federate stop %s` ends it.",
            out,
            out,
        )
        raise


def _conclude(connection: Connection, followed: Followed, out: Path) -> None:
    """Fetch what there is, write the report, and end with an error if the run did not end well."""
    again = f"`medfl federate resume {out}` continues it"
    if followed.lost:
        raise MedflError(
            "job_lost",
            f"the server lost the job, as when it is started anew; what was saved is there: {again}",
            job=followed.job,
        )
    why = _fetch(connection, followed, out)
    summary = read_summary(out)
    if why:
        raise MedflError(
            "run_failed", f"the run ended before its time: {why.strip()} Mend that, then {again}.", reason=why.strip()
        )
    if summary is None:
        raise MedflError(
            "missing_result",
            f"the server gave no result of the run ({followed.status}); {again}",
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


def _fetch(connection: Connection, followed: Followed, out: Path) -> str:
    """Copy the result of a job into the run folder; returns why the run failed, or an empty text."""
    for name in ("summary.json", "report.html"):
        (out / name).unlink(missing_ok=True)  # of an earlier job; this one's come now
    with tempfile.TemporaryDirectory(prefix=".fetched-", dir=out) as folder:
        fetched = connection.fetch(followed.job, Path(folder))
        error = (fetched or Path(folder)) / "error.txt"
        failed = error.read_text(encoding="utf-8", errors="replace") if error.is_file() else ""
        if fetched is not None:
            copy_result(fetched, out)
    done = followed.status == COMPLETED
    return failed or ("" if done and fetched is not None else connection.why(followed.job) + followed.last_words)
