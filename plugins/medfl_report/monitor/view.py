"""What is shown of a run, in words and numbers: the same in a terminal, on the page and in ``medfl status``."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from medfl.engine.attendance import TOOK_PART
from medfl.engine.status import DIVERGED, INCOMPLETE
from medfl.utils.formats import MISSING, duration, score, sentence, size
from medfl_report.monitor.state import FINISHED, LEFT, STOPPED, RunState, SiteState

RECENT = 5
"""Rounds from which the time of a round is taken."""

LINES = 12
"""Of the log that are shown."""

QUIET = 150.0
"""Seconds without any event after which a run that is followed from elsewhere may be gone: several heartbeats."""

RUNNING = "running"
"""What the status of a run that is at work begins with."""


@dataclass(frozen=True)
class SiteLine:
    """What is shown of a site.

    Attributes:
        name: It.
        now: What it does.
        level: ``work``, ``idle``, ``warn`` or ``bad``.
        share: Of its batches that are done, in [0, 1], while it works; None where nobody tells.
        rounds: Rounds that it took part in, of those that it was asked in.
        seconds: Of its last work, and of all.
        sent: Bytes to the server and to other sites.
        received: Bytes from the server.
        score: After the last round that was scored; None without any.
        epsilon: That is spent of its data; None where nothing is promised or nobody tells.
    """

    name: str
    now: str
    level: str
    share: float | None
    rounds: str
    seconds: str
    sent: str
    received: str
    score: float | None
    epsilon: float | None


@dataclass(frozen=True)
class Drawn:
    """A curve.

    Attributes:
        title: What is drawn.
        rounds: Ascending, at least one.
        mean: Of the sites, one for each round.
        sites: Site to its own values by round; empty where only the mean is known.
    """

    title: str
    rounds: list[int]
    mean: list[float]
    sites: Mapping[str, Mapping[int, float]]


@dataclass(frozen=True)
class View:
    """What is shown of a run.

    Attributes:
        name: Its folder, as it is called.
        title: Method, seed, sites.
        status: A sentence without its end.
        level: ``work``, ``good``, ``warn`` or ``bad``.
        over: Whether nothing more comes unless somebody continues it.
        round: Rounds that are over.
        rounds: That it is to have.
        time: Of a round, and what is left.
        score: The last mean score, in words.
        costs: Bytes and seconds of all sites.
        privacy: What is spent; empty where nothing is promised.
        sites: A line for each.
        curves: The first is the task's first metric.
        attendance: Site to round to what it did (`RunState.attendance`).
        log: Time of day, text and level of the last lines.
    """

    name: str
    title: str
    status: str
    level: str
    over: bool
    round: int
    rounds: int
    time: str
    score: str
    costs: str
    privacy: str
    sites: list[SiteLine]
    curves: list[Drawn]
    attendance: Mapping[str, Mapping[int, str]]
    log: list[tuple[str, str, str]]

    @property
    def last_round(self) -> int:
        """The last one that any site was asked in; 0 before."""
        return max((max(known, default=0) for known in self.attendance.values()), default=0)

    @property
    def summary(self) -> str:
        """Who is at work and who is not, in a sentence without its end; empty if nobody is."""
        working = [site.name for site in self.sites if site.level == "work"]
        amiss = [f"{site.name} {site.now}" for site in self.sites if site.level in ("warn", "bad")]
        busy = f"{len(working)} of {len(self.sites)} at work" if working else ""
        return "; ".join(filter(None, [busy, *amiss]))


def make_view(
    name: str, state: RunState, now: float, writing: bool | None, epsilons: Mapping[str, float] | None = None
) -> View:
    """What is shown of a run now.

    Args:
        name: What to call it.
        state: What its events came to.
        now: Seconds since 1970, by the clock that the events were timed by.
        writing: Whether a process holds the folder; None where nobody can know, for the run is elsewhere.
        epsilons: Site to what is spent of its data, as far as it is known.
    """
    status, level, over = _standing(state, now, writing)
    lines = [_line(site, state, now, over, (epsilons or {}).get(site)) for site in state.sites]
    curves = _curves(state)
    return View(
        name,
        f"{state.method}, seed {state.seed}, {len(state.sites)} site{'s' * (len(state.sites) != 1)}",
        status,
        level,
        over,
        state.round,
        state.rounds,
        _time(state),
        _score(curves),
        _costs(state),
        _privacy(state, epsilons or {}),
        lines,
        curves,
        state.attendance,
        [(_clock(line.at), sentence(line.text), line.level) for line in list(state.log)[-LINES:]],
    )


def _standing(state: RunState, now: float, writing: bool | None) -> tuple[str, str, bool]:
    """Status, its level, and whether it is over."""
    if state.status == FINISHED:
        return f"finished{state.ended_on}", "warn" if state.unavailable else "good", True
    if state.status in (DIVERGED, INCOMPLETE):
        return f"{state.status}{state.ended_on}: {state.reason}", "bad", True
    if state.status == STOPPED:
        return f"stopped {state.reason}", "bad", True
    if state.status == LEFT:
        return "the server ended its job; nothing runs here", "good", True
    if writing is False:
        return "stopped: no process is at work on it; the same command continues it", "bad", True
    if writing is None and now - state.last > QUIET:
        return f"nothing was heard of it for {duration(now - state.last)}", "warn", False
    at = "all rounds are over" if state.round >= state.rounds else f"round {state.round + 1} of {state.rounds}"
    return f"{RUNNING}, {at}", "work", False


def _line(name: str, state: RunState, now: float, over: bool, epsilon: float | None) -> SiteLine:
    site, known = state.sites[name], state.attendance.get(name, {})
    doing, level = _doing(site, now, over or state.status != "", name in state.unavailable)
    return SiteLine(
        name,
        doing,
        level,
        site.task.share if level == "work" and site.task else None,
        f"{sum(did == TOOK_PART for did in known.values())} of {len(known)}",
        f"{duration(site.seconds)} ({duration(site.spent)})" if site.replies else MISSING,
        size(site.up + site.to_peers),
        size(site.down),
        _last_of(state, name),
        epsilon,
    )


def _doing(site: SiteState, now: float, over: bool, unavailable: bool) -> tuple[str, str]:
    """What a site does in words, and the level."""
    quiet = None if over else site.silent(now)
    if site.why:
        return f"missing: {site.why}", "bad"
    if quiet is not None and site.task:
        return f"silent for {duration(quiet)}, while {site.task.doing}", "bad"
    if site.task and not over:
        return f"{site.task.doing} for {duration(max(0.0, now - site.task.since))}", "work"
    return ("missing in the end", "bad") if unavailable else ("–" if over else "waiting", "idle")


def _last_of(state: RunState, name: str) -> float | None:
    """A site's last score, of the model that it would take home, on test images or else on validation images."""
    for kind in _kinds(state):
        if values := state.by_site.get(kind, {}).get(name):
            return values[max(values)]
    return None


def _kinds(state: RunState) -> list[str]:
    """Models and splits of which there are scores, the most telling first."""
    order = ["personal test", "global test", "personal val", "global val"]
    return sorted(state.by_site, key=lambda kind: (order.index(kind) if kind in order else len(order), kind))


def _curves(state: RunState) -> list[Drawn]:
    curves = []
    for kind in _kinds(state):
        means = state.curves.get(f"{kind} {state.metric}", {})
        model, _, split = kind.partition(" ")
        title = f"{state.metric}, {model} model, {'validation' if split == 'val' else split} images"
        if means:
            curves.append(_drawn(title, means, state.by_site[kind]))
    for name, values in sorted(state.curves.items()):
        where, _, what = name.partition(" ")
        if where in ("global", "public") and what.endswith(f" test {state.metric}") and what.count(" ") == 2:
            curves.append(_drawn(f"{state.metric}, {what.split()[0]} model, {where} test images", values, {}))
    if state.losses:
        curves.append(_drawn("training loss, mean of the sites", state.losses, {}))
    return curves


def _drawn(title: str, values: Mapping[int, float], sites: Mapping[str, Mapping[int, float]]) -> Drawn:
    rounds = sorted(values)
    return Drawn(title, rounds, [values[round_] for round_ in rounds], sites)


def _score(curves: list[Drawn]) -> str:
    if not curves or not curves[0].sites:
        return "none yet"
    curve = curves[0]
    last = [values[curve.rounds[-1]] for values in curve.sites.values() if curve.rounds[-1] in values]
    worst = f", from {score(min(last))} to {score(max(last))}" if len(last) > 1 else ""
    return f"{curve.title}: {score(curve.mean[-1])} after round {curve.rounds[-1]} (mean of {len(last)}{worst})"


def _time(state: RunState) -> str:
    spent = duration(max(0.0, state.last - state.begun))
    if not state.took:
        return f"{spent} since it began"
    recent = median(state.took[round_] for round_ in sorted(state.took)[-RECENT:])
    left = max(0, state.rounds - state.round) * recent
    rest = f"; about {duration(left)} left" if left and state.status in ("", STOPPED) else ""
    return f"about {duration(recent)} a round, {spent} since it began{rest}"


def _costs(state: RunState) -> str:
    sites = state.sites.values()
    up, down = sum(site.up for site in sites), sum(site.down for site in sites)
    peers = sum(site.to_peers for site in sites)
    between = f", {size(peers)} between sites" if peers else ""
    work = duration(sum(site.spent for site in sites))
    return f"{size(up)} up, {size(down)} down{between}; {work} of the sites' work"


def _privacy(state: RunState, epsilons: Mapping[str, float]) -> str:
    if state.privacy is None:
        return ""
    from medfl.privacy.policy import mechanism_of

    unit = mechanism_of(state.privacy.unit).unit_phrase
    budget = f"of {state.privacy.epsilon:.3g} for {unit}"
    if not epsilons:
        return f"epsilon {budget}; what is spent so far each site knows"
    most = "at most " * (len(epsilons) > 1)
    return f"epsilon {most}{max(epsilons.values()):.3g} {budget} is spent"


def _clock(at: float) -> str:
    return datetime.datetime.fromtimestamp(at).strftime("%H:%M:%S")
