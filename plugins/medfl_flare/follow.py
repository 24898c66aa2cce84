"""Following of a job: a progress bar on a terminal, otherwise one line per round, and one line per unavailable site."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from medfl.types import Meta
from medfl.utils.progress import progress_bar
from medfl.utils.text import one_line
from medfl_flare.backend.protocol_messages import LINES_KEY, MAX_STEP, POSITION_KEY
from medfl_flare.backend.run_progress import ProgressCopy
from medfl_flare.backend.site_replies import MAX_REASON_CHARACTERS
from medfl_flare.connection import Connection, is_end_status

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""Seconds between two requests to the server."""

GONE_SECONDS = 45.0
"""Seconds without a response after which a job counts as lost although NVFlare reports it as running. The time must be
long enough for the end of a job, when the server still waits for the sites."""

WAIT_SECONDS = 30.0
"""Seconds that a job may wait for its start before the delay is reported."""


@dataclass
class FollowedJob:
    """State of a job while it is followed; `follow` returns it at the end of the job.

    Attributes:
        job: Id of the job.
        status: NVFlare's status of the job, such as ``FINISHED:COMPLETED``.
        lost: Whether the server reports the job as running although it is not, as after a restart of the server.
        progress: Last status that the run reported, with the keys ``state``, ``round``, ``rounds``, ``scores``,
            ``missing`` and ``message``; empty before the first report.
    """

    job: str
    status: str = ""
    lost: bool = False
    progress: Meta = field(default_factory=dict)

    @property
    def end_message(self) -> str:
        """The run's own message about its end, as a part of a sentence, or empty."""
        message = str(self.progress.get("message", ""))
        return f" {message}" if message else ""


def follow(connection: Connection, job: str, out: Path) -> FollowedJob:
    """Follow a job to its end, and return its last state.

    Shows the progress, and copies the run's progress file, so that `medfl monitor` can show the run.

    Args:
        connection: Connection to the server.
        job: Id of the job.
        out: The local run folder.

    Raises:
        MedflError: If the server can't be reached for a long time.
    """
    followed, news, progress_copy = FollowedJob(job), _NewsLog(), ProgressCopy(out)
    silent_since: float | None = None
    with _progress_display() as show:
        while True:
            followed.status = connection.status(job)
            if is_end_status(followed.status):
                return followed
            now = time.monotonic()
            if followed.status == "RUNNING":
                answer = connection.progress(job, progress_copy.known)
                if answer.progress:
                    followed.progress = sanitize_status(answer.progress)
                    progress_copy.add(answer.progress.get(POSITION_KEY), answer.progress.get(LINES_KEY))
                    news.report_unavailable_sites(followed.progress)
                    show(followed.progress["round"], followed.progress)
                silent_since = None if answer.alive else silent_since or now
                if silent_since is not None:
                    followed.lost = now - silent_since > GONE_SECONDS or connection.died_with_server(job)
                if followed.lost:
                    return followed
            else:
                news.report_delay(connection, job, now)
            time.sleep(POLL_SECONDS)


def sanitize_status(progress: Meta) -> Meta:
    """Return a server's status report with only valid values, as short printable lines; other values are removed.

    Args:
        progress: The untrusted report (`medfl_flare.backend.run_progress.RunStatus`).
    """
    scores, missing = (value if isinstance(value := progress.get(name), dict) else {} for name in ("scores", "missing"))
    counts = {name: progress.get(name) for name in ("round", "rounds")}
    return {
        **{name: count if type(count) is int and 0 <= count < MAX_STEP else 0 for name, count in counts.items()},
        "scores": {
            one_line(name, 80): value
            for name, value in scores.items()
            if isinstance(value, int | float) and abs(value) < 2**63
        },
        "missing": {one_line(site, 80): one_line(why, MAX_REASON_CHARACTERS) for site, why in missing.items()},
        "state": one_line(progress.get("state", ""), 80),
        "message": one_line(progress.get("message", ""), MAX_REASON_CHARACTERS),
    }


class _NewsLog:
    """Logger of news that reports each item once."""

    def __init__(self) -> None:
        self._reported: dict[str, str] = {}
        self._since = time.monotonic()

    def report_unavailable_sites(self, progress: Meta) -> None:
        """Log each site that became unavailable, with the reason."""
        missing: Mapping[str, str] = progress.get("missing", {})
        for site, why in sorted(missing.items()):
            if self._reported.get(site) != why:
                logger.warning("Site '%s' is unavailable: %s", site, why)
        self._reported = dict(missing)

    def report_delay(self, connection: Connection, job: str, now: float) -> None:
        """Log once that the job has not begun for a while."""
        if now - self._since > WAIT_SECONDS and "waiting" not in self._reported:
            self._reported["waiting"] = ""
            logger.info("The job has not started yet. %s", connection.end_reason(job))


def scores_text(progress: Meta) -> str:
    """Return the scores of the last scored round as text; empty before the first one."""
    scores = ", ".join(f"{metric} {value:.3f}" for metric, value in progress.get("scores", {}).items())
    return f"validation images, mean over the sites, personal models if there are any: {scores}" if scores else ""


@contextmanager
def _progress_display() -> Iterator[Callable[[int, Meta], None]]:
    """Context manager that yields a function (round, status) which updates the progress display."""
    start, last, latest = time.monotonic(), 0, Meta()

    def plain(done: int, total: int | None = None, text: str | None = None) -> None:
        nonlocal last
        if done > last:
            last = done
            seconds = time.monotonic() - start
            logger.info("round %d of %s, %.0f s %s", done, latest.get("rounds", "?"), seconds, scores_text(latest))

    with progress_bar("round", plain=plain, text="starting", clock=None) as show:

        def show_round(round_: int, progress: Meta) -> None:
            latest.update(progress)
            show(round_, progress.get("rounds") or None, scores_text(progress) or str(progress.get("state", "")))

        yield show_round
