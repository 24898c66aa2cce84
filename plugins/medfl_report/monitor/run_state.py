"""State of a monitored run, computed from the events of its ``progress.jsonl`` alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from medfl.engine.attendance import MISSED, TOOK_PART
from medfl.engine.status import DIVERGED, FINISHED
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
"""Seconds without a heartbeat after which a working site counts as silent: 1.5 times the interval of heartbeats."""

MAX_LOG_LINES = 200
"""Maximum number of log lines in memory; older lines are dropped."""

STEP_JOB = "step"
"""Kind of job in which a site executes a request of the method, such as training; the text in the events."""

STOPPED, ENDED_BY_SERVER = "stopped", "left"
"""Statuses of a monitored run in addition to the statuses of a run's summary.

`STOPPED`: an error or an interruption ended the process. `ENDED_BY_SERVER`: in the folder of a site of a distributed
run, the server ended the job.
"""


@dataclass
class SiteJob:
    """A job that a site works on.

    Attributes:
        activity: Activity of the site in words, such as ``training``.
        started_at: Time of the request, seconds since 1970.
        round: Round of the request or of the evaluated models; None if the job has none.
        step: Step of the request or of the evaluated models; None if the job has none.
        batch: Number of batches that are done; None if it is unknown or private.
        batches: Number of planned batches; None if it is unknown or private.
    """

    activity: str
    started_at: float
    round: int | None = None
    step: int | None = None
    batch: int | None = None
    batches: int | None = None

    @property
    def share(self) -> float | None:
        """Fraction of the batches that are done, in [0, 1]; None if it is unknown or private."""
        return None if self.batch is None or self.batches is None else min(1.0, self.batch / self.batches)


@dataclass
class SiteState:
    """State of a site.

    Attributes:
        jobs: Maps the kind of each unfinished job to the job. A site has several if one machine trains and scores it at
            the same time.
        last_heard_at: Time of the last event of the site, seconds since 1970.
        unavailable_because: Reason why the site sent no usable reply last time; empty if it sent one.
        last_seconds: Seconds of work for the last reply.
        total_seconds: Seconds of work for all replies.
        bytes_up: Bytes sent to the server.
        bytes_down: Bytes received from the server.
        bytes_to_peers: Bytes sent to other sites.
        replies: Number of steps in which the site sent a usable reply.
    """

    jobs: dict[str, SiteJob] = field(default_factory=dict)
    last_heard_at: float = 0.0
    unavailable_because: str = ""
    last_seconds: float = 0.0
    total_seconds: float = 0.0
    bytes_up: float = 0.0
    bytes_down: float = 0.0
    bytes_to_peers: float = 0.0
    replies: int = 0

    @property
    def main_job(self) -> SiteJob | None:
        """Job to show: the request of the method if there is one, else any other job; None if the site is idle."""
        return self.jobs.get(STEP_JOB) or next(iter(self.jobs.values()), None)

    def silent_seconds(self, now: float) -> float | None:
        """Return the seconds since the last event of a silent site.

        Args:
            now: Current time, seconds since 1970.

        Returns:
            None if the site has no job, or sent an event within the last `SILENT_SECONDS`.
        """
        quiet = now - self.last_heard_at
        return quiet if self.jobs and quiet > SILENT_SECONDS else None


@dataclass
class RunLogLine:
    """A line of the run's log.

    Attributes:
        at: Time of the event, seconds since 1970.
        text: Text of the line.
        level: ``info``, ``warn`` or ``bad``.
    """

    at: float
    text: str
    level: str = "info"


@dataclass
class RunState:
    """State of a run after the events so far. Only `apply` changes it.

    Attributes:
        method: Name of the method.
        seed: Seed of the run.
        rounds: Number of rounds in the settings.
        metric: First metric of the task.
        privacy: Promised differential privacy, or None.
        sites: Maps each site to its state, sorted by name.
        rounds_done: Number of finished rounds.
        status: Status with which the run ended; empty if no event says that the run ended.
        reason: Reason for the end; empty if there is none.
        unavailable: Sites that were unavailable at the end.
        first_event_at: Time of the first event, seconds since 1970.
        last_event_at: Time of the last event, seconds since 1970.
        seconds_by_round: Maps each finished round to its seconds, counted within one start of the run.
        mean_scores: Maps ``"MODEL SPLIT METRIC"`` to the mean score of the sites, or the server's score, by round.
        training_losses: Maps each round to the mean training loss of the sites.
        site_scores: Mapping from ``"MODEL SPLIT"`` (such as ``"personal test"``) and a site to the site's score in
            `metric` by round.
        attendance: Mapping from each site and round to whether the site replied (`TOOK_PART`) or not (`MISSED`). A
            round without a request to the site is left out.
        log: Latest log lines, oldest first.
        log_line_count: Number of log lines so far, including the dropped ones.
    """

    method: str = ""
    seed: int = 0
    rounds: int = 0
    metric: str = ""
    privacy: Privacy | None = None
    sites: dict[str, SiteState] = field(default_factory=dict)
    rounds_done: int = 0
    status: str = ""
    reason: str = ""
    unavailable: list[str] = field(default_factory=list)
    first_event_at: float = 0.0
    last_event_at: float = 0.0
    seconds_by_round: dict[int, float] = field(default_factory=dict)
    mean_scores: dict[str, dict[int, float]] = field(default_factory=dict)
    training_losses: dict[int, float] = field(default_factory=dict)
    site_scores: dict[str, dict[str, dict[int, float]]] = field(default_factory=dict)
    attendance: dict[str, dict[int, str]] = field(default_factory=dict)
    log: deque[RunLogLine] = field(default_factory=lambda: deque(maxlen=MAX_LOG_LINES))
    log_line_count: int = 0
    _round_started_at: float = 0.0
    """Start of the unfinished round, seconds since 1970."""

    def apply(self, at: float, event: Event) -> None:
        """Update the state by an event, in place.

        Args:
            at: Time of the event, seconds since 1970.
            event: The event. Its texts may come from other machines; they are cut to one printable line.
        """
        match event:
            case RunStart():
                self._apply_start(at, event)
            case JobStart():
                for site in self._known_sites(event.sites):
                    job = SiteJob(one_line(event.activity, 40), at, event.round, event.step)
                    site.jobs[event.job], site.last_heard_at = job, at
            case Heartbeat():
                self._apply_heartbeat(at, event)
            case JobEnd():
                for site in self._known_sites(event.sites):
                    site.jobs.pop(event.job, None)
                    site.last_heard_at, site.unavailable_because = at, ""
            case UnavailableSite():
                self._apply_unavailable_site(at, event)
            case CommittedStep():
                self._apply_commit(at, event)
            case RunEnd():
                self._apply_end(at, event)
            case RunStop():
                self._apply_stop(at, event)
            case SiteExit():
                self.status = ENDED_BY_SERVER
                self._clear_jobs()
                self._add_log_line(at, "the server ended its job")
        self.first_event_at, self.last_event_at = self.first_event_at or at, at

    # ---- one method for each kind of event

    def _apply_start(self, at: float, start: RunStart) -> None:
        names = sorted(one_line(site, 80) for site in start.sites)
        self.sites = {name: self.sites.get(name, SiteState()) for name in names}
        for name, site in self.sites.items():
            site.jobs, site.unavailable_because = {}, one_line(start.unavailable.get(name, ""))
        for rounds in self.attendance.values():  # a resumed run repeats the rounds after the last finished one
            for round_ in [round_ for round_ in rounds if round_ > self.rounds_done]:
                del rounds[round_]
        self.method, self.seed, self.rounds = one_line(start.method, 80), start.seed, start.rounds
        self.metric, self.privacy = one_line(start.metric, 80), start.privacy
        is_resumed = self.last_event_at > 0
        self.status, self.reason, self.unavailable, self._round_started_at = "", "", [], at
        sites = f"{self.rounds} rounds at {len(names)} site{'s' * (len(names) != 1)}"
        text = f"resumed after round {self.rounds_done}" if is_resumed else f"started: {self.method}, {sites}"
        self._add_log_line(at, text)
        for name, site in self.sites.items():
            if site.unavailable_because:
                self._add_log_line(at, f"{name} is unavailable: {site.unavailable_because}", "warn")

    def _apply_heartbeat(self, at: float, heartbeat: Heartbeat) -> None:
        for site in self._known_sites(heartbeat.sites):
            job = site.main_job if heartbeat.job is None else site.jobs.get(heartbeat.job) or site.main_job
            if job is not None:  # None: the heartbeat of a finished job came late
                job.activity = one_line(heartbeat.activity, 40) or job.activity
                job.batch, job.batches = heartbeat.batch, heartbeat.batches
            site.last_heard_at = at

    def _apply_unavailable_site(self, at: float, event: UnavailableSite) -> None:
        name, reason = one_line(event.site, 80), one_line(event.reason)
        for site in self._known_sites([name]):
            site.jobs = {}
            if reason != site.unavailable_because:
                site.unavailable_because = reason
                self._add_log_line(at, f"{name} is unavailable: {reason}", "warn")

    def _apply_commit(self, at: float, commit: CommittedStep) -> None:
        done = commit.rounds_done
        ends_round, self.rounds_done = done > self.rounds_done and done == commit.round, done
        unavailable = [one_line(name, 80) for name in commit.unavailable]
        for name in [one_line(name, 80) for name in commit.requested]:
            rounds = self.attendance.setdefault(name, {})
            was_missed = name in unavailable or rounds.get(commit.round) == MISSED
            rounds[commit.round] = MISSED if was_missed else TOOK_PART
            if name in self.sites and name not in unavailable:
                self.sites[name].replies += 1
        self._add_costs(commit.metrics.costs)
        self._add_scores(commit.round, commit.metrics)
        self._clear_jobs()
        if ends_round:
            self.seconds_by_round[done], self._round_started_at = at - self._round_started_at, at
            without = f"; without {', '.join(unavailable)}" if unavailable else ""
            text = f"round {done} of {self.rounds} completed after {self.seconds_by_round[done]:.1f} s{without}"
            self._add_log_line(at, text, "warn" if unavailable else "info")

    def _add_costs(self, costs: Mapping[str, StepCosts]) -> None:
        for name, cost in costs.items():
            if (site := self.sites.get(one_line(name, 80))) is not None:
                site.last_seconds, site.total_seconds = cost.work_seconds, site.total_seconds + cost.work_seconds
                site.bytes_up, site.bytes_down = site.bytes_up + cost.bytes_up, site.bytes_down + cost.bytes_down
                site.bytes_to_peers += cost.bytes_to_peers

    def _add_scores(self, round_: int, metrics: StepMetrics) -> None:
        if metrics.training_loss is not None:
            self.training_losses[round_] = metrics.training_loss
        if metrics.scored_round is None:
            return
        for name, score in {**metrics.scores, **metrics.server_scores}.items():
            self.mean_scores.setdefault(one_line(name, 120), {})[metrics.scored_round] = score
        for model_and_split, scores in metrics.site_scores.items():
            sites = self.site_scores.setdefault(one_line(model_and_split, 80), {})
            for name, score in scores.items():
                sites.setdefault(one_line(name, 80), {})[metrics.scored_round] = score

    def _apply_end(self, at: float, end: RunEnd) -> None:
        self.status, self.reason = end.status, one_line(end.reason)
        self.unavailable, self.rounds_done = [one_line(name, 80) for name in end.unavailable], end.rounds
        self._clear_jobs()
        reason = f": {self.reason}" if self.reason else ""
        level = "info" if self.status == FINISHED else "bad"
        self._add_log_line(at, f"{self.status}{self.available_sites_phrase}{reason}", level)

    def _apply_stop(self, at: float, stop: RunStop) -> None:
        error = one_line(stop.error, 80)
        self.status = STOPPED
        is_interruption = error in ("KeyboardInterrupt", "StoppedError")
        self.reason = "by the user" if is_interruption else f"by an error ({error}); see the output of its command"
        self._clear_jobs()
        self._add_log_line(at, f"stopped {self.reason}", "warn" if is_interruption else "bad")

    # ---- helpers

    @property
    def available_sites_phrase(self) -> str:
        """Phrase such as `` on 2 of 3 sites`` if sites were unavailable at the end; else empty."""
        count = len(self.sites)
        available = count - len(self.unavailable)
        return f" on {available} of {count} sites" if self.unavailable and self.status != DIVERGED else ""

    def _clear_jobs(self) -> None:
        for site in self.sites.values():
            site.jobs = {}

    def _known_sites(self, sites: Iterable[str]) -> list[SiteState]:
        """Return the states of the sites that take part in the run; other names are ignored."""
        names = [one_line(name, 80) for name in sites]
        return [self.sites[name] for name in names if name in self.sites]

    def _add_log_line(self, at: float, text: str, level: str = "info") -> None:
        self.log.append(RunLogLine(at, text, level))
        self.log_line_count += 1
