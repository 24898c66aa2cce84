"""Texts and numbers that show a run, shared by the terminal, the page and ``medfl status``."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from medfl.engine.attendance import TOOK_PART
from medfl.engine.status import DIVERGED, FINISHED, INCOMPLETE
from medfl.utils.formats import MISSING, duration, score, sentence, size
from medfl_report.monitor.run_state import ENDED_BY_SERVER, STOPPED, RunState, SiteJob, SiteState

RECENT_ROUNDS = 5
"""Number of latest rounds whose median duration estimates the remaining time."""

SHOWN_LOG_LINES = 12
"""Number of latest log lines to show."""

QUIET_SECONDS = 150.0
"""Seconds without any event after which a run on another machine may have ended; several heartbeats long."""

MODELS_AND_SPLITS = ("personal test", "global test", "personal val", "global val")
"""Models and splits with scores, in the order in which they are shown."""


@dataclass(frozen=True)
class SiteView:
    """Texts and numbers that show the state of a site.

    Attributes:
        name: Name of the site.
        activity: Current activity and position in words, such as ``training for 3.0 s: round 2, step 3, batch 40 of
            90`` or ``unavailable: REASON``.
        level: ``work``, ``idle`` or ``bad``; sets the colour.
        share: Fraction of the current job's batches that are done, in [0, 1]; None if idle or unknown.
        rounds: Number of rounds in which the site took part, and number of rounds with a request to the site, such as
            ``2 of 3``.
        seconds: Seconds of the last work and of all work, such as ``3.0 s (9.0 s)``.
        sent: Bytes sent to the server and to other sites, with a unit.
        received: Bytes received from the server, with a unit.
        score: Score of the model that the site would export, after the last scored round; None without scores.
        epsilon: Epsilon spent on the site's data so far; None if it is unknown or no privacy is promised.
    """

    name: str
    activity: str
    level: str
    share: float | None
    rounds: str
    seconds: str
    sent: str
    received: str
    score: float | None
    epsilon: float | None


@dataclass(frozen=True)
class ProgressCurve:
    """A score or loss by round.

    Attributes:
        title: Metric, model and images of the curve.
        rounds: Scored rounds, ascending; at least one.
        mean: Mean of the sites, or the server's score, one for each round.
        sites: Maps each site to its own values by round; empty if only `mean` is known.
    """

    title: str
    rounds: list[int]
    mean: list[float]
    sites: Mapping[str, Mapping[int, float]]


class LogEntry(NamedTuple):
    """A log line to show.

    Attributes:
        time: Time of day, such as ``14:03:59``.
        text: Text of the line.
        level: ``info``, ``warn`` or ``bad``.
    """

    time: str
    text: str
    level: str


class RunStatus(NamedTuple):
    """Status of a run in words.

    Attributes:
        text: Sentence without its full stop.
        level: ``work``, ``good``, ``warn`` or ``bad``; sets the colour.
        is_over: Whether no more events come unless a user resumes the run.
    """

    text: str
    level: str
    is_over: bool


@dataclass(frozen=True)
class RunView:
    """Texts and numbers that show the state of a run.

    Attributes:
        name: Name of the run, from its folder.
        title: Method, seed and number of sites.
        status: Status as a sentence without its full stop.
        level: ``work``, ``good``, ``warn`` or ``bad``; sets the colour.
        is_over: Whether no more events come unless a user resumes the run.
        rounds_done: Number of finished rounds.
        rounds: Number of rounds in the settings.
        time: Duration of a round, time since the start, and estimated time left, in words.
        score: Last mean score in words.
        costs: Bytes and seconds of all sites in words.
        privacy: Epsilon spent so far in words; empty if no privacy is promised.
        sites: Views of the sites, sorted by name.
        curves: Curves; scores come first, with the task's first metric.
        attendance: Mapping from each site and round to the site's participation, `TOOK_PART` or `MISSED` of
            `medfl.engine.attendance`.
        log: Latest log lines, oldest first.
    """

    name: str
    title: str
    status: str
    level: str
    is_over: bool
    rounds_done: int
    rounds: int
    time: str
    score: str
    costs: str
    privacy: str
    sites: list[SiteView]
    curves: list[ProgressCurve]
    attendance: Mapping[str, Mapping[int, str]]
    log: list[LogEntry]

    @property
    def last_round(self) -> int:
        """Last round in which any site received a request; 0 before the first one."""
        return max((max(rounds, default=0) for rounds in self.attendance.values()), default=0)

    @property
    def summary(self) -> str:
        """Number of working sites, and each unavailable or silent site; empty if all are idle."""
        working = [site.name for site in self.sites if site.level == "work"]
        failing = [f"{site.name} {site.activity}" for site in self.sites if site.level == "bad"]
        busy = f"{len(working)} of {len(self.sites)} at work" if working else ""
        return "; ".join(filter(None, [busy, *failing]))


def make_run_view(
    name: str,
    state: RunState,
    now: float,
    has_writer: bool | None,
    epsilons: Mapping[str, float] | None = None,
    is_queued: bool = False,
) -> RunView:
    """Return the view of a run at a moment.

    Args:
        name: Name of the run.
        state: State after the events so far.
        now: Current time in seconds since 1970, by the clock of the machine that wrote the events.
        has_writer: Whether a process holds the lock of the run folder; None if the run is on another machine.
        epsilons: Maps each site to the epsilon spent on its data; sites with unknown values are left out.
        is_queued: Whether the run waits in the queue of a cluster.
    """
    status = _run_status(state, now, has_writer, is_queued)
    sites = [_site_view(site, state, now, status.is_over, (epsilons or {}).get(site)) for site in state.sites]
    curves = _curves(state)
    return RunView(
        name=name,
        title=f"{state.method}, seed {state.seed}, {len(state.sites)} site{'s' * (len(state.sites) != 1)}",
        status=status.text,
        level=status.level,
        is_over=status.is_over,
        rounds_done=state.rounds_done,
        rounds=state.rounds,
        time=_time_text(state),
        score=_score_text(curves),
        costs=_costs_text(state),
        privacy=_privacy_text(state, epsilons or {}),
        sites=sites,
        curves=curves,
        attendance=state.attendance,
        log=[
            LogEntry(_time_of_day(line.at), sentence(line.text), line.level)
            for line in list(state.log)[-SHOWN_LOG_LINES:]
        ],
    )


def _run_status(state: RunState, now: float, has_writer: bool | None, is_queued: bool) -> RunStatus:
    if state.status == FINISHED:
        level = "warn" if state.unavailable else "good"
        return RunStatus(f"finished{state.available_sites_phrase}", level, is_over=True)
    if state.status in (DIVERGED, INCOMPLETE):
        return RunStatus(f"{state.status}{state.available_sites_phrase}: {state.reason}", "bad", is_over=True)
    if is_queued and not has_writer:
        text = f"stopped by the cluster and queued again, {state.rounds_done} of {state.rounds} rounds done"
        return RunStatus(text, "warn", is_over=False)
    if state.status == STOPPED:
        return RunStatus(f"stopped {state.reason}", "bad", is_over=True)
    if state.status == ENDED_BY_SERVER:
        return RunStatus("the server ended its job; nothing runs here", "good", is_over=True)
    if has_writer is False:
        text = "stopped: no process works on it; run the same command again to resume it"
        return RunStatus(text, "bad", is_over=True)
    if has_writer is None and now - state.last_event_at > QUIET_SECONDS:
        text = f"no event for {duration(now - state.last_event_at)}; the run may have ended"
        return RunStatus(text, "warn", is_over=False)
    is_last_round_done = state.rounds_done >= state.rounds
    progress = "all rounds are done" if is_last_round_done else f"round {state.rounds_done + 1} of {state.rounds}"
    return RunStatus(f"running, {progress}", "work", is_over=False)


def _site_view(name: str, state: RunState, now: float, is_over: bool, epsilon: float | None) -> SiteView:
    site, attendance = state.sites[name], state.attendance.get(name, {})
    is_run_over = is_over or state.status != ""
    activity, level = _activity_and_level(site, now, is_run_over, name in state.unavailable)
    return SiteView(
        name=name,
        activity=activity,
        level=level,
        share=site.main_job.share if level == "work" and site.main_job else None,
        rounds=f"{sum(participation == TOOK_PART for participation in attendance.values())} of {len(attendance)}",
        seconds=f"{duration(site.last_seconds)} ({duration(site.total_seconds)})" if site.replies else MISSING,
        sent=size(site.bytes_up + site.bytes_to_peers),
        received=size(site.bytes_down),
        score=_last_score(state, name),
        epsilon=epsilon,
    )


def _activity_and_level(site: SiteState, now: float, is_run_over: bool, is_unavailable: bool) -> tuple[str, str]:
    job = site.main_job
    silent_seconds = None if is_run_over else site.silent_seconds(now)
    if site.unavailable_because:
        return f"unavailable: {site.unavailable_because}", "bad"
    if silent_seconds is not None and job:
        return f"silent for {duration(silent_seconds)}, while {job.activity}{_position_text(job)}", "bad"
    if job and not is_run_over:
        return f"{job.activity} for {duration(max(0.0, now - job.started_at))}{_position_text(job)}", "work"
    if is_unavailable:
        return "unavailable at the end", "bad"
    return (MISSING if is_run_over else "waiting"), "idle"


def _position_text(job: SiteJob) -> str:
    """Return the known position of a job, such as ``: round 2, step 3, batch 40 of 90``."""
    total = "" if job.batches is None else f" of {job.batches}"
    parts = {"round": job.round, "step": job.step, "batch": None if job.batch is None else f"{job.batch}{total}"}
    known = ", ".join(f"{name} {value}" for name, value in parts.items() if value is not None)
    return f": {known}" if known else ""


def _last_score(state: RunState, name: str) -> float | None:
    """Return a site's last score: of its personal model if there is one, on test images if there are any."""
    for model_and_split in _sorted_models_and_splits(state):
        if values := state.site_scores.get(model_and_split, {}).get(name):
            return values[max(values)]
    return None


def _sorted_models_and_splits(state: RunState) -> list[str]:
    """Return the keys of `RunState.site_scores` in the order of `MODELS_AND_SPLITS`, others last."""

    def place(key: str) -> tuple[int, str]:
        is_known = key in MODELS_AND_SPLITS
        return (MODELS_AND_SPLITS.index(key) if is_known else len(MODELS_AND_SPLITS)), key

    return sorted(state.site_scores, key=place)


def _curves(state: RunState) -> list[ProgressCurve]:
    """Return the curves: sites' mean scores, scores on the server's or public images, and the training loss."""
    curves = []
    for model_and_split in _sorted_models_and_splits(state):
        means = state.mean_scores.get(f"{model_and_split} {state.metric}", {})
        model, _, split = model_and_split.partition(" ")
        title = f"{state.metric}, {model} model, {'validation' if split == 'val' else split} images"
        if means:
            curves.append(_curve(title, means, state.site_scores[model_and_split]))
    for key, values in sorted(state.mean_scores.items()):
        images, _, rest = key.partition(" ")
        if images in ("global", "public") and rest.endswith(f" test {state.metric}") and rest.count(" ") == 2:
            curves.append(_curve(f"{state.metric}, {rest.split()[0]} model, {images} test images", values, {}))
    if state.training_losses:
        curves.append(_curve("training loss, mean of the sites", state.training_losses, {}))
    return curves


def _curve(title: str, values: Mapping[int, float], sites: Mapping[str, Mapping[int, float]]) -> ProgressCurve:
    rounds = sorted(values)
    return ProgressCurve(title, rounds, [values[round_] for round_ in rounds], sites)


def _score_text(curves: list[ProgressCurve]) -> str:
    if not curves or not curves[0].sites:
        return "none yet"
    curve = curves[0]
    last = [values[curve.rounds[-1]] for values in curve.sites.values() if curve.rounds[-1] in values]
    extremes = f", from {score(min(last))} to {score(max(last))}" if len(last) > 1 else ""
    return f"{curve.title}: {score(curve.mean[-1])} after round {curve.rounds[-1]} (mean of {len(last)}{extremes})"


def _time_text(state: RunState) -> str:
    elapsed = duration(max(0.0, state.last_event_at - state.first_event_at))
    if not state.seconds_by_round:
        return f"{elapsed} since the start"
    recent = median(state.seconds_by_round[round_] for round_ in sorted(state.seconds_by_round)[-RECENT_ROUNDS:])
    left = max(0, state.rounds - state.rounds_done) * recent
    rest = f"; about {duration(left)} left" if left and state.status in ("", STOPPED) else ""
    return f"about {duration(recent)} a round, {elapsed} since the start{rest}"


def _costs_text(state: RunState) -> str:
    sites = state.sites.values()
    up, down = sum(site.bytes_up for site in sites), sum(site.bytes_down for site in sites)
    peers = sum(site.bytes_to_peers for site in sites)
    between = f", {size(peers)} between sites" if peers else ""
    work = duration(sum(site.total_seconds for site in sites))
    return f"{size(up)} to the server, {size(down)} from it{between}; {work} of work at the sites"


def _privacy_text(state: RunState, epsilons: Mapping[str, float]) -> str:
    if state.privacy is None:
        return ""
    from medfl.privacy.policy import mechanism_of

    unit = mechanism_of(state.privacy.unit).unit_phrase
    budget = f"of {state.privacy.epsilon:.3g} for {unit}"
    if not epsilons:
        return f"epsilon {budget}; only each site knows how much is spent"
    most = "at most " * (len(epsilons) > 1)
    return f"epsilon {most}{max(epsilons.values()):.3g} {budget} is spent"


def _time_of_day(at: float) -> str:
    return datetime.datetime.fromtimestamp(at).strftime("%H:%M:%S")
