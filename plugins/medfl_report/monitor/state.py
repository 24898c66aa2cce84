"""What a run's events come to: a state that each event changes, and nothing else does."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from medfl.engine.attendance import MISSED, TOOK_PART
from medfl.engine.status import DIVERGED
from medfl.records.progress import (
    CommittedStep,
    Event,
    Heartbeat,
    JobEnd,
    JobStart,
    RunEnd,
    RunStart,
    RunStop,
    SiteExit,
    StepCosts,
    StepMetrics,
    UnavailableSite,
)
from medfl.settings import Privacy
from medfl.utils.text import one_line

SILENT_SECONDS = 50.0
"""Seconds without a heartbeat after which a site that works counts as silent: one and a half times between two."""

LOG_LINES = 200
"""Lines of the log that are kept."""

ORDER = "step"
"""Kind of the jobs that are orders of the method."""

FINISHED, STOPPED, LEFT = "finished", "stopped", "left"
"""How a run ended, beside `medfl.engine.journal`'s words: `STOPPED` by an error, `LEFT` by the server of a site."""


@dataclass
class Task:
    """Something that a site was asked to do.

    Attributes:
        doing: What, in words.
        since: When it was asked, seconds since 1970.
        share: Of its batches that are done, in [0, 1]; None where nobody tells.
    """

    doing: str
    since: float
    share: float | None = None


@dataclass
class SiteState:
    """A site.

    Attributes:
        tasks: Kind of a job to what it is at; several where one machine trains and scores it at once.
        heard: When it was heard of last, seconds since 1970.
        why: Why nothing usable came from it last; empty if something did.
        seconds: Of its last work.
        spent: Seconds of all its work.
        up: Bytes that it sent to the server.
        down: Bytes that it got from there.
        to_peers: Bytes that it sent to other sites.
        replies: Steps that it answered.
    """

    tasks: dict[str, Task] = field(default_factory=dict)
    heard: float = 0.0
    why: str = ""
    seconds: float = 0.0
    spent: float = 0.0
    up: float = 0.0
    down: float = 0.0
    to_peers: float = 0.0
    replies: int = 0

    @property
    def task(self) -> Task | None:
        """What it is at, its orders first; None while nothing is asked of it."""
        return self.tasks.get(ORDER) or next(iter(self.tasks.values()), None)

    def silent(self, now: float) -> float | None:
        """For how many seconds it has been silent while it should work; None if it is not, or not for long enough."""
        quiet = now - self.heard
        return quiet if self.tasks and quiet > SILENT_SECONDS else None


@dataclass
class Line:
    """A line of the log.

    Attributes:
        at: Seconds since 1970.
        text: It.
        level: ``info``, ``warn`` or ``bad``.
    """

    at: float
    text: str
    level: str = "info"


@dataclass
class RunState:
    """A run, as far as its events tell.

    Attributes:
        method: Its name.
        seed: The run's.
        rounds: That it is to have.
        metric: The task's first one.
        privacy: Promised privacy, or None.
        sites: Site to how it stands, in the order of their names.
        round: Rounds that are over.
        step: Of the last commit.
        status: How it ended; empty while it is at work, as far as the events tell.
        reason: Why it ended so.
        away: Sites without which it ended.
        begun: When its first event was, seconds since 1970; `last` the last one.
        took: Round to the seconds from the one before, within one start of the run.
        curves: "model split metric" to round to mean score; `losses` the same of the training loss.
        by_site: "model split" to site to round to score, of `metric`.
        attendance: Site to round to `TOOK_PART` or `MISSED`; a round that it had no order in is not there.
        log: What happened, in words: the last lines.
        lines: How many lines there have been.
    """

    method: str = ""
    seed: int = 0
    rounds: int = 0
    metric: str = ""
    privacy: Privacy | None = None
    sites: dict[str, SiteState] = field(default_factory=dict)
    round: int = 0
    step: int = 0
    status: str = ""
    reason: str = ""
    unavailable: list[str] = field(default_factory=list)
    begun: float = 0.0
    last: float = 0.0
    took: dict[int, float] = field(default_factory=dict)
    curves: dict[str, dict[int, float]] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)
    by_site: dict[str, dict[str, dict[int, float]]] = field(default_factory=dict)
    attendance: dict[str, dict[int, str]] = field(default_factory=dict)
    log: deque[Line] = field(default_factory=lambda: deque(maxlen=LOG_LINES))
    lines: int = 0
    _mark: float = 0.0
    """When the round began that is under way."""

    def apply(self, at: float, event: Event) -> None:
        """Update the state by an event.

        Args:
            at: Time of the event, seconds since 1970.
            event: The event.
        """
        match event:
            case RunStart():
                self._start(at, event)
            case JobStart():
                for site in self._named(event.sites):
                    site.tasks[event.job], site.heard = Task(one_line(event.activity, 40), at), at
            case Heartbeat():
                self._beat(at, event)
            case JobEnd():
                for site in self._named(event.sites):
                    site.tasks.pop(event.job, None)
                    site.heard, site.why = at, ""
            case UnavailableSite():
                self._miss(at, event)
            case CommittedStep():
                self._commit(at, event)
            case RunEnd():
                self._end(at, event)
            case RunStop():
                self._stop(at, event)
            case SiteExit():
                self.status = LEFT
                self._rest()
                self._say(at, "the server ended its job")
        self.begun, self.last = self.begun or at, at

    # ---- one event each

    def _start(self, at: float, start: RunStart) -> None:
        names = sorted(one_line(site, 80) for site in start.sites)
        self.sites = {name: self.sites.get(name, SiteState()) for name in names}
        for name, site in self.sites.items():
            site.tasks, site.why = {}, one_line(start.unavailable.get(name, ""))
        for known in self.attendance.values():  # what came after the last whole round is done again
            for round_ in [round_ for round_ in known if round_ > self.round]:
                del known[round_]
        self.method, self.seed, self.rounds = one_line(start.method, 80), start.seed, start.rounds
        self.metric, self.privacy = one_line(start.metric, 80), start.privacy
        went_on, self.status, self.reason, self.unavailable, self._mark = self.last > 0, "", "", [], at
        sites = f"{self.rounds} rounds at {len(names)} site{'s' * (len(names) != 1)}"
        self._say(at, f"went on after round {self.round}" if went_on else f"began: {self.method}, {sites}")
        for name, site in self.sites.items():
            if site.why:
                self._say(at, f"{name} is missing: {site.why}", "warn")

    def _beat(self, at: float, beat: Heartbeat) -> None:
        for site in self._named(beat.sites):
            task = site.task if beat.job is None else site.tasks.get(beat.job) or site.task
            if task is not None:  # a late one, of work that is done, says nothing
                task.doing, task.share = one_line(beat.activity, 40) or task.doing, beat.share
            site.heard = at

    def _miss(self, at: float, event: UnavailableSite) -> None:
        name, why = one_line(event.site, 80), one_line(event.reason)
        for site in self._named([name]):
            site.tasks = {}
            if why != site.why:
                site.why = why
                self._say(at, f"{name} is missing: {why}", "warn")

    def _commit(self, at: float, commit: CommittedStep) -> None:
        self.step, done = commit.step, commit.rounds_done
        ended, self.round = done > self.round and done == commit.round, done
        missing = [one_line(name, 80) for name in commit.unavailable]
        for name in [one_line(name, 80) for name in commit.requested]:
            known = self.attendance.setdefault(name, {})
            was_missed = name in missing or known.get(commit.round) == MISSED
            known[commit.round] = MISSED if was_missed else TOOK_PART
            if name in self.sites and name not in missing:
                self.sites[name].replies += 1
        self._costs(commit.metrics.costs)
        self._scores(commit.round, commit.metrics)
        self._rest()
        if ended:
            self.took[done], self._mark = at - self._mark, at
            names = ", ".join(missing)
            without = f"; without {names}" if missing else ""
            text = f"round {done} of {self.rounds} is over after {self.took[done]:.1f} s{without}"
            self._say(at, text, "warn" if missing else "info")

    def _costs(self, costs: Mapping[str, StepCosts]) -> None:
        for name, cost in costs.items():
            if (site := self.sites.get(one_line(name, 80))) is not None:
                site.seconds, site.spent = cost.work_seconds, site.spent + cost.work_seconds
                site.up, site.down = site.up + cost.bytes_up, site.down + cost.bytes_down
                site.to_peers += cost.bytes_to_peers

    def _scores(self, round_: int, metrics: StepMetrics) -> None:
        if metrics.training_loss is not None:
            self.losses[round_] = metrics.training_loss
        if metrics.scored_round is None:
            return
        for name, score in {**metrics.scores, **metrics.server_scores}.items():
            self.curves.setdefault(one_line(name, 120), {})[metrics.scored_round] = score
        for kind, scores in metrics.site_scores.items():
            sites = self.by_site.setdefault(one_line(kind, 80), {})
            for name, score in scores.items():
                sites.setdefault(one_line(name, 80), {})[metrics.scored_round] = score

    def _end(self, at: float, end: RunEnd) -> None:
        self.status, self.reason = end.status, one_line(end.reason)
        self.unavailable, self.round = [one_line(name, 80) for name in end.unavailable], end.rounds
        self._rest()
        why = f": {self.reason}" if self.reason else ""
        self._say(at, f"{self.status}{self.ended_on}{why}", "info" if self.status == FINISHED else "bad")

    def _stop(self, at: float, stop: RunStop) -> None:
        error = one_line(stop.error, 80)
        self.status = STOPPED
        by_hand = error in ("KeyboardInterrupt", "StoppedError")
        self.reason = "by hand" if by_hand else f"by an error ({error}); where it was started it says more"
        self._rest()
        self._say(at, f"stopped {self.reason}", "warn" if by_hand else "bad")

    # ---- pieces

    @property
    def ended_on(self) -> str:
        """On how many of its sites it ended, as a part of a sentence; empty if on all."""
        there, count = len(self.sites) - len(self.unavailable), len(self.sites)
        return f" on {there} of {count} sites" if self.unavailable and self.status != DIVERGED else ""

    def _rest(self) -> None:
        for site in self.sites.values():
            site.tasks = {}

    def _named(self, sites: Iterable[str]) -> list[SiteState]:
        names = [one_line(name, 80) for name in sites]
        return [self.sites[name] for name in names if name in self.sites]

    def _say(self, at: float, text: str, level: str = "info") -> None:
        self.log.append(Line(at, text, level))
        self.lines += 1
