"""Following a job: a bar on a terminal, a plain line for each round elsewhere; refusals and missing sites once."""

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
from medfl_flare.backend.answers import REASON
from medfl_flare.backend.remote_messages import EVENTS, MAX_STEP, START
from medfl_flare.backend.remote_progress import Mirror
from medfl_flare.connection import Connection, is_end

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""How often the server is asked."""

GONE_SECONDS = 45.0
"""How long a job may be said to run while it does not answer as one: after its end, the server waits for the sites."""

WAIT_SECONDS = 30.0
"""How long a job may wait for its start before that is told."""


@dataclass
class Followed:
    """How a job ended.

    Attributes:
        job: Its id.
        status: NVFlare's word for it.
        lost: Whether the server calls it running although it is not, as after a restart.
        progress: What the run told last.
    """

    job: str
    status: str = ""
    lost: bool = False
    progress: Meta = field(default_factory=dict)

    @property
    def last_words(self) -> str:
        """What the run said about its end, as a part of a sentence."""
        message = str(self.progress.get("message", ""))
        return f" {message}" if message else ""


def follow(connection: Connection, job: str, out: Path) -> Followed:
    """Follow a job to its end. What happens in the run can be watched here meanwhile (`medfl monitor`).

    Args:
        connection: To the server.
        job: Its id.
        out: The run folder here.

    Raises:
        MedflError: If the server can't be reached for a long time.
    """
    followed, teller, mirror = Followed(job), _Teller(), Mirror(out)
    silent_since: float | None = None
    with _display() as show:
        while True:
            followed.status = connection.status(job)
            if is_end(followed.status):
                return followed
            now = time.monotonic()
            if followed.status == "RUNNING":
                answer = connection.progress(job, mirror.known)
                if answer.progress:
                    followed.progress = readable(answer.progress)
                    mirror.add(answer.progress.get(START), answer.progress.get(EVENTS))
                    teller.tell(followed.progress)
                    show(followed.progress["round"], followed.progress)
                silent_since = None if answer.alive else silent_since or now
                if silent_since is not None:
                    followed.lost = now - silent_since > GONE_SECONDS or connection.died_with_server(job)
                if followed.lost:
                    return followed
            else:
                teller.waiting(connection, job, now)
            time.sleep(POLL_SECONDS)


def readable(progress: Meta) -> Meta:
    """What a server says of a run (`medfl.engine.runs.progress.Progress`), as it can be shown; what is something else
    is not.

    Args:
        progress: As it came.
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
        "missing": {one_line(site, 80): one_line(why, REASON) for site, why in missing.items()},
        "state": one_line(progress.get("state", ""), 80),
        "message": one_line(progress.get("message", ""), REASON),
    }


class _Teller:
    """Says what is new, once."""

    def __init__(self) -> None:
        self._told: dict[str, str] = {}
        self._since = time.monotonic()

    def tell(self, progress: Meta) -> None:
        """Sites from which nothing came, and why."""
        missing: Mapping[str, str] = progress.get("missing", {})
        for site, why in sorted(missing.items()):
            if self._told.get(site) != why:
                logger.warning("Site '%s' is missing: %s", site, why)
        self._told = dict(missing)

    def waiting(self, connection: Connection, job: str, now: float) -> None:
        """That a job has not begun for a while."""
        if now - self._since > WAIT_SECONDS and "waiting" not in self._told:
            self._told["waiting"] = ""
            logger.info("The job waits for its start. %s", connection.why(job))


def scores_text(progress: Meta) -> str:
    """Return what was scored and the scores of the last scored round; empty before the first one."""
    scores = ", ".join(f"{metric} {value:.3f}" for metric, value in progress.get("scores", {}).items())
    return f"validation images, mean over the sites, each with the model that it keeps: {scores}" if scores else ""


@contextmanager
def _display() -> Iterator[Callable[[int, Meta], None]]:
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
